"""Turns what pydantic found into one line for a person: the key of the file, what was given, what is allowed."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sim.scenario.ollama import Ollama
from sim.scenario.part import Part, known_keys
from sim.scenario.problems import Path
from sim.scenario.server import Flags, Server
from sim.scenario.workload import KINDS

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("gt", "must be above"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be below"),
    "less_than_equal": ("le", "must be at most"),
}


def explain(error: ValidationError, model: type[Part], data: Any) -> Iterator[tuple[Path, str, bool]]:
    """Yields path, message and whether the key itself is at fault, for each error in `data`."""
    for detail in error.errors(include_url=False):
        path = _clean(detail["loc"], data, keep_last=detail["type"] == "missing")
        yield from _explain_one(detail, path, model)


def suggestion(wrong: str, known: Iterable[str], *, noun: str) -> str:
    """Returns `did you mean 'x'?`, or the list of what is known."""
    known = list(known)
    close = difflib.get_close_matches(wrong.replace("-", "_"), known, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"{noun}: {', '.join(known)}"


def _explain_one(detail: ErrorDetails, path: Path, model: type[Part]) -> Iterator[tuple[Path, str, bool]]:
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    match kind:
        case "missing":
            field = _model_at(model, detail["loc"][:-1]).model_fields
            names = {info.alias or name: info for name, info in field.items()}
            yield path, f"missing key ({_lower(names[str(path[-1])].description or '')})", True
        case "extra_forbidden":
            yield path, f"unknown key; {_meant(str(path[-1]), _model_at(model, detail['loc'][:-1]))}", True
        case "literal_error":
            allowed = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            yield path, f"unknown value; got {show(given)}; {suggestion(str(given), allowed, noun='allowed')}", False
        case "value_error":
            yield path, str(context["error"]), False
        case "union_tag_invalid" | "union_tag_not_found":
            yield _explain_tag(path, given, context)
        case _ if kind in _EXPECTED:
            yield path, f"expected {_EXPECTED[kind]}; got {show(given)}{_hint(kind, given)}", False
        case _ if kind in _BOUNDS:
            limit, words = _BOUNDS[kind]
            yield path, f"{words} {_number(context[limit])}; got {show(given)}", False
        case "string_pattern_mismatch":
            yield path, f'not a version; got {show(given)}; write it as "0.32" or "0.8.5"', False
        case "string_too_short":
            yield path, "must not be empty", False
        case "too_short":
            if not given:  # pydantic says it of a list whose items are all wrong, too
                yield path, "the list must not be empty", False
        case _:
            yield path, f"{detail['msg']}; got {show(given)}", False


def _explain_tag(path: Path, given: Any, context: dict[str, Any]) -> tuple[Path, str, bool]:
    """Explains a union whose kind is missing or unknown: the workload, a distribution, the arrivals."""
    if path == ("workload",):
        if not isinstance(given, dict):
            return path, f"expected a mapping; got {show(given)}", False
        if given.get("kind") is None:
            return (*path, "kind"), f"missing key; kinds: {', '.join(KINDS)}", True
        kind = given["kind"]
        return (*path, "kind"), f"unknown kind; got {show(kind)}; {suggestion(str(kind), KINDS, noun='kinds')}", False
    known = [tag.strip("'") for tag in context.get("expected_tags", "").split(", ") if tag != "'name'"]
    if "tag" not in context:
        plain = "poisson, constant, all_at_once" if path[-1] == "arrivals" else "a number"
        kind = "gamma: {burstiness: 0.5}" if path[-1] == "arrivals" else "lognormal: {median: 250, p95: 2000}"
        return (
            path,
            f"expected {plain} or a kind such as {{{kind}}}; got {show(given)}{_hint('float_type', given)}",
            False,
        )
    tag = context["tag"]
    return (*path, tag), f"unknown kind; {suggestion(tag, known, noun='kinds')}", True


def show(value: Any) -> str:
    """Returns a given value as an error shows it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"a mapping of {', '.join(map(str, value))}" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"{value!r}" if len(repr(value)) < 60 else f"{repr(value)[:57]}…"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _hint(kind: str, given: Any) -> str:
    """Names the usual cause of a wrong type."""
    if kind == "bool_type" and isinstance(given, str) and given.lower() in ("yes", "on", "y", "no", "off", "n"):
        return f"; write {'true' if given.lower() in ('yes', 'on', 'y') else 'false'}"
    if kind in ("int_type", "float_type") and isinstance(given, str) and given.replace(".", "", 1).isdecimal():
        return "; remove the quotes"
    if kind == "string_type" and isinstance(given, int | float) and not isinstance(given, bool):
        return "; put it in quotes"
    return ""


def _meant(key: str, model: type[BaseModel]) -> str:
    known = known_keys(model) if issubclass(model, Part) else list(model.model_fields)
    if key.startswith("OLLAMA_"):  # as the environment has it
        key = key.removeprefix("OLLAMA_").lower()
        if key in known:
            return f"did you mean '{key}'?"
    if model is Server and key not in known:
        inner = {name: f"ollama.{name}" for name in Ollama.model_fields}
        inner |= {name: f"flags.{name}" for name in Flags.model_fields}
        near = difflib.get_close_matches(key.replace("-", "_"), [*known, *inner], n=1)
        if near and near[0] not in known:
            return f"did you mean '{inner[near[0]]}'?"
    if "server" in known and key not in known:  # at the top of a scenario
        inside = [*Server.model_fields, *Flags.model_fields]
        if key.replace("-", "_") in inside and not difflib.get_close_matches(key, known, n=1):
            return f"did you mean 'server.{key.replace('-', '_')}'?"
    return suggestion(key, known, noun="keys")


def _clean(loc: tuple[str | int, ...], data: Any, *, keep_last: bool) -> Path:
    """Drops from a location what the data lacks: tags of unions, the position of an item that stands alone.

    `keep_last` keeps the last part although the data lacks it: the missing key.
    """
    path: list[str | int] = []
    for position, part in enumerate(loc):
        is_last = position == len(loc) - 1
        known: Any = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
        if part in known:
            data = data[part]
        elif not (is_last and keep_last):
            continue
        path.append(part)
    return tuple(path)


def _model_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel]:
    """Returns the model at an error's location, following fields, lists and the tags of unions."""
    found: list[tuple[str | None, type[BaseModel]]] = [(None, model)]
    for part in loc:
        tagged = [candidate for tag, candidate in found if tag == part]
        if tagged:
            found = [(None, tagged[0])]
            continue
        fields = {info.alias or name: info for _, candidate in found for name, info in candidate.model_fields.items()}
        if part in fields:
            info = fields[str(part)]
            found = list(_models_in(info.annotation, info.metadata))
    return found[0][1]


def _models_in(annotation: Any, metadata: Iterable[Any] = ()) -> Iterator[tuple[str | None, type[BaseModel]]]:
    """Yields the models an annotation allows, each with its tag in a union."""
    tag = next((item.tag for item in metadata if hasattr(item, "tag")), None)
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        yield from _models_in(inner, more)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield tag, annotation
    else:
        for argument in typing.get_args(annotation):
            yield from _models_in(argument)


def _lower(text: str) -> str:
    text = text.rstrip(".")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
