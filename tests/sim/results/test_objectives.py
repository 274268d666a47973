"""An objective is judged on what it names, and says so when there is nothing to judge."""

import math

import pytest

from sim.records import Outcome, RunRecord
from sim.results.metrics import RunMetrics, summarize_window
from sim.results.objectives import ObjectiveResult, evaluate
from sim.results.window import Window
from sim.scenario.model import Objective
from tests.sim.results.toys import MS, S, add_gaps, add_step, empty_run, finished, request


def some_run() -> RunRecord:
    run = empty_run()
    run.class_names = ("chat", "idle", "failing")
    run.requests += [finished(n, n * S, (n + 1) * 100 * MS, decode_ns=500 * MS, tokens=6) for n in range(9)]
    run.requests.append(request(9, 0, class_id=2, arrival_ns=-1, finish_ns=0, outcome=Outcome.REFUSED))
    add_gaps(run, 5 * S, 100 * MS, 45)
    add_step(run, 0, 5 * S, running=1, preempted=3)
    run.end_ns = run.arrivals_end_ns = 10 * S
    return run


def judged(*texts: str) -> list[ObjectiveResult]:
    objectives = [Objective.model_validate(text) for text in texts]
    run = some_run()
    metrics: RunMetrics = summarize_window(run, Window(0, run.end_ns, finite=True), objectives)
    return evaluate(objectives, metrics)


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        ("ttft.p50 <= 0.5s", 0.5, True),
        ("ttft.p50 <= 499ms", 0.5, False),
        ("ttft.mean[chat] <= 2s", 0.5, True),
        ("ttft.max <= 0.5s", 0.9, False),
        ("tpot.p95 <= 100ms", 0.1, True),
        ("itl.p99.9 <= 80ms", 0.1, False),
        ("e2el.p50 <= 1s", 1.0, True),
        ("queue.p95 <= 1ms", 0.0, True),
        ("errors <= 10%", 0.1, True),
        ("errors <= 0.1%", 0.1, False),
        ("errors[chat] <= 0.1%", 0.0, True),
        ("goodput(ttft <= 500ms) >= 50%", 0.5, True),
        ("goodput(ttft <= 500ms) >= 51%", 0.5, False),
        ("preemptions <= 2", 3, False),
        ("duration <= 8h", 10.0, True),
        ("output_throughput >= 5.4 tok/s", 5.4, True),
        ("request_throughput >= 1 req/s", 0.9, False),
    ],
)
def test_an_objective_is_judged_in_its_own_unit(text: str, value: float, met: bool) -> None:
    (result,) = judged(text)
    assert result.value == pytest.approx(value)
    assert result.met is met
    assert result.note == ""
    assert (result.excess <= 1) is met


def test_excess_is_the_ratio_of_measure_and_bound_on_either_side() -> None:
    below, above, never = judged("ttft.max <= 0.3s", "request_throughput >= 1.8", "errors <= 0%")
    assert below.excess == pytest.approx(3)
    assert above.excess == pytest.approx(2)
    assert never.excess == math.inf


def test_a_class_that_sent_nothing_leaves_nothing_to_judge() -> None:
    (result,) = judged("ttft.p95[idle] <= 2s")
    assert (result.value, result.met, result.excess) == (None, None, 0)
    assert result.note == "no data: no request of class idle was sent in the window"


def test_a_class_in_which_all_fail_does_not_meet_its_bound() -> None:
    (result,) = judged("ttft.p95[failing] <= 2s")
    assert (result.value, result.met, result.excess) == (None, False, math.inf)
    assert result.note == "no data: 1 of 1 requests of class failing in the window ended in an error"


def test_a_percentile_that_no_request_can_have_is_not_a_number() -> None:
    run = empty_run()
    run.requests.append(finished(0, 0, S))  # one token: no TPOT, no gap
    run.end_ns = run.arrivals_end_ns = S
    objectives = [Objective.model_validate("tpot.p95 <= 1s"), Objective.model_validate("itl.p95 <= 1s")]
    results = evaluate(objectives, summarize_window(run, Window(0, S, finite=True), objectives))
    assert [result.met for result in results] == [None, None]
    assert results[0].note == "no data: none of the 1 requests in the window has a tpot"
