"""The document of every kind of result keeps to the committed schema and says what was found."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reports.document import Document, build_document
from sim.capacity import SearchInterruptedError, find_capacity
from sim.deployment import plan
from sim.records import RunRecord
from sim.results.storage import versions
from sim.scenario.load import override
from sim.scenario.model import Scenario
from tests.sim.capacity.curves import Curve, Served, proportional
from tests.sim.results.toys import open_loop_scenario, users_scenario

ONE_SECOND = "ttft.p95 <= 1s"
SCHEMA = json.loads(files("sim.results").joinpath("run.schema.json").read_text())


def document(curve: Curve, scenario: Scenario | None = None) -> Document:
    scenario = scenario or users_scenario(ONE_SECOND)
    built = build_document(scenario, plan(scenario), find_capacity(scenario, Served(curve)))
    check(built)
    return built


def check(built: Document) -> None:
    text = json.dumps(built, allow_nan=False)
    Draft202012Validator(SCHEMA).validate(json.loads(text))
    for number in numbers(built):
        assert number == float(f"{number:.6g}") or number == int(number)


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for each in value.values():
            yield from numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, float):
        yield value


def test_the_schema_itself_is_sound() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_a_search_states_the_answer_and_what_broke_after_it() -> None:
    built = document(proportional(30.5))
    assert built["supported_users"] == {"value": 30, "low": 30, "high": 30, "covers": ["seeds"]}
    assert built["unit"] == "users"
    assert (built["binding_objective"], built["search"]["next_load"]) == (ONE_SECOND, 31)
    assert built["binding_resource"] == built["diagnosis"]["resource"]
    assert built["calibrated"] is False
    assert built["step_times"]["source"] == "analytical"
    assert built["seeds"] == [0, 1, 2, 3, 4]
    assert built["versions"] == versions()
    assert [point["load"] for point in built["points"]] == sorted(point["load"] for point in built["points"])
    assert [point["objectives_met"] for point in built["points"]] == [p["load"] <= 30 for p in built["points"]]


def test_a_point_is_the_mean_over_its_seeds() -> None:
    point = next(p for p in document(proportional(20, 40))["points"] if p["load"] == 16)
    assert point["seeds"][:2] == [0, 1]
    expected = [800.0 if seed % 2 == 0 else 400.0 for seed in point["seeds"]]
    assert point["ttft_ms"]["p95"] == pytest.approx(sum(expected) / len(expected))
    assert point["objectives"][0]["per_seed"] == [value / 1000 for value in expected]
    assert point["classes"]["only"]["ttft_ms"] == point["ttft_ms"]
    assert point["itl_ms"]["p50"] is None  # one token: no gap, and no number made up for it


def test_a_ceiling_and_a_zero_have_their_own_form() -> None:
    ceiling = document(proportional(1e6))
    assert ceiling["supported_users"] == {"value": 400, "low": 400, "high": None, "covers": ["seeds"]}
    assert (ceiling["search"]["ceiling_reached"], ceiling["binding_objective"]) == (True, None)
    assert (ceiling["binding_resource"], ceiling["diagnosis"]) == (None, None)
    zero = document(lambda load, seed: 9.0)
    assert zero["supported_users"] == {"value": 0, "low": 0, "high": 0, "covers": ["seeds"]}
    assert zero["objectives_met"] is False


def test_registered_people_follow_from_the_share_at_work() -> None:
    scenario = users_scenario(ONE_SECOND, changes=["active_share=0.2"])
    assert document(proportional(30.5), scenario)["registered_people"] == 150
    assert document(proportional(30.5))["registered_people"] is None


def test_a_rate_is_stated_in_requests_per_second() -> None:
    built = document(proportional(7.77), open_loop_scenario(ONE_SECOND))
    assert built["unit"] == "requests_per_s"
    assert built["supported_users"]["value"] == pytest.approx(7.77, rel=0.01)


@pytest.mark.parametrize(("users", "met"), [(20, True), (40, False)])
def test_a_single_load_has_no_search(users: int, met: bool) -> None:
    scenario = override(users_scenario(ONE_SECOND), {"workload.users": users, "search": None})
    built = document(proportional(30), scenario)
    assert built["search"] is None
    assert built["supported_users"] == {"value": None, "low": None, "high": None, "covers": []}
    assert [point["load"] for point in built["points"]] == [users]
    assert built["objectives_met"] is met
    assert built["binding_objective"] == (None if met else ONE_SECOND)


def test_an_interrupted_search_has_points_and_no_answer() -> None:
    scenario, server = users_scenario(ONE_SECOND), Served(proportional(30))

    def simulate(scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
        if len(server.asked) == 6:
            raise KeyboardInterrupt
        return server(scenario, seed=seed, load=load)

    with pytest.raises(SearchInterruptedError) as caught:
        find_capacity(scenario, simulate)
    built = build_document(scenario, plan(scenario), caught.value.result)
    check(built)
    assert built["supported_users"]["value"] is None
    assert len(built["points"]) == 3


def test_flags_say_whether_they_are_defaults() -> None:
    flags = document(proportional(30), users_scenario(ONE_SECOND, changes=["server.flags.max_num_seqs=64"]))["server"]
    assert flags["flags"]["max_num_seqs"] == {"value": 64, "default": False}
    assert flags["flags"]["max_num_batched_tokens"]["default"] is True


def test_a_fitted_profile_brings_its_errors() -> None:
    changes = [
        "server.profile=qwen2.5-0.5b-l4",
        "server.model=Qwen/Qwen2.5-0.5B-Instruct",
        "server.gpu=l4",
        "server.version='0.23'",
    ]
    built = document(proportional(30), users_scenario(ONE_SECOND, changes=changes))
    assert built["calibrated"] is True
    assert built["step_times"]["source"] == "qwen2.5-0.5b-l4"
    assert built["step_times"]["errors"]
