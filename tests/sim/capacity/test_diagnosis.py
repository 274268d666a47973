"""Each rule fires on the run that it is about, and its evidence carries the numbers."""

import pytest

from sim.capacity import Diagnosis, Point
from sim.capacity.diagnosis import diagnose
from sim.records import Outcome, RequestRecord, RunRecord
from sim.results.metrics import summarize_window
from sim.results.window import Window
from sim.scenario.model import Objective
from tests.sim.results.toys import MS, S, add_gaps, add_step, empty_run, finished, request


def found(run: RunRecord, objective: str, *, finite: bool = True) -> Diagnosis | None:
    objectives = [Objective.model_validate(objective)]
    run.end_ns = run.arrivals_end_ns = max(run.end_ns, 100 * S)
    metrics = summarize_window(run, Window(0, run.end_ns, finite=finite), objectives)
    return diagnose(Point.of(10, [0], [metrics], objectives))


def expect(run: RunRecord, objective: str, resource: str, *evidence: str) -> None:
    diagnosis = found(run, objective)
    assert diagnosis is not None
    assert diagnosis.resource == resource
    for text in evidence:
        assert text in diagnosis.evidence
    assert diagnosis.cure


def queued(number: int, queue_s: float, prefill_s: float = 0.1, **fields: object) -> RequestRecord:
    scheduled = round(queue_s * S)
    return finished(number, 0, scheduled + round(prefill_s * S), scheduled_ns=scheduled, **fields)


def test_what_holds_needs_no_diagnosis() -> None:
    run = empty_run()
    run.requests.append(queued(0, 1))
    assert found(run, "ttft.p95 <= 2s") is None


def test_a_full_running_list_with_kv_to_spare() -> None:
    run = empty_run(max_num_seqs=32)  # case 14: running pegged at 32, waiting 3 to 6, KV at 10 %
    run.requests += [queued(n, 80) for n in range(10)]
    add_step(run, 0, 90 * S, running=32, waiting=5, free=90)
    expect(run, "ttft.p95 <= 2s", "max_num_seqs", "max_num_seqs (32)", "100 % of it", "KV cache 9 % used")
    diagnosis = found(run, "ttft.p95 <= 2s")
    assert diagnosis is not None
    assert diagnosis.cure == "raise max_num_seqs"


def test_a_full_budget_at_low_kv_is_prefill() -> None:
    run = empty_run()  # case 20: requests queue at 16 % KV, since prefill is a rate and KV a stock
    run.requests += [queued(n, 20) for n in range(10)]
    add_step(run, 0, 90 * S, running=3, waiting=5, prefill=97, decodes=3, free=84)
    expect(run, "queue.p95 <= 2s", "token_budget", "100 tokens", "2.7 of 4 running", "KV cache 14.4 % used")


def test_a_full_kv_cache_holds_the_queue() -> None:
    run = empty_run()
    run.requests += [queued(n, 20) for n in range(10)]
    add_step(run, 0, 90 * S, running=3, waiting=5, free=1)
    expect(run, "ttft.p95 <= 2s", "kv_blocks", "for free KV blocks", "99 % at most")


def test_preemptions_slow_every_token() -> None:
    run = empty_run()  # case 16: the eighth user makes TPOT four times as long, at 98.9 % KV
    run.requests += [finished(n, 0, S, decode_ns=44 * S, tokens=101, num_preemptions=1) for n in range(8)]
    add_step(run, 0, 90 * S, running=8, free=1, preempted=8)
    expect(run, "tpot.p50 <= 200ms", "kv_blocks", "1 preemptions a request", "99 % at most")
    expect(run, "preemptions <= 0", "kv_blocks")
    expect(run, "e2el.p95 <= 20s", "kv_blocks")


def test_a_long_prompt_alone_is_too_much_for_its_bound() -> None:
    run = empty_run()  # case 15: 16,000 tokens take 3.3 s to read, whoever else is there
    run.requests += [queued(n, 0, 3.345) for n in range(10)]
    add_step(run, 0, 4 * S, running=1, prefill=100, decodes=0)
    expect(run, "ttft.p50 <= 2s", "token_budget", "reading a prompt takes 3.35 s (p50)", "budget 100 tokens")


def test_prompt_chunks_hold_up_the_answers() -> None:
    run = empty_run()
    run.requests += [finished(n, 0, S, decode_ns=S, tokens=11) for n in range(4)]
    for number in range(20):
        add_step(run, number * S, number * S + 30 * MS, running=4, decodes=4)
        add_step(run, number * S + 30 * MS, number * S + 150 * MS, running=5, decodes=4, prefill=96)
    add_gaps(run, 20 * S, 150 * MS, 40)
    expect(run, "itl.p95 <= 80ms", "token_budget", "takes 120 ms on average", "one that only decodes 30 ms")


def test_a_slow_decode_is_the_gpu() -> None:
    run = empty_run()
    run.requests += [finished(n, 0, S, decode_ns=20 * S, tokens=101) for n in range(4)]
    add_step(run, 0, 200 * MS, running=4, decodes=4)
    add_gaps(run, 20 * S, 200 * MS, 400)
    expect(run, "itl.p95 <= 80ms", "decode_speed", "a step takes 200 ms on average")
    expect(run, "e2el.p50 <= 10s", "decode_speed")


def test_answers_squeezed_between_full_steps_are_slow_for_the_prompts() -> None:
    run = empty_run()
    run.requests += [finished(n, 0, S, decode_ns=50 * S, tokens=101) for n in range(4)]
    add_step(run, 0, 50 * S, running=4, decodes=3, prefill=97)
    expect(run, "e2el.p50 <= 10s", "token_budget", "100 % of the busy time goes into full steps")


@pytest.mark.parametrize(
    ("outcome", "resource", "evidence"),
    [
        (Outcome.REJECTED, "admission_limit", "3 requests were answered 503"),
        (Outcome.REFUSED, "max_model_len", "3 requests were answered 400"),
        (Outcome.NEVER_FITS, "kv_blocks", "3 requests are longer than the whole KV cache"),
    ],
)
def test_an_error_names_its_resource(outcome: Outcome, resource: str, evidence: str) -> None:
    run = empty_run()
    run.requests += [request(n, 0, finish_ns=0, outcome=outcome) for n in range(3)]
    run.requests.append(queued(3, 0))
    expect(run, "errors <= 0.1%", resource, evidence)
    expect(run, "goodput(ttft <= 2s) >= 95%", resource)


def test_a_timeout_is_a_latency_carried_too_far() -> None:
    run = empty_run()
    run.requests += [request(n, 0, finish_ns=60 * S, outcome=Outcome.TIMED_OUT) for n in range(9)]
    add_step(run, 0, 60 * S, running=4, waiting=9)
    expect(run, "errors <= 1%", "max_num_seqs", "requests wait 60 s in the queue (mean)")


def test_an_idle_server_is_not_offered_more() -> None:
    run = empty_run()
    run.requests.append(queued(0, 0))
    add_step(run, 0, 10 * S, running=1)
    expect(run, "request_throughput >= 5", "client", "busy only 10 % of the time and nothing waits")


def test_time_outside_the_engine_is_the_clients() -> None:
    run = empty_run()  # case 19: a name lookup that costs 2.1 s a request
    run.requests += [finished(n, 0, 2300 * MS, arrival_ns=2100 * MS, scheduled_ns=2100 * MS) for n in range(5)]
    add_step(run, 0, 3 * S, running=1)
    expect(run, "ttft.p50 <= 1s", "client", "2.1 s (p50) pass outside the engine")


def test_bursts_are_noted() -> None:
    run = empty_run()
    run.requests += [queued(n, 0, 0.05) for n in range(95)] + [queued(95 + n, 5) for n in range(5)]
    add_step(run, 0, 10 * S, running=4, waiting=5)
    diagnosis = found(run, "ttft.p99 <= 2s")
    assert diagnosis is not None
    assert diagnosis.notes == ("bursts: TTFT p99 is 102 times its p50 while the server is busy 10 % of the time",)
