"""Every shipped scenario loads, says what it is for, and is what the committed JSON Schema describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sim.scenario.load import load_scenario, scenario_from_text
from sim.scenario.schema import schema_text
from sim.scenario.source import read_source
from sim.scenario.template import template_text

from .made_trace import made_trace
from .texts import CLOSED, OPEN, USERS, edited

SCENARIOS = Path(__file__).parents[3] / "scenarios"
FILES = sorted(SCENARIOS.glob("*.yaml"))
SCHEMA: Any = json.loads((SCENARIOS / "scenario.schema.json").read_text(encoding="utf-8"))


def test_the_issue_s_scenarios_are_there() -> None:
    assert {
        "batch", "mooncake-trace", "office-team", "personal-assistant", "public-product", "spoc-coding-assistant",
        "two-rtx-3060",
    } <= {path.stem for path in FILES}  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_scenario_loads_with_each_of_its_variants(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.description
    for variant in scenario.variants:
        assert load_scenario(path, variant=variant) != scenario


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_scenario_opens_with_the_schema_and_what_it_is_for(path: Path) -> None:
    first, second, *_ = path.read_text(encoding="utf-8").splitlines()
    assert first == "# yaml-language-server: $schema=./scenario.schema.json"
    assert second.startswith("# ")
    assert max(map(len, path.read_text(encoding="utf-8").splitlines())) <= 120


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_scenario_fits_the_schema(path: Path) -> None:
    jsonschema.validate(read_source(path).data, SCHEMA)


def test_the_schema_is_that_of_the_models() -> None:
    committed = (SCENARIOS / "scenario.schema.json").read_text(encoding="utf-8")
    assert committed == schema_text(), "python -m sim.scenario.schema > scenarios/scenario.schema.json"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_describes_every_key() -> None:
    for name, part in SCHEMA["$defs"].items():
        for key, value in part.get("properties", {}).items():
            assert value.get("description") or name == key, f"{name}.{key} has no description"


@pytest.mark.parametrize("text", [USERS, OPEN, CLOSED], ids=["users", "open", "closed"])
def test_what_loads_fits_the_schema(text: str) -> None:
    scenario = scenario_from_text(text)
    jsonschema.validate(scenario.model_dump(mode="json", by_alias=True), SCHEMA)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_num_seqs: 64", "max_num_seq: 64"),
        ("45s", "45"),
        ("120s", "2 minutes"),
        ("ttft.p95 <= 2s", "ttfb.p95 <= 2s"),
        ("{geometric:", "{geometrical:"),
        ("kind: users", "kind: user"),
        ("  gpu: rtx-4090\n", ""),
        ("share: 0.9", "share: -1"),
    ],
)
def test_what_is_wrong_does_not_fit_the_schema(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(edited(USERS, old, new))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(read_source(path).data, SCHEMA)


def test_the_made_trace_is_what_its_script_writes() -> None:
    committed = (SCENARIOS / "traces" / "made_conversations.jsonl").read_text(encoding="utf-8")
    assert committed == made_trace(), (
        "python tests/sim/scenario/made_trace.py > scenarios/traces/made_conversations.jsonl"
    )


def test_the_made_trace_has_the_shape_of_a_mooncake_trace() -> None:
    rows = [json.loads(line) for line in made_trace().splitlines()]
    assert len(rows) == 200
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
    assert all(len(row["hash_ids"]) == -(-row["input_length"] // 512) for row in rows)
    assert all(row["hash_ids"][0] == 0 for row in rows)


@pytest.mark.parametrize("name", ["team", "123", "true", "a: b", "~", "höher", "it's"])
def test_the_template_is_a_scenario_of_that_name(name: str) -> None:
    assert scenario_from_text(template_text(name)).name == name


def test_the_numbers_of_the_sources_are_in_the_scenarios() -> None:
    office = (SCENARIOS / "office-team.yaml").read_text(encoding="utf-8")
    spoc = (SCENARIOS / "spoc-coding-assistant.yaml").read_text(encoding="utf-8")
    assert all(number in office for number in ("5 to 30", "max: 40", "57,344", "ttft.p95 <= 2s"))
    assert all(number in spoc for number in ("50000", "120000", "128000", "300 users", "85 on 2x H200", "10.5 %"))
    h200 = load_scenario(SCENARIOS / "spoc-coding-assistant.yaml", variant="h200").server
    assert (h200.gpu, h200.tensor_parallel_size, h200.flags.max_num_batched_tokens) == ("h200", 2, 1024)
