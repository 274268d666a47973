"""The comparison: the baseline and each change with the same seeds at the same load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sim.capacity import Load, Point, Simulate
from sim.errors import UserError
from sim.parallel import Failure, call_each
from sim.results.metrics import RunMetrics, summarize
from sim.results.said_once import said_once
from sim.scenario.model import Scenario
from sim.search import Measure, configure
from sim.what_if.changes import Change
from sim.what_if.effect import Effect, effect_of

Status = Literal["simulated", "same", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """What came of a change.

    Attributes:
        change: which.
        status: `same`: it means the same server, so nothing had to be simulated; `refused`: the server would not
            start; `failed`: a simulation did.
        effects: measure -> effect; empty when there is none.
        holds: whether every objective holds with it; None when there is no result.
        cause: why there is none.
        warnings: what the reader must know of its runs and not of the baseline's.
    """

    change: Change
    status: Status
    effects: Mapping[str, Effect]
    holds: bool | None
    cause: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """The effects of all changes.

    Attributes:
        load: where all was measured; None for a workload without a number.
        seeds: the same for all.
        baseline: the server as it is.
        changes: in the order asked for.
    """

    load: Load
    seeds: tuple[int, ...]
    baseline: Point
    changes: tuple[ChangeResult, ...]


@dataclass(frozen=True, slots=True)
class WhatIfProgress:
    """How far a comparison is: runs done, of how many, and the change that the last one was for (None: none)."""

    num_done: int
    num_runs: int
    change: Change | None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A comparison to be made.

    Attributes:
        base: the scenario; what it searches for is what `load` counts.
        load: as `simulate` takes it; None: the workload's own.
        changes: one flag each.
        measures: what is compared.
        simulate: makes one run; picklable when there are several jobs.
        report: is told of each run.
    """

    base: Scenario
    load: Load
    changes: Sequence[Change]
    measures: Sequence[Measure]
    simulate: Simulate
    report: Callable[[WhatIfProgress], None] | None = None

    def run(self, *, jobs: int = 1) -> WhatIfResult:
        """Simulates the baseline and each change with every seed.

        Args:
            jobs: worker processes; the result does not depend on it.

        Raises:
            UserError: the baseline cannot be simulated.
            RuntimeError: a run of the baseline failed of itself.
        """
        own = configure(self.base, {})
        if own.scenario is None:
            raise UserError(own.cause)
        made = [configure(self.base, {each.key: each.after}) for each in self.changes]
        places = [place for place, each in enumerate(made) if each.scenario is not None and each.address != own.address]
        seeds = tuple(range(self.base.run.seed, self.base.run.seed + self.base.run.seeds))
        asked: list[tuple[int | None, Scenario]] = [(None, own.scenario)]
        for place in places:
            changed = made[place].scenario
            assert changed is not None, f"{self.changes[place].text} was refused"
            asked.append((place, changed))
        runs = self._simulate(asked, seeds, jobs)
        baseline = self._baseline(runs[None], seeds)
        results = []
        for place, each in enumerate(made):
            if each.scenario is None:
                results.append(ChangeResult(self.changes[place], "refused", {}, None, each.cause))
            elif place in runs:
                results.append(self._compared(self.changes[place], baseline, runs[place], seeds))
            else:
                same = {measure.name: self._effect(measure, baseline.runs, baseline.runs) for measure in self.measures}
                results.append(ChangeResult(self.changes[place], "same", same, baseline.holds))
        return WhatIfResult(self.load, seeds, baseline, tuple(results))

    def _simulate(
        self, asked: Sequence[tuple[int | None, Scenario]], seeds: tuple[int, ...], jobs: int
    ) -> dict[int | None, dict[int, RunMetrics | Failure]]:
        """Returns place of the change (None: the baseline) -> seed -> result."""
        pairs = [(place, seed) for place, _ in asked for seed in seeds]
        tasks = [(scenario, self.simulate, self.load, seed) for _, scenario in asked for seed in seeds]
        found: dict[int | None, dict[int, RunMetrics | Failure]] = {place: {} for place, _ in asked}
        for number, (index, result) in enumerate(call_each(_simulate_one, tasks, jobs=jobs), start=1):
            place, seed = pairs[index]
            found[place][seed] = result
            if self.report is not None:
                self.report(WhatIfProgress(number, len(tasks), None if place is None else self.changes[place]))
        return found

    def _baseline(self, found: Mapping[int, RunMetrics | Failure], seeds: tuple[int, ...]) -> Point:
        for seed in seeds:
            result = found[seed]
            if isinstance(result, Failure):
                raise result.as_error(f"the baseline with seed {seed}")
        return self._point(found, seeds)

    def _point(self, found: Mapping[int, RunMetrics | Failure], seeds: tuple[int, ...]) -> Point:
        runs = [each for each in (found[seed] for seed in seeds) if not isinstance(each, Failure)]
        return Point.of(self.load, seeds, runs, self.base.objectives)

    def _compared(
        self, change: Change, baseline: Point, found: Mapping[int, RunMetrics | Failure], seeds: tuple[int, ...]
    ) -> ChangeResult:
        failed = [each for each in found.values() if isinstance(each, Failure)]
        if failed:
            return ChangeResult(change, "failed", {}, None, failed[0].cause)
        point = self._point(found, seeds)
        effects = {measure.name: self._effect(measure, baseline.runs, point.runs) for measure in self.measures}
        known = {text for run in baseline.runs for text in run.warnings}
        said = said_once(text for run in point.runs for text in run.warnings if text not in known)
        return ChangeResult(change, "simulated", effects, point.holds, warnings=tuple(said))

    def _effect(self, measure: Measure, before: Sequence[RunMetrics], after: Sequence[RunMetrics]) -> Effect:
        return effect_of([measure.of_run(run) for run in before], [measure.of_run(run) for run in after])


def _simulate_one(task: tuple[Scenario, Simulate, Load, int]) -> RunMetrics:
    scenario, simulate, load, seed = task
    return summarize(simulate(scenario, seed=seed, load=load), scenario)
