"""Cases 14, 17 and 18: a cap on running requests that looks like something else."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from sim.capacity import Diagnosis, find_capacity
from sim.capacity.diagnosis import diagnose
from sim.capacity.point import Point
from sim.records import RunRecord
from sim.results.metrics import RunMetrics
from sim.results.steadiness import littles_law
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.cases.build import S, measured, one_class, scenario, write_profile

# ---- case 14: p95 113 s at 10 requests/s with the KV cache 10 % used ----


def ten_per_second(folder: Path, max_num_seqs: int) -> Scenario:
    """2,860 requests at 10/s through a client that has 36 in flight: 32 running and 4 waiting.

    The rates 7.14/s with 32 seats and 7.75/s with 36 give the step, 15.9 ms + 0.2 ms a request; length of the run and
    pool are those that give p95 113.6 s and 10 % KV.
    """
    write_profile(folder, floor_us=15_840, per_decode_us=204, per_token_us=10)
    return scenario(
        folder,
        {
            "kind": "closed_loop",
            "num_requests": 2_860,
            "request_rate": 10,
            "max_concurrency": 36,
            "classes": one_class(64, 200),
        },
        objectives=["ttft.p95 <= 500ms"],
        max_model_len=4096,
        max_num_seqs=max_num_seqs,
        num_gpu_blocks_override=4_000,
    )


def p95_s(record: RunRecord) -> float:
    """Returns the 95th percentile of the time since the client wanted to send, in seconds."""
    return float(np.percentile([request.finish_ns - request.queued_ns for request in record.requests], 95)) / S


def test_case_14_the_seats_are_the_bottleneck(tmp_path: Path) -> None:
    """Running pegged at 32, waiting 3 to 6, KV 10 %, 7.14 requests/s, p95 113.6 s: max_num_seqs, not the KV cache."""
    case = ten_per_second(tmp_path, 32)
    record, metrics = measured(case)
    assert metrics.server.running.mean == pytest.approx(32, abs=0.5)
    assert metrics.server.running.max == 32
    assert 3 <= (metrics.server.waiting.mean or 0) <= 6
    assert metrics.server.kv.max == pytest.approx(0.10, abs=0.03)
    assert metrics.throughput.completed == pytest.approx(7.14, rel=0.01)
    assert p95_s(record) == pytest.approx(113.6, rel=0.01)
    diagnosis = diagnose(Point.of(None, [0], [metrics], case.objectives))
    assert diagnosis is not None
    assert (diagnosis.resource, diagnosis.cure) == ("max_num_seqs", "raise max_num_seqs")
    assert "100 % of it while max_num_seqs (32) requests were running" in diagnosis.evidence


def test_case_14_raising_max_num_seqs_lowers_p95(tmp_path: Path) -> None:
    """p95 113.6 -> 83.4 s after raising it; nothing waits in the server any more."""
    case = ten_per_second(tmp_path, 64)
    record, metrics = measured(case)
    assert p95_s(record) == pytest.approx(83.4, rel=0.01)
    assert metrics.server.waiting.mean == 0
    assert Point.of(None, [0], [metrics], case.objectives).holds


# ---- case 17: what is the operating point? ----

TPOT_MS = [[1, 21.9], [2, 22.0], [4, 22.1], [8, 22.3], [64, 27.5], [128, 36.0], [256, 53.1]]
LEVELS = (1, 2, 4, 8, 64, 128, 256, 512)


def a6000(folder: Path, objective: str, search: dict[str, float | str] | None = None) -> Scenario:
    """512 requests of 20 prompt and 51 output tokens; the steps are the measured TPOT by concurrency.

    The prompts' length is not given: 20 tokens of 90 us are what TTFT p95 0.517 s at 256 suggests.
    """
    write_profile(
        folder,
        decode_table_us=[[n, 1000 * ms] for n, ms in TPOT_MS],
        per_token_us=90,
        client_latency={"request_ms": 40},
    )
    return scenario(
        folder,
        {"kind": "closed_loop", "num_requests": 512, "classes": one_class(20, 51)},
        server={"version": "0.23.0", "gpu": "a6000"},
        objectives=[objective],
        search=search,
        max_model_len=4096,
    )


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RunMetrics]:
    case = a6000(tmp_path_factory.mktemp("case17"), "goodput(ttft <= 1s) >= 95%")
    return {level: measured(case, load=level)[1] for level in LEVELS}


def goodput_share(metrics: RunMetrics) -> float:
    [share] = metrics.total.goodput.values()
    assert share is not None
    return share


def test_case_17_the_sweep(sweep: dict[int, RunMetrics]) -> None:
    """64/128/256/512: 2127.6/3138.1/4039.9/3896.1 tok/s, within 4 % to 256, and 8 % beyond."""
    for level, given, error in ((64, 2127.6, 0.04), (128, 3138.1, 0.04), (256, 4039.9, 0.04), (512, 3896.1, 0.08)):
        assert sweep[level].throughput.output_tokens == pytest.approx(given, rel=error)
    for level, given_s, error in ((64, 0.163, 0.06), (128, 0.325, 0.14), (256, 0.517, 0.04), (512, 3.564, 0.04)):
        ttft_ms = sweep[level].total.latency["ttft"].percentiles[95.0]
        assert ttft_ms == pytest.approx(1000 * given_s, rel=error)


def test_case_17_at_512_half_of_the_requests_wait_one_service_time(sweep: dict[int, RunMetrics]) -> None:
    """max_num_seqs is 256 by default: goodput falls from 100 % to 50 %, and the other half waits for the first."""
    assert [goodput_share(sweep[level]) for level in LEVELS] == [1.0] * 7 + [0.5]
    assert sweep[512].max_num_seqs == 256
    assert sweep[512].server.running.max == 256
    queue, service = sweep[512].total.latency["queue"], sweep[256].total.latency["e2el"]
    assert queue.percentiles[95.0] == pytest.approx(service.percentiles[50.0], rel=0.06)


def test_case_17_the_operating_point_is_256(sweep: dict[int, RunMetrics]) -> None:
    """Of the levels tried, 256 gives the most tokens that meet the objective, and beyond it nothing is gained."""
    good = {level: goodput_share(sweep[level]) * (sweep[level].throughput.output_tokens or 0) for level in LEVELS}
    assert max(good, key=lambda level: good[level]) == 256
    assert sweep[512].throughput.output_tokens == pytest.approx(sweep[256].throughput.output_tokens, rel=0.02)


def test_case_17_the_search_stops_at_the_seats_and_names_them(tmp_path: Path) -> None:
    """The largest concurrency with TTFT p95 <= 1 s: 256, and the twentieth of the requests that p95 forgives."""
    search: dict[str, float | str] = {"vary": "max_concurrency", "from": 64, "to": 512}
    result = find_capacity(a6000(tmp_path, "ttft.p95 <= 1s", search), simulate)
    assert result.value is not None
    assert 256 <= result.value <= 256 * 1.1
    assert result.binding_objective == "ttft.p95 <= 1s"
    assert result.diagnosis is not None
    assert result.diagnosis.resource == "max_num_seqs"
    assert "max_num_seqs (256)" in result.diagnosis.evidence


def test_case_17_at_262_the_few_who_break_the_objective_wait_for_a_seat(tmp_path: Path) -> None:
    """Most of the waiting is that of the crowd that comes at once, for the first steps; the last six wait for seats."""
    case = a6000(tmp_path, "ttft.p99 <= 1s")
    _, metrics = measured(case, load=262)
    reasons = metrics.server.wait_reasons
    assert reasons.token_budget > reasons.max_num_seqs > 0
    assert metrics.server.tail_wait_reasons[99.0].max_num_seqs > 0.8
    diagnosis = diagnose(Point.of(262, [0], [metrics], case.objectives))
    assert diagnosis is not None
    assert diagnosis.resource == "max_num_seqs"


# ---- case 18: TTFT 144 s with a flat TPOT of 18 ms ----


def rtx_4090(folder: Path, output_tokens: int) -> tuple[RunRecord, RunMetrics, Diagnosis | None]:
    """80 requests at 1/s on a server that admits four: the rate and the number that fit TTFT at 512 and 1,024."""
    write_profile(folder, floor_us=18_000, per_token_us=100, client_latency={"request_ms": 160})
    case = scenario(
        folder,
        {
            "kind": "open_loop",
            "num_requests": 80,
            "request_rate": 1,
            "arrivals": "constant",
            "classes": one_class(200, output_tokens),
        },
        server={"gpu": "rtx-4090"},
        objectives=["ttft.p95 <= 1s"],
        max_model_len=4096,
        max_num_seqs=4,
    )
    record, metrics = measured(case)
    return record, metrics, diagnose(Point.of(None, [0], [metrics], case.objectives))


def test_case_18_littles_law_exposes_a_cap_of_about_four(tmp_path: Path) -> None:
    """Output 128/256/512/1024: in flight = rate x output x TPOT = 2.2/4.0/4.2/4.4, whatever the output."""
    given = {128: (0.95, 18.2), 256: (0.87, 18.2), 512: (0.46, 18.0), 1024: (0.24, 18.0)}
    for output_tokens, (rate, tpot) in given.items():
        record, metrics, _ = rtx_4090(tmp_path, output_tokens)
        simulated_tpot = metrics.total.latency["tpot"].mean
        simulated_rate = 80 / metrics.duration_s
        assert simulated_tpot == pytest.approx(tpot, rel=0.01)  # flat
        assert simulated_rate == pytest.approx(rate, rel=0.12)
        in_flight = simulated_rate * output_tokens * tpot / 1000
        assert in_flight == pytest.approx(2.2 if output_tokens == 128 else 4.0, abs=0.2)
        assert littles_law(record).holds


def test_case_18_ttft_grows_with_the_output(tmp_path: Path) -> None:
    """TTFT .196/3.10/49.9/144.1 s: not prefill, a queue for four seats (at 256, close to capacity, twice too long)."""
    given = {128: (0.196, 0.1), 256: (3.10, 1.1), 512: (49.9, 0.05), 1024: (144.1, 0.05)}
    for output_tokens, (ttft_s, error) in given.items():
        record, _, _ = rtx_4090(tmp_path, output_tokens)
        ttfts = [(request.first_token_ns - request.sent_ns) / S for request in record.requests]
        assert fmean(ttfts) == pytest.approx(ttft_s, rel=error)


def test_case_18_the_kv_cache_is_not_to_blame(tmp_path: Path) -> None:
    """Four requests of 1k tokens hold 4 x 57 MB: the diagnosis is the cap, at 4 % KV."""
    _, metrics, diagnosis = rtx_4090(tmp_path, 1024)
    assert metrics.server.kv.max is not None
    assert metrics.server.kv.max < 0.05
    assert metrics.server.num_preemptions == 0
    assert diagnosis is not None
    assert (diagnosis.resource, diagnosis.cure) == ("max_num_seqs", "raise max_num_seqs")
