"""The JSON Schema of a scenario, for editors: completion, descriptions and red lines while typing.

`python -m sim.scenario.schema` prints it; `scenarios/scenario.schema.json` is that text. It accepts a file as it is
written (`45s`, `ttft.p95 <= 2s`); what holds between keys is said by `headcount check` alone.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from sim.scenario.model import Scenario


def scenario_schema() -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of a scenario file."""
    schema: dict[str, Any] = _tidy(Scenario.model_json_schema(by_alias=True))
    schema["title"] = "headcount scenario"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """Returns the schema as the committed file holds it."""
    return json.dumps(scenario_schema(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _tidy(value: Any, *, names: bool = False) -> Any:
    """Drops titles made from key names, and what JSON or JSON Schema does not know: infinity, pydantic's own bounds.

    `names` says that the keys of `value` are those of a scenario, not of the schema.
    """
    if isinstance(value, dict):
        noise = () if names else ("title", "gt", "ge", "lt", "le")
        return {
            key: _tidy(item, names=key in ("properties", "$defs") and not names)
            for key, item in value.items()
            if key not in noise
        }
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    return "inf" if value == float("inf") else value


if __name__ == "__main__":
    sys.stdout.write(schema_text())
