"""A run in numbers: each is what its definition says, over the window that is stated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.records import Outcome, RunRecord
from sim.results.latency import PERCENTILES
from sim.results.metrics import RunMetrics, is_finite, summarize, summarize_window
from sim.results.window import Window, steady_window
from sim.scenario.load import scenario_from_text
from sim.scenario.model import Bound, Objective
from tests.sim.results.toys import (
    MS,
    S,
    add_gaps,
    add_step,
    empty_run,
    finished,
    open_loop_scenario,
    request,
    simulate_mm,
    users_scenario,
)


def closed(run: RunRecord, end_ns: int) -> RunRecord:
    run.end_ns = run.arrivals_end_ns = end_ns
    return run


def whole(run: RunRecord, *objectives: str) -> RunMetrics:
    return summarize_window(run, Window(0, run.end_ns, finite=True), [Objective.model_validate(o) for o in objectives])


def test_the_latencies_are_those_of_vllm_bench_serve() -> None:
    run = empty_run()
    run.requests.append(
        finished(
            0,
            1 * S,
            400 * MS,
            decode_ns=900 * MS,
            tokens=10,
            queued_ns=0,
            arrival_ns=1 * S + 10 * MS,
            scheduled_ns=1 * S + 110 * MS,
        )
    )
    add_gaps(run, 2 * S, 100 * MS, 9)
    latency = whole(closed(run, 3 * S)).total.latency
    assert latency["ttft"].mean == 400  # from the send, not from when the client wanted to send
    assert latency["e2el"].mean == 1300
    assert latency["tpot"].mean == 100  # (1300 - 400) / 9
    assert latency["itl"].mean == 100
    assert latency["queue"].mean == 100  # from the engine's receipt to the first scheduling
    assert (latency["client"].mean, latency["prefill"].mean, latency["decode"].mean) == (10, 290, 900)
    assert latency["itl"].count == 9


def test_every_result_states_the_usual_percentiles_and_those_asked_for() -> None:
    run = empty_run()
    run.requests += [finished(n, n * MS, n * MS) for n in range(1000)]
    ttft = whole(closed(run, S), "ttft.p99.9 <= 1s").total.latency["ttft"]
    assert set(ttft.percentiles) == {*PERCENTILES, 99.9}
    for q, value in ttft.percentiles.items():
        assert value == pytest.approx(float(np.percentile(np.arange(1000), q)))


def test_a_request_that_nobody_answered_counts_with_the_time_it_waited() -> None:
    run = empty_run()
    run.requests.append(finished(0, 0, 1 * S))
    run.requests.append(request(1, 0, finish_ns=60 * S, outcome=Outcome.TIMED_OUT))
    run.requests.append(request(2, 10 * S))  # still waiting when the run ends
    metrics = whole(closed(run, 100 * S))
    ttft = metrics.total.latency["ttft"]
    assert (ttft.count, ttft.num_censored, ttft.max) == (3, 2, 90_000)
    assert metrics.total.latency["e2el"].max == 90_000
    assert metrics.total.latency["queue"].num_censored == 2
    assert metrics.total.latency["tpot"].mean is None
    assert metrics.total.num_unfinished == 1
    assert metrics.total.errors == {"timed_out": 1}
    assert metrics.total.error_share == 0.5  # of the two that ended


def test_a_refused_request_is_an_error_and_no_latency() -> None:
    run = empty_run()
    for number, outcome in enumerate([Outcome.REFUSED, Outcome.REJECTED, Outcome.NEVER_FITS]):
        run.requests.append(request(number, 0, finish_ns=0, arrival_ns=-1, outcome=outcome))
    metrics = whole(closed(run, S))
    assert metrics.total.errors == {"refused": 1, "rejected": 1, "never_fits": 1}
    assert metrics.total.error_share == 1.0
    assert all(summary.count == 0 and summary.mean is None for summary in metrics.total.latency.values())


def test_goodput_is_the_share_that_meets_every_bound() -> None:
    run = empty_run()
    run.requests.append(finished(0, 0, 1 * S, decode_ns=1 * S, tokens=11))  # TTFT 1 s, TPOT 100 ms
    run.requests.append(finished(1, 0, 3 * S, decode_ns=1 * S, tokens=11))  # TTFT too long
    run.requests.append(finished(2, 0, 1 * S, decode_ns=4 * S, tokens=11))  # TPOT too long
    run.requests.append(request(3, 0, finish_ns=1 * S, outcome=Outcome.TIMED_OUT))
    run.requests.append(request(4, 0))  # ten seconds without a token: already lost
    run.requests.append(request(5, 9 * S))  # nothing is known of it
    total = whole(closed(run, 10 * S), "goodput(ttft <= 2s, tpot <= 200ms) >= 95%").total
    assert total.goodput == {(Bound("ttft", 2.0), Bound("tpot", 0.2)): 1 / 5}


def test_without_a_goodput_objective_the_latency_bounds_make_one() -> None:
    run = empty_run()
    run.requests += [finished(0, 0, 1 * S), finished(1, 0, 3 * S)]
    metrics = whole(closed(run, 10 * S), "ttft.p95 <= 2s", "ttft.p95[only] <= 1s", "itl.p95 <= 80ms")
    assert metrics.bounds == (Bound("ttft", 2.0),)
    assert metrics.total.goodput[metrics.bounds] == 0.5


def test_requests_and_tokens_are_counted_where_they_happen() -> None:
    run = empty_run()
    run.requests.append(finished(0, 1 * S, 1 * S, decode_ns=2 * S, tokens=3, num_prompt_tokens=7))
    run.requests.append(finished(1, 5 * S, 1 * S, decode_ns=9 * S, tokens=3, num_prompt_tokens=70))
    add_gaps(run, 3 * S, 1 * S, 1)
    add_gaps(run, 4 * S, 1 * S, 1)
    add_gaps(run, 12 * S, 6 * S, 1)
    add_gaps(run, 15 * S, 3 * S, 1)
    run.end_ns, run.arrivals_end_ns = 15 * S, 10 * S
    rates = summarize_window(run, Window(0, 10 * S, finite=False)).throughput
    assert rates.offered == 0.2
    assert rates.completed == 0.1
    assert rates.output_tokens == 0.4  # two first tokens and two more; the drain does not count
    assert rates.prompt_tokens == 7.7
    assert rates.total_tokens == pytest.approx(8.1)


def test_over_a_whole_run_the_tokens_are_those_that_the_requests_got() -> None:
    run = simulate_mm(open_loop_scenario("ttft.p95 <= 1s"), seed=3, load=5)
    metrics = whole(run)
    assert metrics.throughput.output_tokens is not None
    assert metrics.throughput.output_tokens * metrics.window.length_s == pytest.approx(metrics.total.num_output_tokens)


def test_the_window_is_the_time_between_warm_up_and_the_last_arrival() -> None:
    run = empty_run()
    run.end_ns, run.arrivals_end_ns = 120 * S, 100 * S
    run.requests += [finished(n, n * 10 * S, n * S) for n in range(12)]
    assert steady_window(run, warm_up_ns=20 * S) == Window(20 * S, 100 * S, finite=False)
    assert steady_window(run, warm_up_ns=20 * S, finite=True) == Window(20 * S, 120 * S, finite=True)
    metrics = summarize_window(run, steady_window(run, warm_up_ns=20 * S))
    assert metrics.total.num_requests == 9  # sent at 20, 30, …, 100 s: both ends belong
    assert metrics.window.sentence() == "steady-state window: requests sent from 20 s to 100 s of each run"
    whole_run = Window(0, 120 * S, finite=True)
    assert whole_run.sentence() == "window: the whole run, 120 s"
    assert Window(5 * S, 120 * S, finite=True).sentence() == "window: the whole run after a warm-up of 5 s, to 120 s"


def test_a_run_that_ends_before_its_warm_up_has_no_numbers() -> None:
    run = closed(empty_run(), 5 * S)
    run.requests.append(finished(0, 1 * S, 1 * S))
    metrics = summarize_window(run, Window(60 * S, 5 * S, finite=True))
    assert metrics.window.sentence() == "empty window: the run ended at 5 s, its warm-up at 60 s"
    assert metrics.total.num_requests == 0
    assert metrics.throughput.offered is None
    assert metrics.throughput.total_tokens is None
    assert metrics.server.running.mean is None
    assert metrics.server.busy is None


@pytest.mark.parametrize(("took_s", "warned"), [(1, False), (30, True)])
def test_a_run_that_only_fills_the_server_is_said_to_be_short(took_s: int, warned: bool) -> None:
    run = empty_run()
    run.requests += [finished(n, (100 + n) * S, took_s * S) for n in range(100)]
    run.end_ns, run.arrivals_end_ns = 300 * S, 200 * S
    warnings = summarize(run, open_loop_scenario("ttft.p95 <= 1s")).warnings
    assert [text.split(",")[0] for text in warnings] == (
        ["short run: requests come for 99 s and take 30 s on average"] if warned else []
    )
    assert summarize(run, users_scenario("ttft.p95 <= 1s")).warnings == ()  # users wait for their answers


@pytest.mark.parametrize(
    ("workload", "finite"),
    [
        ("kind: open_loop, request_rate: 3", False),
        ("kind: open_loop, request_rate: 3, num_requests: 9", False),
        ("kind: open_loop, request_rate: inf, num_requests: 9", True),
        ("kind: open_loop, request_rate: inf, arrivals: all_at_once, num_requests: 9", True),
        ("kind: closed_loop, num_requests: 9, max_concurrency: 2", True),
    ],
)
def test_finite_workloads_count_whole(workload: str, finite: bool) -> None:
    scenario = scenario_from_text(
        f"""
name: toy
server: {{kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090}}
workload: {{{workload}, classes: [{{name: a, prompt_tokens: 1, output_tokens: 1}}]}}
run: {{duration: 10s}}
"""
    )
    assert is_finite(scenario) is finite
    run = empty_run()
    run.requests += [finished(0, 0, S), finished(1, 4 * S, S)]
    run.end_ns, run.arrivals_end_ns = 9 * S, 8 * S
    last_send_ends_it = not finite and "num_requests" in workload
    assert summarize(run, scenario).window.end_ns == (9 * S if finite else 4 * S if last_send_ends_it else 8 * S)


def test_classes_are_summed_up_apart() -> None:
    run = empty_run()
    run.class_names = ("chat", "document")
    run.requests += [
        finished(n, 0, n * S, class_id=n % 2, num_prompt_tokens=10 + n, num_cached_tokens=n) for n in range(4)
    ]
    add_gaps(run, S, 10 * MS, 5, class_id=0)
    add_gaps(run, S, 30 * MS, 1, class_id=1)
    metrics = whole(closed(run, 10 * S))
    assert [metrics.classes[name].num_requests for name in ("chat", "document")] == [2, 2]
    assert metrics.classes["document"].latency["ttft"].mean == 2000
    assert metrics.classes["chat"].latency["itl"].mean == 10
    assert metrics.classes["document"].latency["itl"].mean == 30
    assert metrics.total.latency["itl"].mean == pytest.approx(80 / 6)
    assert metrics.classes["document"].num_cached_tokens == 4


def test_server_use_is_weighted_by_time_and_idle_time_counts_as_nothing() -> None:
    run = empty_run(num_gpu_blocks=101)
    add_step(run, 0, 2 * S, running=2, free=50, queries=100, hits=25)
    add_step(run, 2 * S, 3 * S, running=4, waiting=3, free=10, preempted=2, queries=100, hits=50)
    add_step(run, 8 * S, 10 * S, running=1, free=90)
    use = whole(closed(run, 10 * S)).server
    assert (use.running.mean, use.running.max) == ((4 + 4 + 2) / 10, 4)
    assert (use.waiting.mean, use.waiting.max) == (0.3, 3)
    assert use.kv.mean == pytest.approx((2 * 0.5 + 0.9 + 2 * 0.1) / 10)
    assert use.kv.max == pytest.approx(0.9)
    assert (use.busy, use.num_steps, use.num_preemptions) == (0.5, 3, 2)
    assert use.prefix_hit_rate == 75 / 200


def test_a_step_counts_only_for_its_part_in_the_window() -> None:
    run = empty_run()
    add_step(run, 0, 4 * S, running=4)
    add_step(run, 4 * S, 8 * S, running=1)
    run.end_ns = run.arrivals_end_ns = 8 * S
    use = summarize_window(run, Window(3 * S, 6 * S, finite=False)).server
    assert use.running.mean == pytest.approx((4 + 1 + 1) / 3)
    assert use.num_steps == 1  # only the first ends in it


def test_overlapping_steps_of_an_asynchronous_engine_are_not_counted_twice() -> None:
    run = empty_run()
    add_step(run, 0, 2 * S, running=1)
    add_step(run, 1 * S, 4 * S, running=1)  # scheduled while the first executes
    use = whole(closed(run, 4 * S)).server
    assert (use.busy, use.running.mean) == (1.0, 1.0)
    assert use.decode_step_ms == 2000


def test_replicas_are_summed() -> None:
    run = empty_run(num_replicas=2)
    add_step(run, 0, 4 * S, running=3, replica=0, free=0)
    add_step(run, 1 * S, 2 * S, running=2, replica=1, free=50)
    add_step(run, 4 * S, 8 * S, running=4, replica=1, free=100)
    use = whole(closed(run, 8 * S)).server
    assert use.running.max == 5
    assert use.running.mean == pytest.approx((12 + 2 + 16) / 8)
    assert use.kv.max == pytest.approx(0.75)
    assert use.busy == pytest.approx(9 / 16)


def test_what_waiting_requests_wait_for_follows_the_schedulers_order() -> None:
    run = empty_run(max_num_seqs=4)
    add_step(run, 0, 1 * S, running=4, waiting=2, prefill=96, decodes=4)  # full list (and full budget)
    add_step(run, 1 * S, 2 * S, running=3, waiting=1, prefill=97, decodes=3)  # full budget
    add_step(run, 2 * S, 3 * S, running=3, waiting=1, prefill=0, decodes=3, free=5)  # neither: blocks
    add_step(run, 3 * S, 4 * S, running=4, waiting=4, prefill=0, decodes=4, preempted=1)  # blocks for those running
    reasons = whole(closed(run, 4 * S)).server.wait_reasons
    assert (reasons.max_num_seqs, reasons.token_budget, reasons.kv_blocks) == (2 / 8, 1 / 8, 5 / 8)
    unchunked = empty_run()
    add_step(unchunked, 0, 1 * S, running=1, waiting=1, prefill=60, decodes=1, free=90)  # a prompt of 60 does not fit
    assert whole(closed(unchunked, S)).server.wait_reasons.token_budget == 1
    idle = whole(closed(empty_run(), S)).server.wait_reasons
    assert (idle.max_num_seqs, idle.token_budget, idle.kv_blocks) == (0, 0, 0)


def test_the_tail_waits_for_something_else_than_the_crowd() -> None:
    run = empty_run(max_num_seqs=4)
    run.requests += [finished(n, 0, 2 * S, scheduled_ns=S) for n in range(98)]  # all wait for the first step's budget
    run.requests += [finished(98 + n, 0, 9 * S, scheduled_ns=8 * S) for n in range(2)]  # and two for a seat
    add_step(run, 0, S, running=3, waiting=100, prefill=97, decodes=3)
    add_step(run, S, 8 * S, running=4, waiting=2, decodes=4)
    add_step(run, 8 * S, 9 * S, running=2, decodes=2)
    server = whole(closed(run, 9 * S)).server
    assert server.wait_reasons.token_budget == pytest.approx(100 / 114)
    assert server.tail_wait_reasons[99.0].max_num_seqs == pytest.approx(7 / 8)
    assert server.tail_wait_reasons[99.0].token_budget == pytest.approx(1 / 8)
    assert server.tail_wait_reasons[50.0] == server.wait_reasons


def test_waiting_is_counted_from_the_arrival_to_the_scheduling_within_a_step() -> None:
    run = empty_run(max_num_seqs=4)
    run.requests.append(finished(0, 500 * MS, 3 * S, scheduled_ns=2 * S + 250 * MS))
    add_step(run, 0, 1 * S, running=4, waiting=1, decodes=4)
    add_step(run, 1 * S, 2 * S, running=3, waiting=1, prefill=97, decodes=3)
    add_step(run, 2 * S, 3 * S, running=3, waiting=1, decodes=3, free=5)
    tail = whole(closed(run, 4 * S)).server.tail_wait_reasons[95.0]
    assert (tail.max_num_seqs, tail.token_budget, tail.kv_blocks) == pytest.approx((2 / 7, 4 / 7, 1 / 7))


def test_nobody_in_the_queue_waits_for_nothing() -> None:
    tail = whole(closed(empty_run(), S)).server.tail_wait_reasons[95.0]
    assert (tail.max_num_seqs, tail.token_budget, tail.kv_blocks) == (0, 0, 0)


def test_steps_with_and_without_prompt_chunks_are_told_apart() -> None:
    run = empty_run()
    add_step(run, 0, 10 * MS, running=4, decodes=4)
    add_step(run, 10 * MS, 100 * MS, running=5, decodes=4, prefill=96)
    use = whole(closed(run, S)).server
    assert (use.decode_step_ms, use.mixed_step_ms) == (10, 90)
    assert use.full_step_share == 0.9


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from(list(Outcome)), st.integers(0, 1)),
        max_size=30,
    ),
    st.integers(0, 60),
)
def test_every_request_of_the_window_is_counted_once(drawn: list[tuple[int, int, Outcome, int]], warm_up: int) -> None:
    run = empty_run()
    run.class_names = ("a", "b")
    for number, (sent, took, outcome, class_id) in enumerate(drawn):
        if outcome is Outcome.FINISHED:
            run.requests.append(finished(number, sent * S, took * S, class_id=class_id))
        elif outcome is Outcome.UNFINISHED:
            run.requests.append(request(number, sent * S, class_id=class_id))
        else:
            run.requests.append(
                request(number, sent * S, finish_ns=(sent + took) * S, outcome=outcome, class_id=class_id)
            )
    metrics = summarize_window(closed(run, 100 * S), Window(warm_up * S, 100 * S, finite=True))
    total = metrics.total
    assert total.num_requests == sum(each.sent_ns >= warm_up * S for each in run.requests)
    assert total.num_requests == total.num_finished + total.num_unfinished + sum(total.errors.values())
    assert total.num_requests == sum(group.num_requests for group in metrics.classes.values())
    assert total.latency["ttft"].count == sum(group.latency["ttft"].count for group in metrics.classes.values())
