"""Many runs at once: each (load, seed) is simulated once, on as many cores as there are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from sim.capacity.point import Point
from sim.parallel import Failure, call_each
from sim.records import RunRecord
from sim.results.metrics import RunMetrics, summarize
from sim.scenario.model import Scenario

Load = float | None
Store = Callable[[RunRecord, Load, int], None]
"""Keeps a run's records; called in the process that simulated it."""

Progress = Callable[[int, Load, int], None]
"""Told after each run: runs done so far, the load, the seed."""

_WORTH_PARALLEL_S = 0.5  # below this a round is over before worker processes have started


class Simulate(Protocol):
    """`sim.simulate.simulate`, or anything that behaves like it."""

    def __call__(self, scenario: Scenario, *, seed: int, load: Load) -> RunRecord:
        """Returns the record of one run; must be a pure function of its arguments, and picklable."""


@dataclass(slots=True)
class Runs:
    """The runs of one scenario, each made once and kept.

    Results do not depend on the number of jobs: which runs are made is decided by the results alone, and jobs only
    decide where.

    Attributes:
        scenario: what is simulated.
        simulate: how.
        seeds: the seeds of the scenario; every load uses the same ones (common random numbers).
        jobs: worker processes at most; 1 simulates in this one.
        store: keeps each run's records, if anything does.
        progress: is told of each run.
    """

    scenario: Scenario
    simulate: Simulate
    seeds: tuple[int, ...]
    jobs: int = 1
    store: Store | None = None
    progress: Progress | None = None
    _results: dict[tuple[Load, int], RunMetrics] = field(default_factory=dict)
    _judged: dict[Load, int] = field(default_factory=dict)  # load -> seeds that its verdict rests on
    _last_run_s: float = 0.0

    def point(self, load: Load, num_seeds: int | None = None) -> Point:
        """Returns a load judged on its first `num_seeds` seeds (default: all), simulating what is missing."""
        seeds = self.seeds[:num_seeds]
        self.make([(load, seed) for seed in seeds])
        self._judged[load] = max(len(seeds), self._judged.get(load, 0))
        return self._point(load, seeds)

    def judged(self, load: Load) -> Point:
        """Returns a load that has been judged, on the seeds that its last verdict rests on."""
        return self._point(load, self.seeds[: self._judged[load]])

    def known(self) -> list[Point]:
        """Returns every load judged so far, in order, each with all the seeds that its last verdict rests on."""
        loads = sorted(self._judged, key=lambda load: math.inf if load is None else load)
        return [self.judged(load) for load in loads]

    def of_seed(self, seed: int) -> dict[float, RunMetrics]:
        """Returns every run made with one seed, by load."""
        return {load: run for (load, number), run in self._results.items() if number == seed and load is not None}

    @property
    def num_made(self) -> int:
        """Runs made so far."""
        return len(self._results)

    def make(self, wanted: Sequence[tuple[Load, int]]) -> None:
        """Simulates those of the (load, seed) pairs that are missing.

        Raises:
            UserError: the input is at fault, or a run's worker process was killed twice.
            RuntimeError: a run failed of itself; it names the run and holds its traceback.
        """
        missing = [pair for pair in dict.fromkeys(wanted) if pair not in self._results]
        with closing(self._simulate_all(missing)) as found:  # an interrupt ends the workers at once
            for (load, seed), metrics, seconds in found:
                self._results[load, seed] = metrics
                self._last_run_s = seconds
                if self.progress is not None:
                    self.progress(self.num_made, load, seed)

    def _simulate_all(
        self, pairs: list[tuple[Load, int]]
    ) -> Generator[tuple[tuple[Load, int], RunMetrics, float], None, None]:
        """Yields each pair with its result, as they finish; a failure only after the others."""
        failures: dict[int, Failure] = {}
        for place, result in self._call(pairs):
            if isinstance(result, Failure):
                failures[place] = result
            else:
                yield pairs[place], *result
        for place, failure in sorted(failures.items()):
            raise failure.as_error(_name(*pairs[place]))

    def _call(self, pairs: list[tuple[Load, int]]) -> Iterator[tuple[int, tuple[RunMetrics, float] | Failure]]:
        """Makes the runs where that is soonest: the very first one here, since nobody knows yet how long one takes."""
        tasks = [(self.scenario, self.simulate, self.store, load, seed) for load, seed in pairs]
        num_here = 0 if self._results else 1
        yield from call_each(_simulate_one, tasks[:num_here])
        left = tasks[num_here:]
        in_workers = len(left) > 1 and self._last_run_s * len(left) >= _WORTH_PARALLEL_S
        for place, result in call_each(_simulate_one, left, jobs=self.jobs if in_workers else 1):
            yield num_here + place, result

    def _point(self, load: Load, seeds: Sequence[int]) -> Point:
        return Point.of(load, seeds, [self._results[load, seed] for seed in seeds], self.scenario.objectives)


def _name(load: Load, seed: int) -> str:
    return f"run with seed {seed}" if load is None else f"run at load {load:g} with seed {seed}"


def _simulate_one(task: tuple[Scenario, Simulate, Store | None, Load, int]) -> tuple[RunMetrics, float]:
    """Makes one run and sums it up where it was made: its records stay there, a few numbers travel."""
    scenario, simulate, store, load, seed = task
    began = time.perf_counter()
    run = simulate(scenario, seed=seed, load=load)
    if store is not None:
        store(run, load, seed)
    return summarize(run, scenario), time.perf_counter() - began
