"""Which configuration is tried next: NSGA-II, helped where a space is small and each simulation costs seconds.

NSGA-II alone spends its first generation on chance, proposes what it has proposed before, and does not know that 32
lies between 16 and 64. So:

1. First come **points that span the space**: the scenario's own flags, the lowest and the highest values of all flags
   together, and each flag at its ends with the others at the scenario's.
2. Then **proposals**: children of Optuna's NSGA-II, and the neighbours of the front (one flag changed by one step). The
   one that promises most is tried (`promise.py`); every second time, one far from what is known has an advantage.
3. **Nothing is tried twice**; where all proposals are known, chance chooses among what is left.

Each choice depends on what the storage holds and on the number of the trial alone: a process that is gone takes nothing
with it, and the next one chooses as it would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, NSGAIISampler
from optuna.trial import FrozenTrial, TrialState

from sim.search.archive import distributions
from sim.search.front import pareto_front
from sim.search.promise import Known, promises
from sim.search.space import Space, is_ordered

POPULATION = 8
"""Configurations of a generation: few, as a search makes tens of simulations and not thousands."""

_CHILDREN = 30  # drawn for each trial; many of them are known already
_FEW = 50_000  # configurations that can be listed to choose among what is left

Identity = tuple[int, ...]


class SpanningNsga2(BaseSampler):
    """Optuna's sampler for a search over flags.

    Args:
        space: every configuration.
        own: the scenario's own, or the one nearest to it.
        seed: of what chance decides.
    """

    def __init__(self, space: Space, own: Identity, seed: int = 0) -> None:
        self.space = space
        self.seed = seed
        self._first = list(dict.fromkeys(_spanning(space, own)))

    def infer_relative_search_space(self, _study: optuna.Study, _trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Returns the whole space: a configuration is chosen as a whole."""
        return distributions(self.space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the configuration that a trial is to simulate."""
        rng = np.random.default_rng([self.seed, trial.number])
        NSGAIISampler(population_size=POPULATION).get_trial_generation(study, trial)  # counts it to its generation
        others = [each for each in study.get_trials(deepcopy=False) if each.number != trial.number]
        taken, running = self._tried(others)
        tried = taken | running
        first = next((place for place in self._first if place not in tried), None)
        if first is not None:
            return self.space.at(first)
        known = _known(study, self.space, others)
        children = self._children(study, others, search_space, int(rng.integers(2**31)))
        proposed = [*children, *self._neighbours(known)]
        proposals = [place for place in dict.fromkeys(proposed) if place not in tried]
        if not proposals or len(known) < 2:
            return self.space.at(self._left(tried, taken, rng))
        ranked = promises(self.space, known, sorted(running), proposals, explore=trial.number % 2 == 0)
        return self.space.at(proposals[int(np.argmax(ranked))])

    def sample_independent(
        self, _study: optuna.Study, _trial: FrozenTrial, param_name: str, _distribution: BaseDistribution
    ) -> Any:
        """Never asked: every flag is chosen by `sample_relative`."""
        raise AssertionError(f"{param_name} is no axis of the space")

    def _tried(self, trials: Sequence[FrozenTrial]) -> tuple[set[Identity], set[Identity]]:
        """Returns the configurations that have been decided, and those that are being simulated."""
        taken: set[Identity] = set()
        running: set[Identity] = set()
        for each in trials:
            if len(each.params) < len(self.space.axes):
                continue
            if each.state == TrialState.COMPLETE or "cause" in each.user_attrs:
                taken.add(self.space.identity(each.params))
            elif each.state == TrialState.RUNNING:
                running.add(self.space.identity(each.params))
        return taken, running - taken

    def _children(
        self,
        study: optuna.Study,
        trials: Sequence[FrozenTrial],
        search_space: dict[str, BaseDistribution],
        seed: int,
    ) -> list[Identity]:
        """Returns what NSGA-II would try next, over and over; in memory, so that a draw is no trip to the storage."""
        genetic = NSGAIISampler(population_size=POPULATION, seed=seed)
        copy = optuna.create_study(directions=study.directions, sampler=genetic)
        copy.add_trials([each for each in trials if each.state == TrialState.COMPLETE])
        return [self.space.identity(copy.ask(search_space).params) for _ in range(_CHILDREN)]

    def _neighbours(self, known: Sequence[Known]) -> list[Identity]:
        """Returns the neighbours of what nothing beats; of all that is known, while nothing is feasible."""
        feasible = [each for each in known if each.feasible] or known
        front = pareto_front([(each, each.losses) for each in feasible])
        return [place for each in front for place in self.space.neighbours(each.identity)]

    def _left(self, tried: set[Identity], taken: set[Identity], rng: np.random.Generator) -> Identity:
        """Returns any configuration that is left; where all run, one of those: its process may be dead."""
        if self.space.size > _FEW:
            while True:
                place = tuple(int(rng.integers(len(axis.values))) for axis in self.space.axes)
                if place not in tried:
                    return place
        left = [place for place in self.space.all() if place not in tried]
        left = left or [place for place in self.space.all() if place not in taken]
        left = left or self._first  # another process has just ended the last one: this trial will be dropped
        return left[rng.integers(len(left))]


def _known(study: optuna.Study, space: Space, trials: Sequence[FrozenTrial]) -> list[Known]:
    """Returns what was simulated, each configuration once."""
    minimize = optuna.study.StudyDirection.MINIMIZE
    signs = [1.0 if direction == minimize else -1.0 for direction in study.directions]
    found: dict[Identity, Known] = {}
    for each in trials:
        if each.state == TrialState.COMPLETE:
            identity = space.identity(each.params)
            losses = tuple(sign * value for sign, value in zip(signs, each.values, strict=True))
            found[identity] = Known(identity, losses, all(value <= 0 for value in each.constraints.values()))
    return list(found.values())


def _spanning(space: Space, own: Identity) -> Sequence[Identity]:
    """Returns the configurations that span the space, the scenario's own first."""
    lowest = tuple(0 for _ in space.axes)
    highest = tuple(len(axis.values) - 1 for axis in space.axes)
    found = [own, lowest, highest]
    for position, axis in enumerate(space.axes):
        ends = (0, len(axis.values) - 1) if is_ordered(axis) else range(len(axis.values))
        found += [(*own[:position], end, *own[position + 1 :]) for end in ends]
    return found
