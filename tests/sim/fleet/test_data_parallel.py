"""Several engines in one server: balanced by vLLM's own rule; of a mixture of experts they step together."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sim.fleet.fleet
from sim.deployment import plan
from sim.engine.roofline import Roofline
from sim.engine.step_time import Batch
from sim.errors import UserError
from sim.fleet.routing import InternalBalance
from sim.hardware import find_gpu
from sim.models import find_model
from sim.records import Outcome, RunRecord
from sim.results.metrics import summarize
from sim.results.step_split import step_times
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.cases.build import MS, one_class, scenario, sent
from tests.sim.fleet.build import FLAGS, MIXED, costs, open_loop, simulate_as_fleet, users

MOE = {"model": "Qwen/Qwen3-30B-A3B", "gpu": "h200"}


@dataclass
class Engine:
    number: int
    num_requests: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_use: float = 0.0


def chosen(rule: InternalBalance, engines: list[Engine], at_ms: int = 0) -> int:
    return rule.choose(sent(0, 10, 1, at_ms * MS), engines)


def test_the_engine_with_the_fewest_requests_gets_the_next_one() -> None:
    rule = InternalBalance(by_requests_in_flight=True)
    assert chosen(rule, [Engine(0, num_requests=3), Engine(1, num_requests=1), Engine(2, num_requests=2)]) == 1


def test_a_burst_spreads_in_turns_before_the_engines_have_told_anything() -> None:
    rule, engines = InternalBalance(by_requests_in_flight=True), [Engine(0), Engine(1), Engine(2)]
    got = []
    for _ in range(6):
        number = chosen(rule, engines)
        engines[number].num_requests += 1
        got.append(number)
    assert sorted(got[:3]) == sorted(got[3:]) == [0, 1, 2]


def test_a_queue_on_a_full_cache_counts_more() -> None:
    crowded = Engine(0, num_requests=9, num_running=5, num_waiting=4, kv_use=1.0)  # 9 + 4 x 3
    busy = Engine(1, num_requests=15, num_running=15)
    assert chosen(InternalBalance(by_requests_in_flight=True), [crowded, busy]) == 1
    crowded.kv_use = 0.5
    assert chosen(InternalBalance(by_requests_in_flight=True), [crowded, busy]) == 0


def test_the_older_rule_counts_the_queue_four_times() -> None:
    crowded, busy = Engine(0, num_running=1, num_waiting=3), Engine(1, num_running=12)
    assert chosen(InternalBalance(by_requests_in_flight=False), [crowded, busy]) == 1
    busy.num_running = 14
    assert chosen(InternalBalance(by_requests_in_flight=False), [crowded, busy]) == 0


def test_counts_are_those_of_the_last_tick() -> None:
    rule, engines = InternalBalance(by_requests_in_flight=False), [Engine(0, num_running=5), Engine(1)]
    assert chosen(rule, engines, at_ms=10) == 1
    engines[0].num_running, engines[1].num_running = 0, 20
    assert chosen(rule, engines, at_ms=90) == 1  # not told yet: 4 for the one just sent, against 5
    assert chosen(rule, engines, at_ms=100) == 0


# --- whole runs -----------------------------------------------------------------------------------------------------


def moe(folder: Path, ranks: int, workload: dict[str, Any], **flags: Any) -> Scenario:
    return scenario(
        costs(folder), workload, server={**MOE, "data_parallel_size": ranks}, run={"duration": "40s", "seeds": 1},
        **{**FLAGS, "enable_expert_parallel": True, **flags},
    )  # fmt: skip


def poisson(rate: float) -> dict[str, Any]:
    return {"kind": "open_loop", "request_rate": rate, "classes": one_class(600, MIXED)}


def rows_of(run: RunRecord) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for replica, start, end in zip(run.steps.replica, run.steps.start_ns, run.steps.end_ns, strict=True):
        found[replica].append((start, end))
    return found


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_group_of_one_rank_is_the_engine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    case = users(tmp_path, 60, client_timeout="8s", retries={"max": 1, "backoff": "500ms"})
    flags = case.server.flags.model_copy(update={"async_scheduling": asynchronous})
    case = case.model_copy(update={"server": case.server.model_copy(update={"flags": flags})}).with_base_dir(tmp_path)
    alone = simulate(case, seed=3)
    monkeypatch.setattr(sim.fleet.fleet, "in_lockstep", lambda _server, _model: True)
    grouped = simulate_as_fleet(case, seed=3)
    assert list(grouped.requests) == list(alone.requests)
    assert grouped.steps == alone.steps
    assert grouped.itl == alone.itl


def test_ranks_of_experts_begin_and_end_their_steps_together(tmp_path: Path) -> None:
    run = simulate(moe(tmp_path, 3, poisson(12.0)), seed=0)
    rows = rows_of(run)
    assert set(rows) == {0, 1, 2}
    ends: dict[int, set[int]] = defaultdict(set)
    for row in rows.values():
        assert all(before[1] <= after[0] for before, after in pairwise(row))
        for start, end in row:
            ends[start].add(end)
    assert all(len(each) == 1 for each in ends.values())
    assert all(request.outcome is Outcome.FINISHED for request in run.requests)


def test_a_prompt_on_one_rank_holds_up_the_answers_of_the_other(tmp_path: Path) -> None:
    """Independent engines would not notice."""

    def longest_gap_ms(made: Scenario) -> float:
        run = simulate(made, seed=1)
        return max(run.itl.gap_ns) / 1e6

    workload = {"kind": "closed_loop", "num_requests": 2, "max_concurrency": 2, "request_rate": 4.0,
                "classes": one_class(4000, 300)}  # fmt: skip
    together = moe(tmp_path, 2, workload, max_num_batched_tokens=8192)
    dense = scenario(
        costs(tmp_path), workload, server={"data_parallel_size": 2}, run={"duration": "40s", "seeds": 1},
        **{**FLAGS, "max_num_batched_tokens": 8192},
    )  # fmt: skip
    assert longest_gap_ms(together) > 80  # 40 µs a token, the prompt's 4,000 shared by two ranks
    assert longest_gap_ms(dense) < 20


def test_dense_engines_are_independent_and_share_the_load(tmp_path: Path) -> None:
    case = open_loop(tmp_path, 20.0, output=MIXED, server={"data_parallel_size": 2})
    run = simulate(case, seed=0)
    metrics = summarize(run, case)
    assert metrics.fleet is not None
    shares = [each.num_requests for each in metrics.fleet.replicas]
    assert sum(shares) == metrics.total.num_requests
    assert min(shares) > 0.45 * sum(shares)
    starts = [{start for start, _ in row} for row in rows_of(run).values()]
    assert len(starts[0] & starts[1]) < 0.1 * len(starts[0])


def test_experts_without_expert_parallelism_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="with expert parallelism alone"):
        plan(moe(tmp_path, 2, poisson(1.0), enable_expert_parallel=False))


def test_the_roofline_divides_the_experts_and_pays_the_exchange() -> None:
    """Two ranks read half of the experts each; a few tokens of both touch more of them than those of one."""
    model, gpu = find_model("Qwen/Qwen3-30B-A3B"), find_gpu("h200")
    alone, shared = Roofline(model, gpu), Roofline(model, gpu, expert_ranks=2)
    many, few = Batch.of([500] * 200), Batch.of([500] * 2)
    assert shared.split(many)["experts"] == pytest.approx(alone.split(many)["experts"] / 2, rel=0.02)
    assert shared.split(few)["experts"] > 0.9 * alone.split(few)["experts"]
    assert (alone.split(many)["collectives"], shared.split(many)["gemm"]) == (0, alone.split(many)["gemm"])
    assert shared.split(many)["collectives"] > 0


def test_what_the_steps_of_ranks_are_made_of_adds_up_to_them(tmp_path: Path) -> None:
    case = moe(tmp_path, 2, poisson(12.0))
    run = simulate(case, seed=0, step_split=True)
    assert list(run.requests) == list(simulate(case, seed=0).requests)
    times = step_times(run.step_split)
    assert times is not None
    busy_ms = sum(end - start for start, end in zip(run.steps.start_ns, run.steps.end_ns, strict=True)) / 1e6
    assert times.all.mean_ms * times.all.count == pytest.approx(busy_ms, rel=1e-4)
