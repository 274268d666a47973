"""The search: it finds fronts that are known, makes nothing twice, and loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.errors import UserError
from sim.records import RunRecord
from sim.scenario.model import Scenario
from sim.search import SearchProgress, distinct, study_name
from sim.search.archive import Archive
from tests.sim.search.made import VARY, Made, Served, grid_front, made_search, scenario

MEMORY = "sqlite:///:memory:"


def outcomes(made: Made) -> list[object]:
    return [(each.number, each.parameters, each.state, each.outcome, each.same_as) for each in made.trials]


@pytest.mark.parametrize("seed", range(2))
def test_the_front_of_a_grid_is_found_with_a_fifth_of_its_runs(seed: int) -> None:
    made = made_search(MEMORY, 192 // 5, vary=[*VARY, "kv_cache_dtype=auto,fp8"], seed=seed)
    size, front = grid_front(made)
    assert (size, len(front)) == (192, 11)
    made.search.run()
    assert len(made.served.asked) == 192 // 5
    assert made.front == front


def test_no_configuration_is_simulated_twice_and_a_whole_space_is_enough() -> None:
    vary = ["max_num_seqs=1:16:log", "max_num_batched_tokens=256,512", "enable_prefix_caching=true,false"]
    made = made_search(MEMORY, 1000, vary=vary)
    made.search.run()
    assert len(made.served.asked) == made.search.space.size == 20
    flags = {each.server.flags.model_dump_json() for each in made.served.asked}
    assert len(flags) == 20
    assert made.front == grid_front(made)[1]


def test_flags_that_mean_the_same_server_are_simulated_once() -> None:
    default = 2048  # of vLLM 0.32 on this GPU
    vary = [f"max_num_batched_tokens=null,{default},4096", "max_num_seqs=8,16"]
    made = made_search(MEMORY, 100, vary=vary, served=Served(lambda _: (1.0, 1.0)))
    made.search.run()
    assert len(made.served.asked) == 4
    same = [each for each in made.trials if each.same_as is not None]
    assert len(same) == 2
    assert len(distinct(made.trials)) == 4
    assert {each.state for each in made.trials} == {"done"}


def test_an_interrupted_search_keeps_its_trials_and_goes_on(tmp_path: Path) -> None:
    broken = made_search(tmp_path / "s.db", 16, served=Served(stop_after=9))
    with pytest.raises(KeyboardInterrupt):
        broken.search.run()
    kept = {each.number: each for each in broken.trials if each.state == "done"}
    assert len(kept) == 9
    assert not any(each.state == "running" for each in broken.trials)
    again = made_search(tmp_path / "s.db", 16)
    again.search.run()
    assert len(again.served.asked) == 16 - 9
    assert {each.number: each for each in again.trials if each.number in kept} == kept
    assert len(distinct(again.trials)) == 16


def test_fewer_trials_are_the_first_of_more(tmp_path: Path) -> None:
    whole = made_search(MEMORY, 24)
    whole.search.run()
    for number in (12, 24):
        part = made_search(tmp_path / "part.db", number)
        part.search.run()
    assert outcomes(part) == outcomes(whole)


def test_processes_that_share_a_storage_share_the_work(tmp_path: Path) -> None:
    one, two = (made_search(tmp_path / "s.db", 20) for _ in range(2))
    one.search.num_trials = 8
    one.search.run()
    held = one.search.archive.ask()  # a third process is busy with it
    assert held is not None
    two.search.run()
    assert len(one.served.asked) + len(two.served.asked) == 20
    assert len(distinct(two.trials)) == 20
    assert all(each.parameters != held.parameters for each in two.trials if each.number > held.number)


def test_what_a_killed_process_had_begun_is_made_at_last(tmp_path: Path) -> None:
    vary = ["max_num_seqs=1,2,4", "max_num_batched_tokens=256,512"]
    dead = made_search(tmp_path / "s.db", 6, vary=vary)
    assert dead.search.archive.ask() is not None
    made = made_search(tmp_path / "s.db", 6, vary=vary)
    made.search.run()
    assert len(made.served.asked) == 6


def test_a_configuration_that_another_process_has_just_begun_is_left_to_it() -> None:
    made = made_search(MEMORY, 5)
    archive = made.search.archive
    first = archive.ask()
    assert first is not None
    archive.study.enqueue_trial(first.parameters)
    assert archive.ask() is None
    assert [each.state for each in archive.trials()] == ["running", "dropped"]


def test_a_configuration_that_another_process_has_just_ended_is_not_made_again(tmp_path: Path) -> None:
    vary = ["max_num_seqs=1,2"]
    made = made_search(tmp_path / "s.db", 2, vary=vary, served=Served(lambda _: (1.0, 1.0)))
    made.search.run()
    late = made_search(tmp_path / "s.db", 2, vary=vary, served=Served(lambda _: (1.0, 1.0)))
    assert late.search.archive.ask() is None  # it was chosen when one was left, and meanwhile none is
    assert [each.state for each in late.trials] == ["done", "done", "dropped"]


def test_servers_that_do_not_start_cost_nothing_and_are_not_tried_again() -> None:
    vary = ["max_num_seqs=8,16", "gpu_memory_utilization=0.1,0.9"]
    made = made_search(MEMORY, 4, vary=vary, served=Served(lambda _: (1.0, 1.0)))
    made.search.run()
    assert len(made.served.asked) == 2
    refused = [each for each in made.trials if each.state == "refused"]
    assert {each.parameters["server.gpu_memory_utilization"] for each in refused} == {0.1}
    assert len(refused) == 2
    assert all("would not start" in each.cause for each in refused)


def test_a_space_in_which_nothing_starts_is_the_question_s_fault() -> None:
    made = made_search(MEMORY, 4, vary=["gpu_memory_utilization=0.1,0.2"])
    with pytest.raises(UserError, match=r"--vary: none of the 2 configurations tried can be simulated; the first: "):
        made.search.run()


def test_a_simulation_that_fails_costs_itself_alone() -> None:
    def flawed(asked: Scenario) -> tuple[float, float]:
        if asked.server.flags.max_num_seqs == 16:
            raise RuntimeError("boom")
        return 1.0, 1.0

    news: list[SearchProgress] = []
    made = made_search(MEMORY, 9, vary=["max_num_seqs=8,16,32"], served=Served(flawed), report=news.append)
    made.search.run()
    assert [each.state for each in made.trials].count("done") == 2
    (failed,) = [each for each in made.trials if each.state == "failed"]
    assert failed.cause == "RuntimeError: boom"
    assert [each.cause for each in news if each.cause] == ["RuntimeError: boom"]
    assert (news[0].num_done, news[-1].num_done, news[-1].num_wanted) == (0, 2, 9)


def test_a_configuration_that_breaks_an_objective_is_never_on_the_front() -> None:
    base = scenario(objectives="['ttft.p95 <= 300ms']")
    made = made_search(MEMORY, 128, base=base)
    made.search.run()
    assert made.front
    assert all(ttft <= 0.3 for ttft, _ in made.front)
    assert made.front == {each for each in grid_front(made)[1] if each[0] <= 0.3}
    bad = [each for each in made.trials if each.outcome is not None and not each.outcome.feasible]
    assert bad
    assert all(each.outcome.violations["objectives"] > 0 for each in bad if each.outcome is not None)


def test_seeds_are_all_simulated_and_averaged() -> None:
    asked: list[tuple[str, int]] = []

    class Noisy(Served):
        def __call__(self, scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
            asked.append((scenario.server.flags.model_dump_json(), seed))
            return Served(lambda _: (100.0 + seed, 10.0))(scenario, seed=seed, load=load)

    base = scenario(run__seeds=3, run__seed=4)
    made = made_search(MEMORY, 2, base=base, vary=["max_num_seqs=8,16"], served=Noisy())
    made.search.run()
    assert [seed for _, seed in asked] == [4, 5, 6] * 2
    first = made.trials[0].outcome
    assert first is not None
    assert first.measures["ttft.p95"] == 0.105
    assert first.num_runs == 3


def test_another_question_is_another_study(tmp_path: Path) -> None:
    made = made_search(tmp_path / "s.db", 1)
    other = made_search(MEMORY, 1, vary=["max_num_seqs=1,2"])
    search = made.search
    names = {
        study_name(search.base, search.space, search.judge),
        study_name(search.base, other.search.space, search.judge),
        study_name(scenario(run__seeds=2), search.space, search.judge),
        study_name(search.base, search.space, made_search(MEMORY, 1, metrics=("itl.p95", "")).search.judge),
    }
    assert len(names) == 4
    assert study_name(scenario(description="other words"), search.space, search.judge) in names


def test_an_archive_gives_back_what_it_was_given(tmp_path: Path) -> None:
    made = made_search(tmp_path / "s.db", 3)
    made.search.run()
    reopened = made_search(tmp_path / "s.db", 3)
    archive: Archive = reopened.search.archive
    assert archive.trials() == made.trials
    assert all(each.outcome is not None and each.outcome.num_runs == 1 for each in archive.trials())
