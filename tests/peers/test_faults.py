"""Faults found in other simulators of LLM serving, each held against this one.

Peers: BLIS (Go), sched-sim, Opal, Vidur, vllm-sr-sim, AISimulate, Dynamo replay, inference-lab. Everything about the
engine runs on the reference scheduler and on the fast path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim.capacity.runs as capacity_runs
import sim.results.latency
import sim.results.metrics as metrics_module
from sim.capacity import find_capacity
from sim.core.config import CacheConfig
from sim.deployment import plan
from sim.engine.fitted import FittedModel, StepCoefficients
from sim.engine.recorded import LinearCost
from sim.engine.step_time import Batch
from sim.errors import UserError
from sim.records import Outcome, RunRecord
from sim.results.metrics import summarize
from sim.scenario.model import Scenario
from sim.simulate import simulate
from sim.workload.build import build_workload
from tests.cases.build import MS, S, by_id, measured, one_class, scenario, sent, serve, write_profile

STEP = 10 * MS
COST = LinearCost(STEP // 1000)


@pytest.fixture(params=[False, True], ids=["fast", "reference"])
def path(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"reference": request.param}


# ---- BLIS: the engine counts as idle while its last step still runs ----


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_that_arrives_in_the_last_step_waits_for_its_end(path: dict[str, Any], asynchronous: bool) -> None:
    """A step of 406 ms runs to its end, also when nothing else is left to schedule: no second one beside it."""
    requests = [sent(0, 10, 1), sent(1, 10, 1, 100 * MS), sent(2, 10, 1, 405 * MS)]
    run = serve(requests, LinearCost(406_000), max_num_seqs=1, async_scheduling=asynchronous, **path)
    assert [by_id(run)[n].finish_ns for n in range(3)] == [406 * MS, 812 * MS, 1218 * MS]


# ---- BLIS: a block-aligned prompt that is fully cached schedules zero tokens and holds zero blocks ----


def test_a_fully_cached_prompt_still_computes_a_block_and_holds_all_its_blocks(path: dict[str, Any]) -> None:
    """64 tokens are four blocks; the second request of the same hits three and computes 16 tokens of the fourth."""
    prompt = ((7, 64),)
    run = serve([sent(0, prompt, 1), sent(1, prompt, 5, S)], COST, num_gpu_blocks=101, **path)
    second = by_id(run)[1]
    assert (second.num_cached_tokens, second.num_output_tokens) == (48, 5)
    assert run.steps.num_prefill_tokens[1] == 16
    assert run.steps.num_free_blocks[1] == 100 - 4
    assert second.first_token_ns == S + STEP


# ---- BLIS: evicting one of two blocks with the same hash loses the prefix ----


def test_evicting_a_block_keeps_its_twin(path: dict[str, Any]) -> None:
    """Requests 0 and 1 both compute the second block of one prompt; request 2 evicts the copy of 0; 3 hits that of 1.

    blocks   0 holds [1 2], then 1 holds [1 3 4], 3 a twin of 2; 2 takes all eight free ones, 2 among them
    """
    shared = (7, 32)
    requests = [
        sent(0, (shared,), 1),
        sent(1, (shared,), 12),
        sent(2, 16 * 8 - 1, 1, 2 * STEP),
        sent(3, (shared, (8, 16)), 1, 5 * STEP),
    ]
    run = serve(requests, COST, num_gpu_blocks=12, **path)
    records = by_id(run)
    assert records[1].num_cached_tokens == 16  # the twin was really computed
    assert min(run.steps.num_free_blocks) == 0  # and the pool really was used up
    assert records[2].finish_ns < records[3].scheduled_ns < records[1].finish_ns
    assert records[3].num_cached_tokens == 32


# ---- BLIS, sched-sim: preemption throws tokens away, decodes them again one by one, and overwrites TTFT ----


def preempting(path: dict[str, Any], **flags: Any) -> RunRecord:
    """Two requests of 32 + 64 tokens in a pool of nine blocks: six each at their end, so one must give way."""
    requests = [sent(0, 32, 64), sent(1, 32, 64)]
    return serve(requests, COST, num_gpu_blocks=10, enable_prefix_caching=False, **flags, **path)


def test_a_preempted_request_keeps_its_tokens_and_its_ttft(path: dict[str, Any]) -> None:
    """Both got their first token in the first step; the second is preempted later, and keeps what it had."""
    run = preempting(path)
    records = by_id(run)
    assert (records[0].num_preemptions, records[1].num_preemptions) == (0, 1)
    assert [records[n].first_token_ns for n in (0, 1)] == [STEP, STEP]
    assert [records[n].num_output_tokens for n in (0, 1)] == [64, 64]
    assert sum(run.itl.count) == 2 * 63  # no token is delivered twice


def test_a_preempted_request_is_read_again_in_one_step(path: dict[str, Any]) -> None:
    """Its prompt and the tokens it had are a prompt now: one chunk, not one step for each token."""
    run = preempting(path)
    [preempted_in] = [i for i, number in enumerate(run.steps.num_preempted) if number]
    had = sum(1 for i in range(preempted_in) if run.steps.num_decodes[i] == 2) + 1
    chunks = [tokens for tokens in run.steps.num_prefill_tokens if tokens]
    assert chunks == [64, 32 + had]
    assert len(run.steps.start_ns) == 64 + (64 - had)  # the first to its end, then the rest of the second


def test_the_longest_gap_is_the_preemption(path: dict[str, Any]) -> None:
    """The client sees one long gap between two tokens: from the preemption to the end of the recomputing step."""
    run = preempting(path)
    gaps = sorted(zip(run.itl.gap_ns, run.itl.count, strict=True))
    assert gaps[-1][1] == 1
    assert gaps[-1][0] > 20 * STEP
    assert all(gap == STEP for gap, _ in gaps[:-1])


# ---- Opal: the victim is the one with least work, at most three times ----


def test_the_victim_is_the_last_admitted_however_much_it_has_done(path: dict[str, Any]) -> None:
    """Request 1 has 160 tokens computed, request 0 has 16; FCFS preempts the last of `running` all the same."""
    requests = [sent(0, 16, 100), sent(1, 160, 60, STEP)]
    run = serve(requests, COST, num_gpu_blocks=16, enable_prefix_caching=False, **path)
    records = by_id(run)
    assert records[0].num_preemptions == 0
    assert records[1].num_preemptions > 0


def test_a_request_may_be_preempted_more_than_three_times(path: dict[str, Any]) -> None:
    """Nothing counts: the request that came last gives way as often as those before it need blocks."""
    requests = [sent(0, 16, 200), sent(1, 120, 50, 115 * STEP)]  # the prompt never fits beside the other
    flags: dict[str, Any] = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "scheduler_reserve_full_isl": False}
    run = serve(requests, COST, num_gpu_blocks=16, enable_prefix_caching=False, **flags, **path)
    assert by_id(run)[1].num_preemptions > 3
    assert by_id(run)[1].num_output_tokens == 50


def test_under_priorities_the_victim_has_the_worst(path: dict[str, Any]) -> None:
    """The largest (priority, arrival) gives way, although it was admitted first."""
    requests = [sent(0, 32, 64, priority=9), sent(1, 32, 64, STEP, priority=1)]
    run = serve(requests, COST, num_gpu_blocks=10, enable_prefix_caching=False, policy="priority", **path)
    records = by_id(run)
    assert records[0].num_preemptions > 0
    assert records[1].num_preemptions == 0


# ---- Opal: a 10-token request in the middle of a 1,000-token decode waits for it ----


@pytest.mark.parametrize(("asynchronous", "steps"), [(False, 2), (True, 3)])
def test_a_short_request_joins_a_long_decode(path: dict[str, Any], asynchronous: bool, steps: int) -> None:
    """Its first token comes after the rest of this step and one of its own; asynchronous: one was scheduled ahead."""
    requests = [sent(0, 10, 1000), sent(1, 10, 5, 4 * S + STEP // 2)]
    run = serve(requests, COST, async_scheduling=asynchronous, **path)
    ttft = by_id(run)[1].first_token_ns - by_id(run)[1].sent_ns
    assert ttft == steps * STEP - STEP // 2
    assert by_id(run)[0].finish_ns == 1000 * STEP  # which does not notice


# ---- vllm-sr-sim: service time divided by the slots twice, and an overflow queue that drops silently ----


def test_slots_saturate_and_nothing_is_dropped(path: dict[str, Any]) -> None:
    """Four slots of 10 steps serve 4 / 0.1 s = 40 requests/s of the 100 offered; all others wait, none is lost."""
    requests = [sent(i, 1, 10, i * S // 100) for i in range(500)]
    run = serve(requests, COST, max_num_seqs=4, **path)
    assert len(run.requests) == 500
    assert {request.outcome for request in run.requests} == {Outcome.FINISHED}
    assert 500 / (run.end_ns / S) == pytest.approx(40, rel=0.01)
    assert max(run.steps.num_waiting) > 250


# ---- sched-sim: the batch cap ignored in chunked mode, KV allocated for the first chunk only, over-admission ----


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_caps_hold_with_chunked_prefill(path: dict[str, Any], asynchronous: bool) -> None:
    """1,000 prompts at once: never more than 256 running, never more tokens in a step than the budget."""
    requests = [sent(i, 20 + i % 70, 30 + i % 20) for i in range(1000)]
    flags: dict[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "async_scheduling": asynchronous}
    run = serve(requests, COST, **flags, **path)
    assert max(run.steps.num_running) == 256
    tokens = [p + d for p, d in zip(run.steps.num_prefill_tokens, run.steps.num_decodes, strict=True)]
    assert max(tokens) == 2048
    assert max(run.steps.num_decodes) <= 256


def test_every_chunk_takes_its_blocks(path: dict[str, Any]) -> None:
    """A prompt of 1,000 tokens in chunks of 128 holds ceil(tokens / 16) blocks after each of them."""
    run = serve([sent(0, 1000, 1)], COST, num_gpu_blocks=101, max_num_batched_tokens=128, max_num_seqs=8, **path)
    computed = np.cumsum(run.steps.num_prefill_tokens)
    assert computed[-1] == 1000
    assert [100 - free for free in run.steps.num_free_blocks] == [-(-tokens // 16) for tokens in computed]


@pytest.mark.parametrize(("reserve", "most"), [(True, 3), (False, 4)])
def test_whole_prompts_are_reserved(path: dict[str, Any], reserve: bool, most: int) -> None:
    """Prompts of 100 blocks in a pool of 350: three are admitted; on their first chunk alone, four, and one must go."""
    requests = [sent(i, 1599, 60) for i in range(8)]
    flags: dict[str, Any] = {"max_num_batched_tokens": 512, "max_num_seqs": 64, "scheduler_reserve_full_isl": reserve}
    run = serve(requests, COST, num_gpu_blocks=351, enable_prefix_caching=False, **flags, **path)
    assert max(run.steps.num_running) == most
    assert (sum(run.steps.num_preempted) > 0) is not reserve


# ---- AISimulate: the drain at the end of a finite run hides the real rate ----


def long_answers(folder: Path, *objectives: str) -> Scenario:
    """5 requests/s for 90 s, each in the server for 40 s: it drains for 40 s after the last arrival."""
    write_profile(folder, floor_us=20_000)
    return scenario(
        folder,
        {"kind": "open_loop", "request_rate": 5, "arrivals": "constant", "classes": one_class(10, 2000)},
        objectives=objectives,
        run={"duration": "90s", "warm_up": "45s", "seeds": 1},
        max_model_len=4096,
    )


def test_neither_warm_up_nor_drain_hides_the_rate(tmp_path: Path) -> None:
    """450 requests in 130 s are 3.5/s; in the steady state it is 5/s, and the latencies of all sent then count."""
    record, metrics = measured(long_answers(tmp_path))
    assert len(record.requests) / (record.end_ns / S) < 3.5
    assert metrics.throughput.completed == pytest.approx(5, rel=0.01)
    assert metrics.throughput.output_tokens == pytest.approx(5 * 2000, rel=0.01)
    assert metrics.server.running.mean == pytest.approx(5 * 40, rel=0.01)
    assert metrics.total.num_finished == metrics.total.num_requests == 225
    assert metrics.overload is None


def test_a_load_that_meets_its_objectives_is_found(tmp_path: Path) -> None:
    """An objective on the rate holds at the rate that is served."""
    result = find_capacity(long_answers(tmp_path, "request_throughput >= 4.9", "ttft.p95 <= 100ms"), simulate)
    assert result.supported


# ---- inference-lab: full metrics recomputed every simulated second, quadratic in the length of the run ----


def test_metrics_are_computed_once_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is summed up once, after its end, by as many passes over its records whatever their number."""
    summaries, passes = [], []
    real_summary, real_pass = summarize, sim.results.latency.request_latency

    def counted_summary(run: RunRecord, case: Scenario) -> Any:
        summaries.append(run.end_ns)
        return real_summary(run, case)

    def counted_pass(*arguments: Any) -> Any:
        passes.append(len(summaries))
        return real_pass(*arguments)

    monkeypatch.setattr(capacity_runs, "summarize", counted_summary)
    monkeypatch.setattr(metrics_module, "request_latency", counted_pass)
    write_profile(tmp_path, floor_us=20_000)
    for duration in ("20s", "80s"):
        workload = {"kind": "open_loop", "request_rate": 5, "classes": one_class(10, 20)}
        case = scenario(tmp_path, workload, run={"duration": duration, "seeds": 1}, max_model_len=4096)
        find_capacity(case, simulate)
    assert len(summaries) == 2
    assert passes.count(1) == passes.count(2) > 0


# ---- Opal: the same seed on every random call ----


def test_random_streams_are_independent(tmp_path: Path) -> None:
    """Gaps, prompts and answers of one run do not repeat and do not follow one another."""
    write_profile(tmp_path, floor_us=1000)
    workload = {"kind": "open_loop", "request_rate": 50}
    classes = one_class({"exponential": {"mean": 2000}}, {"exponential": {"mean": 2000}})
    case = scenario(tmp_path, workload | {"classes": classes}, run={"duration": "60s", "seeds": 1})
    columns = [drawn(case, seed) for seed in (0, 1)]
    gaps, prompts, outputs = columns[0]
    for values in (gaps, prompts, outputs):
        assert len(set(values)) > 0.6 * len(values)
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.06
    for one, other in ((gaps, prompts), (gaps, outputs), (prompts, outputs)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.06
    for first, second in zip(*columns, strict=True):  # and another seed is another day
        number = min(len(first), len(second))
        assert abs(np.corrcoef(first[:number], second[:number])[0, 1]) < 0.06


def drawn(case: Scenario, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Returns the gaps, prompt lengths and answer lengths of a run's requests."""
    requests = build_workload(case, seed).pop_due(60 * S)
    sent_ns = [request.sent_ns for request in requests]
    gaps = [later - earlier for earlier, later in zip([0, *sent_ns], sent_ns, strict=False)]
    return gaps, [r.num_prompt_tokens for r in requests], [r.output_tokens for r in requests]


# ---- BLIS: defaults of KV blocks fall back silently to 1,000,000 ----


def test_there_is_no_default_number_of_kv_blocks() -> None:
    """The scheduler's configuration has no default for it."""
    with pytest.raises(TypeError, match="num_gpu_blocks"):
        CacheConfig()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"gpu": "rtx-9999"}, "rtx-9999"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"model": "Llama-3.1-70B-Instruct", "gpu": "rtx-4090"}, "vLLM would not start"),
    ],
)
def test_what_is_not_known_is_an_error_not_a_guess(tmp_path: Path, server: dict[str, str], message: str) -> None:
    """An unknown GPU or model, or one that does not fit, ends in one sentence and no simulation."""
    write_profile(tmp_path, floor_us=1000)
    workload = {"kind": "open_loop", "request_rate": 1, "classes": one_class(10, 10)}
    case = scenario(tmp_path, workload, server=server, run={"duration": "1s", "seeds": 1})
    with pytest.raises(UserError, match=message):
        simulate(case, seed=0)


def test_the_blocks_of_a_run_are_those_of_the_memory_budget(tmp_path: Path) -> None:
    """What is simulated is what was worked out from model, GPU and flags."""
    write_profile(tmp_path, floor_us=1000)
    workload = {"kind": "open_loop", "request_rate": 1, "classes": one_class(10, 10)}
    case = scenario(tmp_path, workload, run={"duration": "1s", "seeds": 1}, server={"gpu": "rtx-4090"})
    memory = plan(case).memory
    assert simulate(case, seed=0).num_gpu_blocks == memory.num_gpu_blocks
    assert memory.num_gpu_blocks == int(memory.kv_cache_gib * 2**30 // (memory.kv_bytes_per_token * 16))


# ---- Dynamo replay: a mixed step priced as prefill and decode, 6 to 69 % too much ----


def test_a_mixed_step_is_one_pass() -> None:
    """Decodes that ride along with a chunk cost what they compute, not a second reading of the weights."""
    model = FittedModel(StepCoefficients(floor_ns=11e6, token_ns=41e3, decode_ns=21e3, decode_context_ns=59))
    decodes, chunk = [1000] * 64, [(1984, 0)]
    mixed = model.step_time(Batch.of(decodes, chunk))
    apart = model.step_time(Batch.of(decodes)) + model.step_time(Batch.of((), chunk))
    assert model.step_time(Batch.of((), chunk)) < mixed < apart
    assert apart / mixed > 1.06
