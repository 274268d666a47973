"""Hardware in whole runs: a slow GPU holds up its own replica while it is slow; links and pools grow as they should."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from sim.deployment import plan
from sim.records import RunRecord
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.cases.build import S
from tests.sim.fleet.build import open_loop

SLOW = {"factor": 2.0, "after": "20s", "until": "40s", "replica": 1}


def step_ms(run: RunRecord, replica: int, start_s: int, end_s: int) -> float:
    rows = zip(run.steps.replica, run.steps.start_ns, run.steps.end_ns, run.steps.num_prefill_tokens, strict=True)
    return fmean(
        (end - start) / 1e6
        for number, start, end, prefill in rows
        if number == replica and start_s * S <= start < end_s * S and not prefill
    )


def test_a_slow_gpu_holds_up_its_replica_while_it_is_slow(tmp_path: Path) -> None:
    run = simulate(open_loop(tmp_path, 12.0, server={"replicas": 2, "slow_gpus": [SLOW]}), seed=0)
    assert step_ms(run, 1, 20, 40) > 1.9 * step_ms(run, 1, 0, 20)
    assert step_ms(run, 1, 42, 60) == pytest.approx(step_ms(run, 1, 0, 20), rel=0.15)
    assert step_ms(run, 0, 20, 40) == pytest.approx(step_ms(run, 0, 0, 20), rel=0.15)


def test_least_requests_sends_less_to_a_slow_replica(tmp_path: Path) -> None:
    """Taking turns does not notice that one is slow."""

    def share(router: str) -> float:
        server = {"replicas": 2, "router": router, "slow_gpus": [SLOW]}
        run = simulate(open_loop(tmp_path, 14.0, server=server), seed=0)
        times = [request for request in run.requests if 22 * S <= request.sent_ns < 40 * S]
        return sum(request.replica == 1 for request in times) / len(times)

    assert share("round_robin") == pytest.approx(0.5, abs=0.01)
    assert share("least_requests") < 0.42


def test_one_server_with_a_slow_gpu_is_no_fleet_in_its_result(tmp_path: Path) -> None:
    case = open_loop(tmp_path, 4.0, server={"slow_gpus": [{"factor": 1.5, "after": "30s"}]})
    run = simulate(case, seed=0)
    assert run.fleet is None
    assert step_ms(run, 0, 31, 60) > 1.4 * step_ms(run, 0, 0, 29)
    assert any("slow_gpus" in warning for warning in run.warnings)


def served_by(gpu: str, tp: int, **rest: Any) -> Scenario:
    return Scenario.model_validate({
        "name": "case",
        "server": {
            "model": "Qwen/Qwen3-32B", "gpu": gpu, "tensor_parallel_size": tp, "flags": {"max_model_len": 16384},
            **rest,
        },
        "workload": {
            "kind": "closed_loop", "num_requests": 16, "max_concurrency": 4,
            "classes": [{"name": "only", "prompt_tokens": 2000, "output_tokens": 100}],
        },
    })  # fmt: skip


def test_the_pool_grows_more_than_tensor_parallelism() -> None:
    """The weights are paid for once: what is left grows faster than the number of GPUs."""
    tokens = {tp: plan(served_by("h100", tp)).memory.kv_tokens for tp in (1, 2, 4)}
    assert tokens[2] > 5 * tokens[1]
    assert tokens[4] > 2.2 * tokens[2]


def test_nvlink_beats_pcie_and_prompts_feel_it_most() -> None:
    """A prompt of 2,000 tokens moves 2,000 rows a layer through the links, a decode one."""

    def times_s(link: str) -> tuple[float, float]:
        run = simulate(served_by("h100", 4, interconnect=link), seed=0)
        ttft = fmean(request.first_token_ns - request.scheduled_ns for request in run.requests)
        rest = fmean(request.finish_ns - request.first_token_ns for request in run.requests)
        return ttft / S, rest / S

    (nvlink_ttft, nvlink_rest), (pcie_ttft, pcie_rest) = times_s("nvlink"), times_s("pcie")
    assert pcie_ttft > 1.3 * nvlink_ttft
    assert 1.0 < pcie_rest / nvlink_rest < pcie_ttft / nvlink_ttft


def test_a_power_limit_costs_prompts_and_hardly_answers() -> None:
    full, low = (simulate(served_by("h100", 1, clock_factor=each), seed=0) for each in (1.0, 0.6))
    tpot = [
        fmean((request.finish_ns - request.first_token_ns) / 99 for request in run.requests[-4:]) for run in (full, low)
    ]
    first = [run.requests[0].first_token_ns - run.requests[0].scheduled_ns for run in (full, low)]
    assert first[1] == pytest.approx(first[0] / 0.6, rel=0.1)
    assert tpot[1] == pytest.approx(tpot[0], rel=0.05)


def test_quantized_weights_leave_more_for_the_cache_and_read_faster() -> None:
    plain, fp8, w4a16 = (
        simulate(served_by("h100", 1, flags={"max_model_len": 16384, "quantization": name}), seed=0)
        for name in ("none", "fp8", "awq")
    )
    assert plain.num_gpu_blocks < fp8.num_gpu_blocks < w4a16.num_gpu_blocks
    tpot = [fmean(r.finish_ns - r.first_token_ns for r in run.requests[-4:]) for run in (plain, fp8, w4a16)]
    assert tpot[0] > 1.5 * tpot[1]
    assert tpot[1] > 1.2 * tpot[2]
    ttft = [run.requests[0].first_token_ns - run.requests[0].scheduled_ns for run in (plain, fp8, w4a16)]
    assert ttft[1] < 0.7 * ttft[0]  # the H100 computes in 8 bits
    assert ttft[2] == pytest.approx(ttft[0], rel=0.1)  # four bits are unpacked to sixteen
