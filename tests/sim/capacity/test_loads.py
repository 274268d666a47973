"""A search tries whole numbers of users, and rates that a person can write down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.capacity.loads import LoadGrid, own_load, unit_of
from sim.scenario.load import scenario_from_text
from sim.scenario.model import Search
from tests.sim.results.toys import open_loop_scenario, users_scenario

USERS = LoadGrid("users", 1, 400)
RATE = LoadGrid("requests_per_s", 0.1, 100)


@given(st.floats(1, 400), st.floats(1, 400))
def test_between_two_loads_lies_a_load_of_the_grid(a: float, b: float) -> None:
    for grid in (USERS, RATE):
        low, high = grid.round(min(a, b)), grid.round(max(a, b))
        middle = grid.between(low, high)
        if middle is None:
            assert high - low <= grid.step(low) * 1.0001 or grid.round((low + high) / 2) in (low, high)
        else:
            assert low < middle < high
            assert grid.round(middle) == middle


@pytest.mark.parametrize(
    ("unit", "load", "step"),
    [
        ("users", 1, 1),
        ("users", 399, 1),
        ("concurrency", 1000, 5),
        ("context_tokens", 99, 1),
        ("context_tokens", 32_000, 320),
        ("requests_per_s", 5.0, 0.05),
    ],
)
def test_neighbours_are_one_apart_or_a_small_share(unit: str, load: float, step: float) -> None:
    assert LoadGrid(unit, 1, 1e6).step(load) == pytest.approx(step)  # type: ignore[arg-type]


def test_a_grid_keeps_to_its_ends() -> None:
    assert USERS.above(395, 50) == 400
    assert USERS.below(5, 50) == 1
    assert USERS.above(7, 0) == 8
    assert USERS.below(7, 0) == 6
    assert RATE.lowest == pytest.approx(0.1 / 64, rel=0.01)


def test_the_grid_of_a_search_is_what_the_search_says() -> None:
    search = Search.model_validate({"vary": "max_concurrency", "from": 2.0, "to": 64.0, "resolution": 4.0})
    grid = LoadGrid.of(search)
    assert (grid.unit, grid.first, grid.ceiling, grid.step(10)) == ("concurrency", 2, 64, 4)
    assert isinstance(grid.first, int)


@pytest.mark.parametrize(
    ("workload", "unit", "load"),
    [
        ("{kind: open_loop, request_rate: 2.5, CLASSES}", "requests_per_s", 2.5),
        ("{kind: open_loop, request_rate: inf, num_requests: 5, CLASSES}", "requests_per_s", None),
        ("{kind: open_loop, arrivals: all_at_once, num_requests: 5, CLASSES}", "requests_per_s", None),
        ("{kind: closed_loop, num_requests: 5, max_concurrency: 2, CLASSES}", "concurrency", 2),
        ("{kind: closed_loop, num_requests: 5, CLASSES}", "concurrency", None),
    ],
)
def test_a_scenario_without_a_search_has_the_load_of_its_workload(workload: str, unit: str, load: float) -> None:
    text = workload.replace("CLASSES", "classes: [{name: a, prompt_tokens: 1, output_tokens: 1}]")
    scenario = scenario_from_text(
        f"""
name: toy
server: {{kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090}}
workload: {text}
run: {{duration: 10s}}
"""
    )
    assert (unit_of(scenario), own_load(scenario)) == (unit, load)


def test_the_unit_is_that_of_what_is_varied() -> None:
    assert unit_of(users_scenario("ttft.p95 <= 1s")) == "users"
    assert unit_of(open_loop_scenario("ttft.p95 <= 1s")) == "requests_per_s"
