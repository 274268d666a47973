"""The load at which each seed breaks, and how far it moves with what the step times are not sure of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from sim.capacity.interval import seed_bracket, seed_knee
from sim.capacity.loads import LoadGrid
from sim.capacity.point import seed_excess
from sim.capacity.runs import Runs

_MAX_REACH = 6  # steps outwards in search of one seed's knee


class Knees:
    """Each seed's knee, from the runs that have been made.

    Args:
        runs: where they are, and where more are made.
        grid: the loads that may be tried.
    """

    def __init__(self, runs: Runs, grid: LoadGrid) -> None:
        self.runs = runs
        self.grid = grid
        self._excess: dict[tuple[float, int], float] = {}

    def find(self, seed: int, around: float) -> float | None:
        """Returns a seed's knee; None while it lies beyond the loads that it has been tried at."""
        return seed_knee(self.excesses(seed), around)

    def at_least_so_far(self, seed: int, around: float) -> float:
        """Returns a seed's knee; one that has not been found lies at least as far off as the seed has been tried."""
        knee = self.find(seed, around)
        if knee is not None:
            return knee
        excesses = self.excesses(seed)
        return max(excesses) if excesses[around] <= 1 else min(excesses)

    def or_end(self, seed: int, around: float) -> float:
        """Returns a seed's knee; one that was not found lies at the end of what was searched."""
        knee = self.find(seed, around)
        if knee is not None:
            return knee
        return self.grid.ceiling if self.excesses(seed)[around] <= 1 else 0.0

    def excesses(self, seed: int) -> dict[float, float]:
        """Returns load -> the seed's worst measure-to-bound ratio, for every load it has been tried at."""
        for load, run in (runs := self.runs.of_seed(seed)).items():
            if (load, seed) not in self._excess:
                self._excess[load, seed] = seed_excess(run, self.runs.scenario.objectives)
        return {load: self._excess[load, seed] for load in runs}

    def reach(self, starts: Mapping[int, tuple[float, float]], step: float) -> None:
        """Simulates further and further out those seeds whose knee is not known yet.

        Args:
            starts: of each seed, a low and a high load that it has been tried at (they may be the same).
            step: how far from the one or the other the first new load lies; twice that the next, and so on.
        """
        for reach in range(_MAX_REACH):
            wanted = []
            for seed, (low, high) in starts.items():
                if self.find(seed, low) is None:
                    distance = step * 2**reach
                    up = self.excesses(seed)[low] <= 1
                    load = self.grid.above(high, distance) if up else self.grid.below(low, distance)
                    wanted.append((load, seed))
            if not wanted:
                return
            self.runs.make(wanted)


def fit_spread(central: Knees, drawn: Knees, anchor: float, step: float) -> float | None:
    """Measures how far the knee moves when the step times are drawn from what the profile allows.

    Each seed's knee is looked for again with a draw of its own, from the two loads between which it lies with the
    central values. Both knees are of the same users and arrivals, so their difference is the draw's alone; and a draw
    that changes nothing gives 0, however coarse the loads.

    Args:
        central: the knees with the central values, found.
        drawn: the same seeds, each with its draw.
        anchor: the load around which `central` was searched.
        step: see `Knees.reach`.

    Returns:
        the root mean square of the differences, in the unit of the load; None where no seed has a knee.
    """
    starts = {}
    for seed in central.runs.seeds:
        bracket = seed_bracket(central.excesses(seed), anchor)
        if bracket is not None:
            starts[seed] = bracket
    if not starts:
        return None
    drawn.runs.make([(load, seed) for seed, bracket in starts.items() for load in bracket])
    drawn.reach(starts, step)
    moved = [drawn.or_end(seed, low) - central.or_end(seed, anchor) for seed, (low, _) in starts.items()]
    return math.sqrt(fmean(change * change for change in moved))
