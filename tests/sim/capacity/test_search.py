"""The search finds the largest load that holds, whatever the curve, and says so when there is none or no end."""

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.capacity import STEADY_STATE, NoDataError, SearchInterruptedError, find_capacity
from sim.capacity import runs as runs_module
from sim.errors import UserError
from sim.records import RequestLog, RunRecord
from sim.scenario.load import override
from sim.scenario.model import Scenario
from tests.sim.capacity.curves import Served, proportional
from tests.sim.results.toys import (
    S,
    empty_run,
    finished,
    open_loop_scenario,
    repair_mean_response_s,
    simulate_mm,
    simulate_repair,
    users_scenario,
)

ONE_SECOND = "ttft.p95 <= 1s"


@settings(max_examples=25, deadline=None)
@given(knee=st.floats(1.0, 399.9), start=st.sampled_from([1, 3, 50]))
def test_without_chance_the_answer_is_the_largest_whole_number_below_the_knee(knee: float, start: int) -> None:
    server = Served(proportional(knee))
    result = find_capacity(users_scenario(ONE_SECOND, changes=[f"search.from={start}"]), server)
    assert result.value == int(knee)
    assert result.next_load == int(knee) + 1
    assert (result.low, result.high) == (result.value, result.value)
    assert result.binding_objective == ONE_SECOND
    assert len(server.asked) == len(set(server.asked)) == result.num_runs  # nothing is simulated twice
    assert all(isinstance(load, int) for load, _ in server.asked)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(20, 380), min_size=5, max_size=5))
def test_with_chance_the_mean_over_the_seeds_decides(knees: list[float]) -> None:
    result = find_capacity(users_scenario(ONE_SECOND), Served(proportional(*knees)))
    truth = 1 / np.mean([1 / knee for knee in knees])  # where the mean TTFT reaches its bound
    assert result.value is not None
    assert result.next_load is not None
    assert result.value <= truth <= result.next_load
    assert result.low is not None
    assert result.high is not None
    assert result.low <= result.value <= result.high
    half_width = (result.high - result.low) / 2
    assert result.next_load - result.value <= max(1, half_width / 2)  # settled: closer than the seeds can tell


@settings(max_examples=25, deadline=None)
@given(knee=st.floats(1.0, 900))
def test_a_rate_is_found_within_one_percent(knee: float) -> None:
    result = find_capacity(open_loop_scenario(ONE_SECOND), Served(proportional(knee)))
    assert result.value is not None
    assert result.next_load is not None
    assert result.value <= knee < result.next_load <= result.value * 1.0101 + 1e-9
    assert result.value == float(f"{result.value:.3g}")


def test_the_number_of_simulations_stays_small() -> None:
    knees = np.random.default_rng(0).normal(60, 4, size=5)
    assert find_capacity(users_scenario(ONE_SECOND), Served(proportional(*knees))).num_runs <= 50


def test_m_m_1_supports_the_rate_of_the_textbook() -> None:
    result = find_capacity(open_loop_scenario(ONE_SECOND), simulate_mm)
    truth = 10 - np.log(20)  # the response time is exponential with rate mu - lambda: p95 = ln 20 / (mu - lambda)
    assert result.low is not None
    assert result.high is not None
    assert result.low <= truth <= result.high
    assert result.value == pytest.approx(truth, rel=0.05)
    assert result.diagnosis is not None
    assert result.diagnosis.resource == "max_num_seqs"


def test_the_machine_repair_model_supports_the_users_of_mean_value_analysis() -> None:
    result = find_capacity(users_scenario("ttft.mean <= 1.5s", changes=["run.duration=4000s"]), simulate_repair)
    truth = max(n for n in range(1, 100) if repair_mean_response_s(n) <= 1.5)
    assert result.low is not None
    assert result.high is not None
    assert result.low <= truth <= result.high
    assert result.value == pytest.approx(truth, abs=1)


def test_when_no_load_holds_the_answer_is_zero() -> None:
    result = find_capacity(users_scenario(ONE_SECOND), Served(lambda load, seed: 5 + load))
    assert (result.value, result.low, result.high, result.next_load) == (0, 0, 0, 1)
    assert result.binding_objective == ONE_SECOND
    assert not result.ceiling_reached
    assert not result.supported


def test_when_the_first_load_breaks_smaller_ones_are_tried() -> None:
    result = find_capacity(users_scenario(ONE_SECOND, changes=["search.from=100"]), Served(proportional(7.5)))
    assert (result.value, result.next_load) == (7, 8)


def test_a_rate_that_is_too_high_to_begin_with_is_followed_down_to_a_sixtyfourth() -> None:
    scenario = open_loop_scenario(ONE_SECOND, changes=["search.from=10"])
    found = find_capacity(scenario, Served(proportional(0.5)))
    assert found.value == pytest.approx(0.5, rel=0.01)
    zero = find_capacity(scenario, Served(proportional(0.01)))
    assert (zero.value, zero.next_load) == (0, 0.156)


def test_at_the_ceiling_the_answer_is_a_lower_bound() -> None:
    result = find_capacity(users_scenario(ONE_SECOND), Served(proportional(1e6)))
    assert (result.value, result.low, result.high, result.next_load) == (400, 400, None, None)
    assert result.ceiling_reached
    assert result.supported
    assert result.binding_objective is None
    assert result.diagnosis is None


def test_a_ceiling_that_only_the_first_seeds_reach_is_no_ceiling() -> None:
    result = find_capacity(users_scenario(ONE_SECOND), Served(proportional(500, 500, 200, 200, 200)))
    assert result.value is not None
    assert not result.ceiling_reached
    assert result.next_load is not None
    assert result.value <= 263 < result.next_load  # 5 / (2/500 + 3/200) = 263.2
    assert result.num_runs < 60


def test_a_break_of_few_users_by_chance_does_not_end_the_search() -> None:
    def curve(load: float, seed: int) -> float:
        unlucky = load in (2, 4) and seed < 2  # the first seeds break there by chance, all together do not
        return 1.4 if unlucky else load / 40

    assert find_capacity(users_scenario(ONE_SECOND), Served(curve)).value == 40


def test_a_break_before_the_first_load_that_holds_is_said() -> None:
    result = find_capacity(users_scenario(ONE_SECOND), Served(lambda load, seed: 2.0 if load <= 2 else load / 40))
    assert result.value == 40
    assert result.notes == ("not monotone: something breaks at 1, 2 although 40 holds",)


def test_a_load_that_holds_above_the_first_break_is_said_and_not_the_answer() -> None:
    def curve(load: float, seed: int) -> float:
        return 1.2 if 18 <= load <= 20 else load / 40

    scenario = users_scenario(ONE_SECOND, changes=["search.from=5"])
    result = find_capacity(scenario, Served(curve))
    assert result.value == 17
    assert result.next_load == 18


def test_an_objective_that_asks_for_throughput_is_looked_for_at_every_load() -> None:
    def simulate(scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
        assert load is not None
        run = empty_run()
        run.requests = RequestLog(
            finished(n, round(100 + 900 * n / load) * S, round(load * S / 100)) for n in range(int(load))
        )
        run.end_ns = run.arrivals_end_ns = 1000 * S
        return run

    result = find_capacity(users_scenario(ONE_SECOND, "request_throughput >= 0.07"), simulate)
    assert result.value == 100  # below 63 users there is not enough of it


def test_a_load_whose_queue_grows_is_not_supported_even_if_the_objectives_hold() -> None:
    changes = ["run.duration=400s", "search.from=4", "search.to=20"]
    result = find_capacity(open_loop_scenario("ttft.p95 <= 1000s", changes=changes), simulate_mm)
    assert result.value == pytest.approx(10, rel=0.06)
    assert result.binding_objective == STEADY_STATE
    assert result.diagnosis is not None
    assert "grows as long as the load lasts" in result.diagnosis.notes[0]


def test_the_resolution_of_the_scenario_is_kept() -> None:
    coarse = users_scenario(ONE_SECOND, changes=["search.resolution=10"])
    result = find_capacity(coarse, Served(proportional(77.7)))
    assert result.value is not None
    assert result.next_load is not None
    assert result.value <= 77 < result.next_load <= result.value + 10


def test_one_seed_has_no_interval() -> None:
    result = find_capacity(users_scenario(ONE_SECOND, changes=["run.seeds=1"]), Served(proportional(30.5)))
    assert (result.value, result.low, result.high) == (30, None, None)


def test_seeds_are_the_same_at_every_load() -> None:
    server = Served(proportional(30, 31, 32))
    find_capacity(users_scenario(ONE_SECOND, changes=["run.seeds=3", "run.seed=7"]), server)
    assert {seed for _, seed in server.asked} == {7, 8, 9}


def test_the_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(40):
        knees = rng.normal(100, 8, size=5)
        result = find_capacity(users_scenario(ONE_SECOND), Served(proportional(*knees), num_requests=1))
        assert result.low is not None
        assert result.high is not None
        held += result.low <= 100 <= result.high
    assert held >= 36


def test_without_a_search_the_one_load_is_judged() -> None:
    scenario = users_scenario(ONE_SECOND).model_copy(update={"search": None})
    scenario = scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"users": 30})})
    good, bad = (find_capacity(scenario, Served(proportional(knee))) for knee in (40, 20))
    assert (good.value, good.supported, good.binding_objective, good.points[0].load) == (None, True, None, 30)
    assert (bad.value, bad.supported, bad.binding_objective, bad.unit) == (None, False, ONE_SECOND, "users")
    assert good.num_runs == 5


def test_an_objective_without_data_at_any_load_is_refused() -> None:
    nothing = r"objectives.1: tpot.p95 <= 1s: no data: none of the \d+ requests in the window has a tpot; a longer run"
    with pytest.raises(NoDataError, match=nothing) as caught:
        find_capacity(users_scenario(ONE_SECOND, "tpot.p95 <= 1s"), Served(proportional(10)))
    assert caught.value.index == 1


def test_an_interrupted_search_keeps_what_it_knows() -> None:
    server = Served(proportional(50))

    def simulate(scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
        if len(server.asked) == 9:
            raise KeyboardInterrupt
        return server(scenario, seed=seed, load=load)

    with pytest.raises(SearchInterruptedError, match="interrupted after 9 runs") as caught:
        find_capacity(users_scenario(ONE_SECOND), simulate)
    result = caught.value.result
    assert [point.load for point in result.points] == [1, 2, 4, 8]
    assert result.value is None
    assert result.notes == ("interrupted: the search was stopped before it had an answer",)


def test_progress_and_store_are_told_of_every_run() -> None:
    told: list[tuple[int, float | None, int]] = []
    kept: list[tuple[float | None, int]] = []
    result = find_capacity(
        users_scenario(ONE_SECOND),
        Served(proportional(5)),
        progress=lambda *news: told.append(news),
        store=lambda run, load, seed: kept.append((load, seed)),
    )
    assert [number for number, _, _ in told] == list(range(1, result.num_runs + 1))
    assert kept == [(load, seed) for _, load, seed in told]


def test_the_number_of_processes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "_WORTH_PARALLEL_S", 0.0)
    scenario = open_loop_scenario(ONE_SECOND, changes=["run.duration=200s", "run.seeds=3", "search.from=8"])
    alone, together = (find_capacity(scenario, partial(simulate_mm, servers=2), jobs=jobs) for jobs in (1, 2))
    assert alone == together


def dies(scenario: Scenario, *, seed: int, load: float | None, marks: str, times: int) -> RunRecord:
    """M/M/2, but the process is killed so many times at load 16 with seed 1."""
    for mark in (Path(marks) / str(number) for number in range(times)):
        if (load, seed) == (16, 1) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return simulate_mm(scenario, seed=seed, load=load, servers=2)


def test_a_worker_that_is_killed_once_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs_module, "_WORTH_PARALLEL_S", 0.0)
    scenario = open_loop_scenario(ONE_SECOND, changes=["run.duration=200s", "run.seeds=3", "search.from=8"])
    whole = find_capacity(scenario, partial(simulate_mm, servers=2), jobs=2)
    assert find_capacity(scenario, partial(dies, marks=str(tmp_path), times=1), jobs=2) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_run_that_kills_its_worker_twice_is_named_after_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runs_module, "_WORTH_PARALLEL_S", 0.0)
    scenario = open_loop_scenario(ONE_SECOND, changes=["run.duration=200s", "run.seeds=4", "search.from=16"])
    told: list[tuple[float | None, int]] = []
    with pytest.raises(
        UserError, match=r"^run at load 16 with seed 1: its worker process was killed twice; most often"
    ):
        find_capacity(
            override(scenario, {"search": None, "workload.request_rate": 16}),
            partial(dies, marks=str(tmp_path), times=2),
            jobs=2,
            progress=lambda _, load, seed: told.append((load, seed)),
        )
    assert sorted(told) == [(16, 0), (16, 2), (16, 3)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_says_which_and_why(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "_WORTH_PARALLEL_S", 0.0)
    scenario = users_scenario(ONE_SECOND, changes=["run.duration=200s"])
    with pytest.raises(RuntimeError, match=r"^run at load 4 with seed 1: ZeroDivisionError: division") as caught:
        find_capacity(scenario, partial(_fails, at=(4, 1)), jobs=jobs)
    assert "simulate_repair" in str(caught.value)  # the traceback shows the place


def _fails(scenario: Scenario, *, seed: int, load: float | None, at: tuple[float, int]) -> RunRecord:
    return simulate_repair(scenario, seed=seed, load=load, service_s=0.5 if (load, seed) != at else 1 / 0)
