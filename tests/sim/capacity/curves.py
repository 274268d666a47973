"""Servers whose curve of latency over load is given, so that the answer of a search is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sim.records import RequestLog, RunRecord
from sim.scenario.model import Scenario
from tests.sim.results.toys import S, empty_run, finished

Curve = Callable[[float, int], float]
"""(load, seed) -> the TTFT in seconds that every request sees."""


@dataclass
class Served:
    """A simulation in which every request has the TTFT of the curve; remembers what it was asked."""

    curve: Curve
    asked: list[tuple[float | None, int]] = field(default_factory=list)
    num_requests: int = 20

    def __call__(self, scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
        self.asked.append((load, seed))
        run = empty_run()
        ttft_ns = round(self.curve(load if load is not None else 0.0, seed) * S)
        run.requests = RequestLog(finished(n, (100 + n) * S, ttft_ns) for n in range(self.num_requests))
        run.arrivals_end_ns = 1000 * S
        run.end_ns = max(run.arrivals_end_ns, max((each.finish_ns for each in run.requests), default=0))
        return run


def proportional(*knees: float) -> Curve:
    """TTFT grows with the load and reaches 1 s at the seed's knee."""
    return lambda load, seed: load / knees[seed % len(knees)]
