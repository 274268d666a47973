"""Whether a run, or the mean over several, keeps what the scenario promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sim.results.metrics import GroupMetrics, RunMetrics
from sim.scenario.model import Objective


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """One objective, judged.

    Attributes:
        objective: the promise.
        value: the measure in the objective's own unit (seconds, share, per second, count); None without data.
        met: whether it holds; None when there was nothing to judge: no data, and nothing that failed either.
        note: why there is no value, or empty.
    """

    objective: Objective
    value: float | None
    met: bool | None
    note: str = ""

    @property
    def excess(self) -> float:
        """How far beyond the bound the measure lies, as a ratio: 1 at the bound, below 1 when met.

        Without data: infinite when the objective fails for it, 0 when there was nothing to judge.
        """
        if self.value is None:
            return math.inf if self.met is False else 0.0
        over, under = (self.value, self.objective.value) if self.objective.op == "<=" else (
            self.objective.value, self.value
        )  # fmt: skip
        if under > 0:
            return over / under
        return math.inf if over > 0 else 1.0


def evaluate(objectives: Sequence[Objective], metrics: RunMetrics) -> list[ObjectiveResult]:
    """Judges each objective on one run."""
    return [judge(objective, measure(objective, metrics), group_of(objective, metrics)) for objective in objectives]


def judge(objective: Objective, value: float | None, *groups: GroupMetrics | None) -> ObjectiveResult:
    """Judges a measured value; without one, the groups of requests it would have come from say why.

    A percentile over no data is not a number. Where requests of the group ended in errors it counts as unmet; where
    none of them could have given data (none was sent, or all answers have one token) there is nothing to judge.
    """
    if value is not None:
        return ObjectiveResult(objective, value, objective.met_by(value))
    where = f" of class {objective.class_name}" if objective.class_name else ""
    present = [group for group in groups if group is not None]
    num_requests = sum(group.num_requests for group in present)
    num_errors = sum(sum(group.errors.values()) for group in present)
    if not num_requests:
        return ObjectiveResult(objective, None, None, f"no data: no request{where} was sent in the window")
    if num_errors:
        note = f"no data: {num_errors} of {num_requests} requests{where} in the window ended in an error"
        return ObjectiveResult(objective, None, False, note)
    note = f"no data: none of the {num_requests} requests{where} in the window has a {objective.metric}"
    return ObjectiveResult(objective, None, None, note)


def measure(objective: Objective, metrics: RunMetrics) -> float | None:
    """Returns what the objective bounds, in its own unit, or None without data."""
    group = group_of(objective, metrics)
    if group is None:
        return None
    match objective.metric:
        case "errors":
            return group.error_share
        case "goodput":
            return group.goodput[objective.bounds]
        case "preemptions":
            return float(metrics.server.num_preemptions if group is metrics.total else group.num_preemptions)
        case "duration":
            return metrics.duration_s
        case "output_throughput":
            return metrics.throughput.output_tokens
        case "request_throughput":
            return metrics.throughput.completed
        case latency:
            return _latency(objective, group, latency)


def group_of(objective: Objective, metrics: RunMetrics) -> GroupMetrics | None:
    """Returns the requests that the objective is about."""
    return metrics.classes.get(objective.class_name) if objective.class_name else metrics.total


def _latency(objective: Objective, group: GroupMetrics, kind: str) -> float | None:
    summary = group.latency[kind]
    match objective.statistic:
        case "mean":
            milliseconds = summary.mean
        case "max":
            milliseconds = summary.max
        case _:
            assert objective.percentile is not None, f"{objective.text} has no statistic"
            milliseconds = summary.percentiles[objective.percentile]
    return None if milliseconds is None else milliseconds / 1000
