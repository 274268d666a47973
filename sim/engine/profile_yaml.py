"""Reads a YAML file into a pydantic model, and says where in the file an error is.

YAML 1.2 by ruamel.yaml: it keeps line and column, refuses duplicate keys, reads `1e3` as a number and `no` as text.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from sim.errors import UserError

Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: Path, model: type[Model]) -> Model:
    """Returns the file's content as `model`.

    Raises:
        UserError: the first thing that is wrong: `file:line:column: key: what, what was given, what is allowed`.
    """
    tree = _parse(path)
    if not isinstance(tree, CommentedMap):
        raise UserError(f"{path}:1:1: expected a mapping of keys and values; got {_shown(tree)}")
    try:
        return model.model_validate(_plain(tree))
    except ValidationError as error:
        # Of several errors the one that comes first in the file; an unknown key before a missing one, for the missing
        # one is often what the unknown one was meant to be.
        found = ((e["type"] == "missing", _place(tree, e), _message(model, e)) for e in error.errors())
        _, (line, column), message = min(found)
        raise UserError(f"{path}:{line}:{column}: {message}") from None


def write_yaml(path: Path, data: Any) -> None:
    """Writes plain data as YAML through a temporary file, so that a crash leaves nothing half-written.

    Raises:
        UserError: the file cannot be written.
    """
    yaml = YAML()
    yaml.width = 120
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yaml.dump(_writable(data), file)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _parse(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    try:
        return YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UserError(f"{path}{at}: not valid YAML: {_first_line(error.problem or str(error))}") from None
    except YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {_first_line(str(error))}") from None


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0]


def _plain(node: Any) -> Any:
    """Strips ruamel's own types, which remember formatting."""
    if isinstance(node, CommentedMap):
        return {_plain(key): _plain(value) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _writable(data: Any) -> Any:
    """Turns tuples into lists; what is short and plain, or numbers alone, is written on one line, wrapped."""
    if isinstance(data, dict):
        return _flow(CommentedMap((key, _writable(value)) for key, value in data.items()), data.values())
    if isinstance(data, list | tuple):
        return _flow(CommentedSeq(_writable(value) for value in data), data)
    return data


def _flow(node: Any, values: Any) -> Any:
    short = sum(len(str(value)) + 12 for value in values) < 110
    if short and not any(isinstance(value, dict | list | tuple) for value in values):
        node.fa.set_flow_style()
    table = not isinstance(node, CommentedMap) and all(_are_numbers(row) and len(row) == 2 for row in values)
    if table or _are_numbers(values):
        node.fa.set_flow_style()
    return node


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, int | float) for value in values)


def _place(tree: CommentedMap, error: ErrorDetails) -> tuple[int, int]:
    """Returns line and column, both from 1, of the deepest key of the error's path that the file holds."""
    node: Any = tree
    line, column = tree.lc.line, tree.lc.col
    for part in error["loc"]:
        if isinstance(node, CommentedMap) and part in node:
            line, column = node.lc.key(part)
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            line, column = node.lc.item(part)
        else:
            continue  # the tag of a union, or a key that is missing
        node = node[part]
    return line + 1, column + 1


def _message(model: type[BaseModel], error: ErrorDetails) -> str:
    known, path, inside = _walk(model, error["loc"])
    if path and path[-1] == "value" and error["type"] != "missing":
        path.pop()  # a plain number stands for {value: number}
    kind, given = error["type"], _shown(error["input"])
    key = ".".join(str(part) for part in path)
    match kind:
        case "extra_forbidden":
            near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            return f"{key}: unknown key; {hint}"
        case "missing":
            return f"{key}: this key is required"
        case "union_tag_not_found":
            tags = ", ".join(repr(tag) for m in inside for tag in _tags(m))
            return f"{key}.kind: this key is required; one of {tags}"
        case "union_tag_invalid":
            return f"{key}.kind: got {error['ctx']['tag']!r}; allowed: {error['ctx']['expected_tags']}"
        case "value_error":
            return f"{key}: {error['ctx']['error']}" if key else str(error["ctx"]["error"])
        case _:
            what = error["msg"].removeprefix("Input ").replace("Tuple should", "should").split(" after validation")[0]
            return f"{key}: {what}; got {given}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _walk(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[list[str], list[str | int], list[type[BaseModel]]]:
    """Follows an error's path through the models; drops what the file's author never wrote.

    Returns:
        The keys known where the path ends, the path without the tags of unions, and the models its end may hold.
    """
    models, known, path = [model], list(model.model_fields), []
    for part in loc:
        if isinstance(part, str):
            tagged = [m for m in models if part in _tags(m)]
            models = tagged or models
            known = [name for m in models for name in m.model_fields]
            if tagged:
                continue
            annotations = [m.model_fields[part].annotation for m in models if part in m.model_fields]
            models = [m for annotation in annotations for m in _models(annotation)]
        path.append(part)
    return known, path, models


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("kind")
    return typing.get_args(field.annotation) if field else ()


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the models that an annotation such as `tuple[A, ...] | B | None` mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models(argument)
