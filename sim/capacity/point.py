"""One load, simulated with several seeds and judged.

The verdict at a load is pooled: each objective's measure is averaged over the seeds, and the average is held against
the bound. (Not the percentile of all requests together: a seed is one possible day, and a day is what an objective is
about.) The queue must not grow with the run either: a load that is overloaded in most seeds is not supported, whatever
the objectives say of the part that was simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from sim.results.metrics import RunMetrics
from sim.results.objectives import ObjectiveResult, evaluate, group_of, judge
from sim.scenario.model import Objective

STEADY_STATE = "steady state"
"""What breaks at a load where the queue grows with the run although every objective holds."""


@dataclass(frozen=True, slots=True)
class Point:
    """A load and what the simulation says of it.

    Attributes:
        load: in the unit of the search; None for a scenario that has none.
        seeds: the seeds simulated.
        runs: one result a seed.
        results: each objective judged on the mean over the seeds.
    """

    load: float | None
    seeds: tuple[int, ...]
    runs: tuple[RunMetrics, ...]
    results: tuple[ObjectiveResult, ...]

    @classmethod
    def of(
        cls, load: float | None, seeds: Sequence[int], runs: Sequence[RunMetrics], objectives: Sequence[Objective]
    ) -> Point:
        """Judges the runs of one load."""
        return cls(load, tuple(seeds), tuple(runs), tuple(_pooled(objective, runs) for objective in objectives))

    @property
    def overloaded(self) -> bool:
        """Whether the queue grows with the run in most seeds."""
        return sum(run.overload is not None for run in self.runs) * 2 > len(self.runs)

    @property
    def objectives_met(self) -> bool:
        """Whether no objective fails (one without anything to judge does not)."""
        return all(result.met is not False for result in self.results)

    @property
    def holds(self) -> bool:
        """Whether the load is supported."""
        return self.objectives_met and not self.overloaded

    @property
    def excess(self) -> float:
        """The largest measure-to-bound ratio of all objectives: above 1 where one fails."""
        return max((result.excess for result in self.results), default=0.0)

    @property
    def broken(self) -> ObjectiveResult | None:
        """The objective that fails by most, if one fails."""
        failed = [result for result in self.results if result.met is False]
        return max(failed, key=lambda result: result.excess, default=None)

    @property
    def binding(self) -> str | None:
        """What breaks here: an objective's text, `STEADY_STATE`, or None when the load is supported."""
        if self.broken is not None:
            return self.broken.objective.text
        return STEADY_STATE if self.overloaded else None

    def mean(self, measure: Callable[[RunMetrics], float | None]) -> float | None:
        """Returns the mean over the seeds of a measure, those without data left out."""
        return mean(measure(run) for run in self.runs)


def seed_excess(run: RunMetrics, objectives: Sequence[Objective]) -> float:
    """Returns the largest measure-to-bound ratio in one run; an overloaded run lies beyond its bounds in any case."""
    results = evaluate(objectives, run)
    worst = max((result.excess for result in results), default=0.0)
    breaks = run.overload is not None or any(result.met is False for result in results)
    return max(worst, 1.0 + 1e-9) if breaks else worst


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that exist, or None."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _pooled(objective: Objective, runs: Sequence[RunMetrics]) -> ObjectiveResult:
    single = [evaluate([objective], run)[0] for run in runs]
    value = mean(result.value for result in single)
    return judge(objective, value, *(group_of(objective, run) for run in runs))
