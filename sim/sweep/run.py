"""A sweep: every point with every seed, each run made once, kept on disk, and given back in the order of the points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sim.capacity import Load, Point, Simulate
from sim.parallel import Cluster, Failure, call_each
from sim.results.metrics import RunMetrics, summarize
from sim.scenario.model import Scenario
from sim.sweep.kept import KeptRuns, address
from sim.sweep.points import SweepPoint


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One point with one seed; `address` names its result."""

    point: SweepPoint
    scenario: Scenario
    seed: int
    address: str

    @property
    def work(self) -> float:
        """How long it takes, in unknown units: a run of twice the load takes about twice as long."""
        return self.point.stated_load or 1.0


@dataclass(frozen=True, slots=True)
class PointResult:
    """What came of a point.

    Attributes:
        point: which.
        judged: its finished runs against the objectives; None when there is none.
        causes: seed -> why its run failed.
    """

    point: SweepPoint
    judged: Point | None
    causes: Mapping[int, str]

    @property
    def cause(self) -> str:
        """Why the point failed, if it did; seeds that failed for one reason share a sentence."""
        if self.point.cause:
            return self.point.cause
        seeds: dict[str, list[str]] = {}
        for seed, cause in self.causes.items():
            seeds.setdefault(cause, []).append(str(seed))
        return "; ".join(f"seed {', '.join(each)}: {cause}" for cause, each in seeds.items())


@dataclass(slots=True)
class SweepProgress:
    """How far a sweep is; told once before the first run and after each.

    Attributes:
        num_runs: runs of this call.
        num_done: of those, over; what was found on disk included.
        num_made: of those, made by this call.
        num_failed: of those that are over, failed.
        work: of the runs that were not found on disk, in unknown units.
        work_done: of that, done.
        failed: the run that has just failed, or None.
        cause: why it failed.
    """

    num_runs: int
    num_done: int = 0
    num_made: int = 0
    num_failed: int = 0
    work: float = 0.0
    work_done: float = 0.0
    failed: SweepRun | None = None
    cause: str = ""

    @property
    def share(self) -> float:
        """How much of the work is done, 0 to 1."""
        return self.work_done / self.work if self.work else 1.0

    def count(self, run: SweepRun, num_points: int, cause: str) -> None:
        """Counts a run that has just ended, and stands for that many of the sweep's."""
        self.num_done += num_points
        self.num_made += num_points
        self.work_done += run.work
        self.num_failed += num_points if cause else 0
        self.failed, self.cause = (run, cause) if cause else (None, "")


Report = Callable[[SweepProgress], None]


@dataclass(slots=True)
class Sweep:
    """The runs of a sweep, or of one shard of it.

    Attributes:
        points: every point of the sweep.
        seeds: the same for all points (common random numbers).
        kept: where finished runs lie.
        simulate: makes one run; picklable.
        reference: whether `simulate` uses the reference scheduler.
        shard: (i, n): every n-th run, from the i-th on, counted from 1.
        report: is told of each run.
    """

    points: Sequence[SweepPoint]
    seeds: tuple[int, ...]
    kept: KeptRuns
    simulate: Simulate
    reference: bool = False
    shard: tuple[int, int] = (1, 1)
    report: Report | None = None
    _found: dict[str, RunMetrics | Failure] = field(default_factory=dict)

    def results(self, *, jobs: int = 1, cluster: Cluster | None = None) -> Iterator[PointResult]:
        """Makes the runs that are missing, and yields each point once it and all points before it are done.

        To close the iterator, or Ctrl-C, stops the runs in progress; what is finished is kept.

        Args:
            jobs: worker processes; the results do not depend on it.
            cluster: where they run, if not here.

        Raises:
            UserError: a result cannot be written; those before it are kept.
        """
        waiting = self._shares()
        wanted: dict[str, list[SweepRun]] = {}
        for _, own in waiting:
            for run in own:
                wanted.setdefault(run.address, []).append(run)
        missing = self._look_up(wanted)
        progress = SweepProgress(sum(map(len, wanted.values())), sum(len(wanted[name]) for name in self._found))
        progress.work = sum(run.work for run in missing)
        self._tell(progress)
        yield from self._ready(waiting)
        tasks = [(run.scenario, self.simulate, run.point.load, run.seed) for run in missing]
        for place, outcome in call_each(_simulate_one, tasks, jobs=jobs, cluster=cluster):
            run = missing[place]
            cause = self._take(run, outcome)
            progress.count(run, len(wanted[run.address]), cause)
            self._tell(progress)
            yield from self._ready(waiting)

    def _shares(self) -> list[tuple[SweepPoint, list[SweepRun]]]:
        """Returns this shard's points, each with this shard's runs of it; one that makes no sense has none."""
        units = [(point, seed) for point in self.points for seed in (self.seeds if not point.cause else (None,))]
        index, number = self.shard
        shares: dict[int, tuple[SweepPoint, list[SweepRun]]] = {}
        for point, seed in units[index - 1 :: number]:
            own = shares.setdefault(point.number, (point, []))[1]
            if seed is not None:
                assert point.scenario is not None, f"point {point.number} has neither scenario nor cause"
                name = address(point.scenario, point.load, seed, reference=self.reference)
                own.append(SweepRun(point, point.scenario, seed, name))
        return list(shares.values())

    def _look_up(self, wanted: Mapping[str, Sequence[SweepRun]]) -> list[SweepRun]:
        """Finds what is on disk, and returns one run for each address that is not."""
        for name in wanted:
            metrics = self.kept.get(name)
            if metrics is not None:
                self._found[name] = metrics
        return [runs[0] for name, runs in wanted.items() if name not in self._found]

    def _take(self, run: SweepRun, outcome: RunMetrics | Failure) -> str:
        """Keeps a result; returns why there is none."""
        self._found[run.address] = outcome
        if not isinstance(outcome, Failure):
            self.kept.keep(run.address, outcome, _about(run))
            return ""
        if not outcome.details:
            return outcome.cause
        return f"{outcome.cause} (traceback in {self.kept.keep_failure(run.address, outcome.details)})"

    def _ready(self, waiting: list[tuple[SweepPoint, list[SweepRun]]]) -> Iterator[PointResult]:
        """Yields the points at the head of the list that are done, and takes them off."""
        while waiting and all(run.address in self._found for run in waiting[0][1]):
            point, runs = waiting.pop(0)
            outcomes = {run.seed: self._found[run.address] for run in runs}
            causes = {seed: found.cause for seed, found in outcomes.items() if isinstance(found, Failure)}
            made = {seed: found for seed, found in outcomes.items() if not isinstance(found, Failure)}
            judged = None
            if made:
                objectives = runs[0].scenario.objectives
                judged = Point.of(point.stated_load, list(made), list(made.values()), objectives)
            yield PointResult(point, judged, causes)

    def _tell(self, progress: SweepProgress) -> None:
        if self.report is not None:
            self.report(progress)


def _simulate_one(task: tuple[Scenario, Simulate, Load, int]) -> RunMetrics:
    """Makes one run and sums it up where it was made: a few numbers travel."""
    scenario, simulate, load, seed = task
    return summarize(simulate(scenario, seed=seed, load=load), scenario)


def _about(run: SweepRun) -> dict[str, object]:
    return {
        "scenario": run.scenario.name,
        "overrides": dict(run.point.overrides),
        "load": run.point.stated_load,
        "unit": run.point.unit,
        "seed": run.seed,
    }
