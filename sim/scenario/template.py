"""The scenario that `headcount init` writes."""

from __future__ import annotations

import json
from pathlib import Path

from sim.scenario.source import parse_value

_TEMPLATE = Path(__file__).with_name("template.yaml")
_SCHEMA_LINE = "# yaml-language-server: $schema=./scenario.schema.json\n"


def template_text(name: str, *, with_schema: bool = False) -> str:
    """Returns a commented scenario of that name, as text.

    `with_schema` adds the line that tells editors of a scenario.schema.json beside it.
    """
    text = _TEMPLATE.read_text(encoding="utf-8").replace("name: my-team", f"name: {_quoted(name)}", 1)
    return _SCHEMA_LINE + text if with_schema else text


def _quoted(name: str) -> str:
    """Returns the name, in quotes where YAML would read something else from it."""
    try:
        plain = parse_value(name) == name
    except ValueError:
        plain = False
    return name if plain else json.dumps(name)
