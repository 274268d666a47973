"""The search for the best flags: choose configurations, simulate them, tell the storage; start reading at `run`.

Configurations are chosen and simulated in batches whose size does not depend on the number of cores, so that the
result does not depend on it either. A batch waits for its last simulation; what is finished is in the storage by then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.capacity import CapacityResult, Point, SearchInterruptedError, Simulate, find_capacity
from sim.capacity.loads import own_load
from sim.errors import UserError
from sim.parallel import Failure, call_each
from sim.results.metrics import RunMetrics, summarize
from sim.scenario.model import Scenario, scenario_hash
from sim.search.archive import Archive, Trial
from sim.search.configuration import Configuration, configure
from sim.search.front import losses, pareto_front
from sim.search.outcome import Judge, Outcome
from sim.search.space import Space
from sim.sweep.kept import code_version

FORMAT = 1
"""Of what a trial keeps; part of the study's name."""

_MOST_REFUSED = 1000  # in a row, before a search stops looking for a configuration that starts


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """How far a search is.

    Attributes:
        num_done: configurations simulated, those of other processes and of earlier calls included.
        num_wanted: how many are wanted.
        num_front: of those, not beaten.
        trial: the one that has just ended, or None.
        cause: why it has no outcome, where it has none.
    """

    num_done: int
    num_wanted: int
    num_front: int
    trial: Trial | None = None
    cause: str = ""


@dataclass(slots=True)
class FlagSearch:
    """A search, to be made by this process alone or together with others.

    Attributes:
        base: the scenario; with a `search` of its own, each configuration's capacity is searched for.
        space: what is varied.
        judge: what is made small or large, and what is required.
        archive: the trials so far.
        simulate: makes one run; picklable when there are several jobs.
        num_trials: configurations to simulate, those that the storage holds included.
        batch: how many are chosen before the next are.
        drawn: scenario -> what makes its runs with step times drawn for each seed, or None where there is nothing to
            draw: the interval of a capacity covers the fit then.
        report: is told of each trial.
    """

    base: Scenario
    space: Space
    judge: Judge
    archive: Archive
    simulate: Simulate
    num_trials: int
    batch: int = 4
    drawn: Callable[[Scenario], Simulate | None] | None = None
    report: Callable[[SearchProgress], None] | None = None
    _configurations: dict[int, Configuration] = field(default_factory=dict)
    _twins: dict[int, list[Trial]] = field(default_factory=dict)  # number -> trials that mean the same server

    def run(self, *, jobs: int = 1) -> None:
        """Simulates until as many configurations as wanted are known, or all of the space.

        Ctrl-C drops the trials in progress; those that are finished are kept.

        Args:
            jobs: worker processes; the result does not depend on it.

        Raises:
            UserError: no configuration starts.
        """
        self._tell(None)
        while True:
            trials = self.archive.trials()
            wanted = min(self.batch, self.num_trials - len(distinct(trials)))
            if wanted <= 0 or self._num_known(trials) >= self.space.size:
                break
            batch = self._choose(wanted)
            if batch:
                self._simulate(batch, jobs)
        _check_started(self.archive.trials())

    def _num_left(self, known: list[Trial], chosen: list[Trial]) -> int:
        """Returns how many configurations are neither decided nor in the batch that is being chosen."""
        twins = sum(len(each) for each in self._twins.values())
        return self.space.size - self._num_known(known) - len(chosen) - twins

    def _num_known(self, trials: list[Trial]) -> int:
        decided = [each for each in trials if each.state in ("done", "refused", "failed")]
        return len({self.space.identity(each.parameters) for each in decided})

    def _choose(self, wanted: int) -> list[Trial]:
        """Begins trials that are worth a simulation; one whose server does not start costs none and ends here."""
        chosen: list[Trial] = []
        refused = 0
        while len(chosen) < wanted and refused < _MOST_REFUSED:
            known = self.archive.trials()
            if self._num_left(known, chosen) <= 0:
                break
            trial = self.archive.ask()
            if trial is None:
                continue
            made = configure(self.base, trial.parameters)
            if made.scenario is None:
                self.archive.give_up(trial.number, "refused", made.cause)
                refused += 1
                continue
            self._configurations[trial.number] = made
            if not self._share(trial, made, known, chosen):
                chosen.append(trial)
        if refused >= _MOST_REFUSED and not chosen:
            _check_started(self.archive.trials())
            raise UserError(f"--vary: {refused} configurations in a row do not start; narrow the ranges")
        return chosen

    def _share(self, trial: Trial, made: Configuration, known: list[Trial], chosen: list[Trial]) -> bool:
        """Ends a trial that means the same server as one that is known: nothing is simulated twice."""
        for other in known:
            if other.state == "done" and other.address == made.address:
                assert other.outcome is not None, f"trial {other.number} is done without an outcome"
                same_as = other.number if other.same_as is None else other.same_as
                self.archive.finish(trial.number, other.outcome, made.address, same_as)
                return True
        for each in chosen:
            if self._configurations[each.number].address == made.address:
                self._twins.setdefault(each.number, []).append(trial)
                return True
        return False

    def _simulate(self, batch: list[Trial], jobs: int) -> None:
        """Simulates a batch; what is not finished when it is interrupted is dropped."""
        left = {trial.number: trial for trial in batch}
        try:
            for number, outcome in self._outcomes(batch, jobs):
                self._end(left.pop(number), outcome)
        finally:
            for number in left:
                for each in (number, *(twin.number for twin in self._twins.pop(number, ()))):
                    self.archive.drop(each)

    def _end(self, trial: Trial, outcome: Outcome | Failure) -> None:
        """Tells the storage what came of a trial, and of those that mean the same server."""
        twins = self._twins.pop(trial.number, [])
        if isinstance(outcome, Failure):
            for each in (trial, *twins):
                self.archive.give_up(each.number, "failed", outcome.cause)
            self._tell(trial, outcome.cause)
            return
        address = self._configurations[trial.number].address
        self.archive.finish(trial.number, outcome, address)
        for each in twins:
            self.archive.finish(each.number, outcome, address, trial.number)
        self._tell(trial)

    def _outcomes(self, batch: list[Trial], jobs: int) -> Iterator[tuple[int, Outcome | Failure]]:
        """Yields the outcome of each trial once all of its simulations are done."""
        capacity, seeds = self.base.search is not None, _seeds(self.base)
        tasks = [(trial.number, seed) for trial in batch for seed in ((None,) if capacity else seeds)]
        found: dict[int, dict[int | None, Any]] = {trial.number: {} for trial in batch}
        calls = [(self._scenario(number), self.simulate, self.drawn, seed) for number, seed in tasks]
        for place, result in call_each(_simulate_one, calls, jobs=jobs):
            number, seed = tasks[place]
            found[number][seed] = result
            if len(found[number]) == (1 if capacity else len(seeds)):
                yield number, self._judged(number, found[number])

    def _judged(self, number: int, found: Mapping[int | None, Any]) -> Outcome | Failure:
        failed = [each for each in found.values() if isinstance(each, Failure)]
        if failed:
            return failed[0]
        scenario = self._scenario(number)
        if None in found:
            return self.judge.of_capacity(scenario, found[None])
        seeds = _seeds(self.base)
        runs = [found[seed] for seed in seeds]
        return self.judge.of_point(scenario, Point.of(own_load(scenario), seeds, runs, scenario.objectives))

    def _scenario(self, number: int) -> Scenario:
        scenario = self._configurations[number].scenario
        assert scenario is not None, f"trial {number} was begun although its server does not start"
        return scenario

    def _tell(self, trial: Trial | None, cause: str = "") -> None:
        if self.report is not None:
            trials = self.archive.trials()
            front = front_of(trials, self.judge)
            self.report(SearchProgress(len(distinct(trials)), self.num_trials, len(front), trial, cause))


def front_of(trials: list[Trial], judge: Judge) -> list[Trial]:
    """Returns the feasible trials that no other beats, each configuration once, in the order of their numbers."""
    items = []
    for trial in distinct(trials):
        assert trial.outcome is not None, f"trial {trial.number} is done without an outcome"
        if trial.outcome.feasible:
            items.append((trial, losses(judge.measures, trial.outcome)))
    return pareto_front(items)


def distinct(trials: list[Trial]) -> list[Trial]:
    """Returns the trials that were simulated: the first of each configuration."""
    first: dict[str, Trial] = {}
    for trial in trials:
        if trial.state == "done" and trial.same_as is None:
            first.setdefault(trial.address, trial)
    return list(first.values())


def study_name(base: Scenario, space: Space, judge: Judge) -> str:
    """Returns the name of the study: the scenario's, and a hash of everything that decides a trial's outcome."""
    asked = {
        "format": FORMAT,
        "scenario": scenario_hash(base),
        "vary": {axis.key: list(axis.values) for axis in space.axes},
        "measures": [(each.name, each.direction) for each in judge.measures],
        "required": sorted(judge.required),
        "prices": [judge.prices.any_gpu, dict(judge.prices.of_gpu or {})],
        "code": code_version(),
    }
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return f"{base.name}-{digest[:12]}"


def _seeds(base: Scenario) -> tuple[int, ...]:
    return tuple(range(base.run.seed, base.run.seed + base.run.seeds))


_Task = tuple[Scenario, Simulate, Callable[[Scenario], Simulate | None] | None, int | None]


def _simulate_one(task: _Task) -> CapacityResult | RunMetrics:
    """Makes one run, or without a seed a whole capacity search, where it is called."""
    scenario, simulate, drawn, seed = task
    if seed is None:
        try:
            return find_capacity(scenario, simulate, drawn=None if drawn is None else drawn(scenario))
        except SearchInterruptedError:  # not a failure of this configuration: nothing else is to be simulated either
            raise KeyboardInterrupt from None
    return summarize(simulate(scenario, seed=seed, load=None), scenario)


def _check_started(trials: list[Trial]) -> None:
    """Refuses to answer when there was nothing to simulate."""
    if any(trial.state == "done" for trial in trials):
        return
    causes = [trial.cause for trial in trials if trial.cause]
    if causes:
        raise UserError(
            f"--vary: none of the {len(causes)} configurations tried can be simulated; the first: {causes[0]}"
        )
