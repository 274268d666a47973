"""The YAML text of a scenario: plain data, and the line and column where each value stands."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from sim.scenario.problems import Path, Problem, ScenarioError, dotted

_TYPED = {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null")}
_TEXT = {f"tag:yaml.org,2002:{name}" for name in ("str", "timestamp", "value", "merge")}
_COLLECTIONS = {f"tag:yaml.org,2002:{name}" for name in ("map", "seq")}
_SCALARS = YAML(typ="safe", pure=True).constructor
_CURES = {
    "'\\t'": "a tab; indent with spaces",
    "mapping values are not allowed": "a colon out of place; check the indentation, the space after the colon, quotes",
    "but found another document": "a second document; a scenario file holds one",
    "found unexpected end of stream": "a quote that is never closed",
    "got '<stream end>'": "a bracket that is never closed",
    "expected <block end>": "a line that does not line up with those above it; check the indentation",
    "undefined alias": "an alias without an anchor",
}


@dataclass(frozen=True)
class Source:
    """A YAML file that was read, or data that never was in one (no file name, no places).

    Attributes:
        file: the file as the user named it.
        data: its content, as plain dicts, lists, numbers and text.
    """

    file: str
    data: dict[str, Any]
    _root: Node | None = None

    def locate(self, path: Path, *, at_key: bool = False) -> tuple[int, int]:
        """Returns line and column (from 1) of the value at `path`, or of its key.

        What is not in the file is located at the mapping that should hold it.
        """
        if self._root is None:
            return 0, 0
        node, mark = self._root, self._root.start_mark
        for part in path:
            found = _child(node, part)
            if found is None:
                break
            key, node = found
            is_empty = isinstance(node, ScalarNode) and node.value == "" and node.style is None
            mark = (key if is_empty else node).start_mark
            if at_key:
                mark = key.start_mark
        return mark.line + 1, mark.column + 1

    def depth(self, path: Path) -> int:
        """Returns how many parts of `path` are in the file."""
        value: Any = self.data
        for depth, part in enumerate(path):
            known: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
            if part not in known:
                return depth
            value = value[part]
        return len(path)

    def problem(self, path: Path, message: str, *, at_key: bool = False) -> Problem:
        """Returns a problem of the value at `path`, or of its key."""
        line, column = self.locate(path, at_key=at_key)
        where = f"{self.file}:{line}:{column}" if self.file else ""
        return Problem(where, dotted(path), message, (line, column))


def read_source(path: str | FilePath) -> Source:
    """Reads a scenario file.

    Raises:
        ScenarioError: the file cannot be read, is not UTF-8, not YAML, not a mapping, or repeats a key.
    """
    file = str(path)
    return parse_source(_decode(_read_bytes(file), file), file)


def parse_source(text: str, file: str) -> Source:
    """Reads a scenario from YAML text; `file` names it in errors.

    Raises:
        ScenarioError: not YAML, not a mapping, or a repeated key.
    """
    root = _compose(text, file)
    if root is None:
        raise ScenarioError([Problem(f"{file}:1:1", "", "the file is empty; `headcount init` writes a scenario")])
    if not isinstance(root, MappingNode):
        raise ScenarioError([_at(root, file, "", f"a scenario is a mapping of keys; got {_kind(root)}")])
    problems = list(_faults(root, (), file, {}))
    if problems:
        raise ScenarioError(problems)
    return Source(file, _plain(root, {}), root)


def parse_value(text: str) -> Any:
    """Returns the plain value of YAML text, as it would be read behind a key; no text is None.

    Raises:
        ValueError: not YAML, with the reason.
    """
    try:
        root = _compose(text, "")
        problems = [] if root is None else list(_faults(root, (), "", {}))
    except ScenarioError as error:
        raise ValueError(error.problems[0].message) from None
    if problems:
        raise ValueError(": ".join(part for part in (problems[0].key, problems[0].message) if part))
    return None if root is None else _plain(root, {})


def is_empty_file(path: FilePath) -> bool:
    """Returns whether a file, or what a .gz file holds, has no text but white space.

    Raises:
        OSError: it cannot be read.
    """
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        return not any(line.strip() for line in stream)


def _read_bytes(file: str) -> bytes:
    try:
        return FilePath(file).read_bytes()
    except FileNotFoundError:
        message = "no such file; `headcount init` writes a scenario"
    except IsADirectoryError:
        message = "a folder, not a scenario file"
    except (OSError, ValueError) as error:
        message = f"cannot be read; {getattr(error, 'strerror', None) or error}"
    raise ScenarioError([Problem(file, "", message)])


def _decode(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        got = f"byte 0x{content[error.start]:02x}"
        raise ScenarioError([Problem(f"{file}:{line}:{column}", "", f"not UTF-8 text; got {got}")]) from None


def _compose(text: str, file: str) -> Node | None:
    """Parses text into ruamel's node tree, which knows the place of everything."""
    try:
        root: Node | None = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        said = " ".join(str(error.problem or error.context).split())
        cure = next((cure for part, cure in _CURES.items() if part in said), said)
        raise ScenarioError([Problem(f"{file}:{line}:{column}", "", f"not valid YAML: {cure}")]) from None
    except ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"not valid YAML: a control character; got {chr(error.character)!r}"
        raise ScenarioError([Problem(f"{file}:{line}:{column}", "", message)]) from None
    except RecursionError:
        raise ScenarioError([Problem(f"{file}:1:1", "", "not a scenario: nested too deeply")]) from None
    except YAMLError as error:
        raise ScenarioError([Problem(f"{file}:1:1", "", f"not valid YAML: {str(error).splitlines()[0]}")]) from None
    return root


def _faults(node: Node, path: Path, file: str, done: dict[int, bool]) -> Iterator[Problem]:
    """Yields what YAML lets through and a scenario does not: repeated keys, keys that are no text, tags, loops.

    `done` holds the nodes above this one (False) and those already checked (True): an alias shares its anchor's node.
    """
    if id(node) in done:
        if not done[id(node)]:
            yield _at(node, file, dotted(path), "an alias inside its own anchor")
        return
    done[id(node)] = False
    if node.tag not in _TYPED | _TEXT | _COLLECTIONS:
        yield _at(node, file, dotted(path), f"a YAML tag has no meaning here; got {node.tag}")
    if isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            yield from _faults(item, (*path, index), file, done)
    if isinstance(node, MappingNode):
        first: dict[str, Node] = {}
        for key, value in node.value:
            where = (*path, str(key.value))
            if key.tag not in _TEXT:
                yield _at(key, file, dotted(path), f"a key is text; got {_kind(key)}")
            elif key.value in first:
                line = first[key.value].start_mark.line + 1
                yield _at(key, file, dotted(where), f"duplicate key; first given in line {line}")
            else:
                first[key.value] = key
                yield from _faults(value, where, file, done)
    done[id(node)] = True


def _at(node: Node, file: str, key: str, message: str) -> Problem:
    line, column = node.start_mark.line + 1, node.start_mark.column + 1
    return Problem(f"{file}:{line}:{column}", key, message, (line, column))


def _plain(node: Node, done: dict[int, Any]) -> Any:
    """Builds dicts, lists and values; an alias shares its anchor's."""
    if id(node) not in done:
        value: Any
        if isinstance(node, MappingNode):
            value = {key.value: _plain(item, done) for key, item in node.value}
        elif isinstance(node, SequenceNode):
            value = [_plain(item, done) for item in node.value]
        else:
            value = _SCALARS.construct_object(node) if node.tag in _TYPED else node.value
        done[id(node)] = value
    return done[id(node)]


def _child(node: Node, part: str | int) -> tuple[Node, Node] | None:
    """Returns key and value of a mapping's entry, or the item of a list twice."""
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if key.value == part), None)
    if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


def _kind(node: Node) -> str:
    if isinstance(node, MappingNode | SequenceNode):
        return "a mapping" if isinstance(node, MappingNode) else "a list"
    return f"the text {node.value!r}" if node.tag in _TEXT else str(node.value or "nothing")
