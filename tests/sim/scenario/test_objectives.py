"""An objective says the same thing as text and as numbers."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from sim.scenario.objectives import METRICS, Bound, Objective, parse_objective

READ = TypeAdapter(Objective).validate_python


@pytest.mark.parametrize(
    "text",
    [
        "ttft.p95 <= 2s",
        "ttft.mean <= 250ms",
        "itl.p99.9[chat] <= 80ms",
        "tpot.max <= 1s",
        "e2el.p50 <= 1min",
        "queue.p90 <= 0s",
        "errors <= 0.1%",
        "goodput(ttft <= 2s, tpot <= 100ms) >= 95%",
        "goodput(e2el <= 10s)[chat] >= 99.5%",
        "duration <= 8h",
        "preemptions <= 0",
        "output_throughput >= 160 tok/s",
        "request_throughput >= 2.46 req/s",
    ],
)
def test_the_text_of_an_objective_reads_back_as_itself(text: str) -> None:
    objective = READ(text)
    assert objective.text == text
    assert READ(objective.text) == objective


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("ttft.p95 <= 2s", 0.0624, "62.4 ms"),
        ("ttft.p95 <= 2s", 0.99968, "1 s"),
        ("duration <= 8h", 9000, "2.5 h"),
        ("errors <= 0.1%", 0.01111, "1.11 %"),
        ("goodput(ttft <= 2s) >= 95%", 1.0, "100 %"),
        ("output_throughput >= 160 tok/s", 543.51, "544 tok/s"),
        ("preemptions <= 0", 3.0, "3"),
    ],
)
def test_a_measured_value_has_three_digits_and_the_unit_that_suits_it(text: str, value: float, shown: str) -> None:
    assert READ(text).show(value) == shown


def test_every_metric_is_known_to_the_reader() -> None:
    for metric in METRICS:
        assert Objective.model_fields["metric"].annotation is not None
        bounds = "(ttft <= 1s)" if metric == "goodput" else ""
        more = metric in ("goodput", "output_throughput", "request_throughput")
        stat = ".p95" if metric in ("ttft", "tpot", "itl", "e2el", "queue") else ""
        unit = "s" if stat or metric == "duration" else "%" if metric in ("goodput", "errors") else ""
        assert READ(f"{metric}{stat}{bounds} {'>=' if more else '<='} 1{unit}").metric == metric


def test_the_parts_of_an_objective() -> None:
    objective = READ("itl.p99.9[chat]<=80ms")
    assert (objective.metric, objective.percentile, objective.statistic) == ("itl", 99.9, None)
    assert (objective.op, objective.value, objective.class_name) == ("<=", 0.08, "chat")
    assert objective.stat_name == "p99.9"
    assert objective.name == "itl.p99.9[chat]"


def test_the_bounds_of_goodput_may_be_written_as_vllm_does() -> None:
    objective = READ("goodput(ttft:2s, e2el: 10s) >= 95%")
    assert objective.bounds == (Bound("ttft", 2.0), Bound("e2el", 10.0))
    assert objective.value == 0.95


def test_a_bound_is_met_on_its_own_side_and_exactly() -> None:
    assert READ("ttft.p95 <= 2s").met_by(2.0)
    assert not READ("ttft.p95 <= 2s").met_by(2.0001)
    assert READ("goodput(ttft <= 2s) >= 95%").met_by(0.95)
    assert not READ("goodput(ttft <= 2s) >= 95%").met_by(0.9499)


def test_spaces_make_no_difference() -> None:
    assert parse_objective(" ttft.p95<=2s ") == parse_objective("ttft.p95  <=  2 s")
