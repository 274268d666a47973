"""Cases 13 and 16: one request too many for the KV cache, and what admission makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.capacity.diagnosis import diagnose
from sim.capacity.point import Point
from sim.records import RunRecord
from sim.results.metrics import RunMetrics, summarize
from sim.results.server_use import server_use
from sim.results.window import Window
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.cases.build import measured, one_class, scenario, tokens_per_s, write_profile

# ---- case 13: four requests of 100k fill 90 % of the pool, a fifth comes ----


def four_long_ones_and(extra: int, folder: Path, *, reserve: bool) -> Scenario:
    """Four decode at 40 ms a step, 100 tokens/s in all; reading a prompt takes 0.39 ms a token."""
    write_profile(folder, floor_us=40_000, per_token_us=390)
    number = 4 + extra
    workload = {"kind": "closed_loop", "num_requests": number, "max_concurrency": number}
    return scenario(
        folder,
        workload | {"classes": one_class(100_000, 2_000)},
        server={"model": "Llama-3.1-8B-Instruct"},
        objectives=["itl.p95 <= 100ms"],
        max_model_len=131_072,
        max_num_batched_tokens=8192,
        num_gpu_blocks_override=round(4 * 100_000 / 0.9 / 16),
        enable_prefix_caching=False,
        scheduler_reserve_full_isl=reserve,
    )


def test_case_13_four_requests_are_fine(tmp_path: Path) -> None:
    """At 90 % of the pool four requests of 100k decode at 100 tokens/s."""
    record, metrics = measured(four_long_ones_and(0, tmp_path, reserve=False))
    assert metrics.server.kv.max == pytest.approx(0.92, abs=0.01)  # 90 % and the answers
    assert metrics.server.num_preemptions == 0
    assert tokens_per_s(record, 170, 220) == pytest.approx(100, rel=0.02)


def test_case_13_a_fifth_admitted_on_its_first_chunk_thrashes(tmp_path: Path) -> None:
    """100 -> 1.5 tok/s: the fifth is read until the pool is full, preempted, and read again, for ever.

    Every step carries a chunk of it (8192 tokens, 3.2 s), and none of that work is kept: a livelock of recomputation.
    """
    case = four_long_ones_and(1, tmp_path, reserve=False)
    record, metrics = measured(case)
    assert tokens_per_s(record, 200, 1200) == pytest.approx(1.5, abs=0.1)
    assert metrics.server.kv.max == 1.0
    assert metrics.server.num_preemptions > 100
    victims = {request.request_id for request in record.requests if request.num_preemptions > 2}
    assert victims == {4}  # always the same one
    diagnosis = diagnose(Point.of(None, [0], [metrics], case.objectives))
    assert diagnosis is not None
    assert diagnosis.resource == "kv_blocks"
    assert diagnosis.cure.startswith("cap the context")


def test_case_13_full_prompt_admission_cures_it(tmp_path: Path) -> None:
    """With scheduler_reserve_full_isl the fifth waits until its whole prompt fits, and the four stay at 100 tok/s."""
    record, metrics = measured(four_long_ones_and(1, tmp_path, reserve=True))
    assert tokens_per_s(record, 170, 220) == pytest.approx(100, rel=0.02)
    assert metrics.server.num_preemptions == 0
    assert metrics.total.num_finished == 5
    fifth = record.requests[4]
    assert fifth.scheduled_ns >= min(request.finish_ns for request in record.requests[:4])


# ---- case 16: TPOT jumps when the eighth user joins ----

POOL_TOKENS = 33_792 / 0.132
"""A request of 32K in and 1K out takes 13.2 % of the pool: 7.57 of them fit."""


def glm(folder: Path, *, version: str = "0.13.0", caching: bool = False) -> Scenario:
    """A closed loop on a server that steps in 59 ms + 6.4 ms a request, and reads a token in 60 us.

    Fitted to TPOT 107 ms at six users, 114 ms at seven and 440 ms at eight. 0.13 is of the time of the report (GLM-4.7
    appeared in December 2025), and admits on the first chunk by default.
    """
    write_profile(folder, floor_us=59_000, per_decode_us=6_400, per_token_us=60, overlap=0)
    return scenario(
        folder,
        {"kind": "closed_loop", "num_requests": 36, "classes": one_class(32_768, 1_024)},
        server={
            "version": version,
            "model": "Qwen3-235B-A22B-Instruct-2507",
            "gpu": "b200",
            "tensor_parallel_size": 8,
        },
        objectives=["tpot.p95 <= 150ms", "preemptions <= 0"],
        max_model_len=65_536,
        max_num_batched_tokens=8192,
        num_gpu_blocks_override=round(POOL_TOKENS / 16) + 1,
        enable_prefix_caching=caching,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RunRecord]:
    """Returns the runs of the report: six, seven, eight and twelve users."""
    case = glm(tmp_path_factory.mktemp("case16"))
    return {users: simulate(case, seed=0, load=users) for users in (6, 7, 8, 12)}


@pytest.fixture(scope="module")
def knee(runs: dict[int, RunRecord], tmp_path_factory: pytest.TempPathFactory) -> dict[int, RunMetrics]:
    """Returns the runs in numbers."""
    case = glm(tmp_path_factory.mktemp("case16"))
    return {users: summarize(run, case) for users, run in runs.items()}


def tpot_ms(metrics: RunMetrics) -> float:
    tpot = metrics.total.latency["tpot"].percentiles[50.0]
    assert tpot is not None
    return tpot


@pytest.mark.parametrize(("users", "tpot", "kv"), [(6, 107, 0.794), (7, 114, 0.924)])
def test_case_16_up_to_seven_users_are_clean(knee: dict[int, RunMetrics], users: int, tpot: float, kv: float) -> None:
    """c6 107 ms KV 79.4 %, c7 114 ms KV 92.4 %, no preemption."""
    assert tpot_ms(knee[users]) == pytest.approx(tpot, rel=0.03)
    assert knee[users].server.kv.max == pytest.approx(kv, abs=0.003)
    assert knee[users].server.num_preemptions == 0
    assert knee[users].server.running.max == users


def test_case_16_the_eighth_user_preempts(knee: dict[int, RunMetrics]) -> None:
    """c8 440 ms KV 98.9 %: 7.57 requests fit, so the eighth is read, preempted and read again; TPOT four times."""
    assert tpot_ms(knee[8]) == pytest.approx(440, rel=0.05)
    assert 3.5 < tpot_ms(knee[8]) / tpot_ms(knee[7]) < 4.5
    assert knee[8].server.kv.max == pytest.approx(0.989, abs=0.012)
    assert knee[8].server.num_preemptions > 8 * 10


def test_case_16_further_users_only_wait(knee: dict[int, RunMetrics], runs: dict[int, RunRecord]) -> None:
    """c12 423 ms, running 8, waiting 4: the pool holds no more, so TPOT stays and the queue grows."""
    assert tpot_ms(knee[12]) == pytest.approx(423, rel=0.07)
    assert knee[12].server.running.max == 8
    end_ns = runs[12].end_ns
    use = server_use(runs[12], Window(end_ns // 10, end_ns * 7 // 10, finite=True))  # while all twelve are there
    assert (round(use.running.mean or 0), round(use.waiting.mean or 0)) == (8, 4)


def test_case_16_the_knee_is_between_seven_and_eight(knee: dict[int, RunMetrics], tmp_path: Path) -> None:
    """Seven users hold every objective; at eight they break, and the diagnosis is the KV cache."""
    objectives = glm(tmp_path).objectives
    assert Point.of(7, [0], [knee[7]], objectives).holds
    eight = Point.of(8, [0], [knee[8]], objectives)
    assert not eight.holds
    diagnosis = diagnose(eight)
    assert diagnosis is not None
    assert diagnosis.resource == "kv_blocks"


def test_case_16_full_prompt_admission_turns_the_jump_into_a_queue(tmp_path: Path) -> None:
    """On 0.32 the eighth user waits for a place instead: TPOT stays clean, TTFT pays."""
    _, seven = measured(glm(tmp_path, version="0.32"), load=7)
    _, eight = measured(glm(tmp_path, version="0.32"), load=8)
    assert eight.server.num_preemptions == 0
    assert eight.server.running.max == 7
    assert tpot_ms(eight) == pytest.approx(tpot_ms(seven), rel=0.05)
    waited = eight.total.latency["queue"].percentiles[90.0]
    assert waited is not None
    assert waited > 20_000


def test_case_16_prefix_caching_keeps_the_work_of_a_preempted_prompt(tmp_path: Path) -> None:
    """With prefix caching the preempted eighth hits its own blocks again: no recomputation, no jump."""
    _, eight = measured(glm(tmp_path, caching=True), load=8)
    assert eight.server.num_preemptions > 0
    assert tpot_ms(eight) < 1.1 * 114
