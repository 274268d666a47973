"""The search for the largest load at which every objective holds.

The curve of measures over load is steep and noisy near its knee, and each simulation costs seconds. So:

1. **Bracket**, with the first two seeds: double the load (half as much again once a measure is past half of its bound:
   an overloaded server is slow to simulate) until something breaks. Breaking at a small load may be chance (two users
   are few), so a break that is not gross is confirmed with all seeds before it counts.
2. **Narrow**, with the same two seeds, by bisection to an eighth of the load.
3. **Settle**, with all seeds: confirm the lower end, walk outwards by doubling steps until one load holds and one
   breaks, then bisect. It is over when the two are neighbours on the grid, or closer than a quarter of the interval's
   half-width: then the seeds differ by more than further loads could tell.

All seeds are the same at every load (common random numbers), so loads are compared on the same users and arrivals. The
answer is the largest load below the first break that follows a load that holds; a curve that is not monotone is said.
The interval around it is of `interval.py`; what the profile is not sure of widens it, and moves nothing else.
"""

from __future__ import annotations

from sim.capacity.diagnosis import diagnose
from sim.capacity.interval import t_interval
from sim.capacity.knees import Knees, fit_spread
from sim.capacity.loads import LoadGrid, unit_of
from sim.capacity.point import Point
from sim.capacity.result import CapacityResult, Covered
from sim.capacity.runs import Runs

_QUICK = 2  # seeds of the first two stages
_GROSS = 3.0  # a measure this many times its bound is no chance
_FEW_REQUESTS = 1000  # below this a percentile near its bound may be chance
_SCAN = 3  # doublings tried after a break at the very first load
_NEAR = 0.5  # of the bound: from here on the load is raised with care
_NARROW = 1.125
_MIN_SEEDS = 3  # fewer say nothing of how much they differ


def search_capacity(runs: Runs, grid: LoadGrid, drawn: Runs | None = None) -> CapacityResult:
    """Finds the largest supported load of the grid.

    Args:
        runs: makes the runs that decide the answer.
        grid: the loads that may be tried.
        drawn: makes the same runs, each seed with step times of its own draw: then the interval covers the fit.
    """
    return _Search(runs, grid, drawn).run()


def single_load(runs: Runs, load: float | None) -> CapacityResult:
    """Simulates one load with all seeds and judges it."""
    point = runs.point(load)
    return CapacityResult(
        unit=unit_of(runs.scenario),
        value=None,
        low=None,
        high=None,
        ceiling_reached=False,
        next_load=None,
        resolution=None,
        binding_objective=point.binding,
        diagnosis=diagnose(point),
        points=(point,),
        seeds=runs.seeds,
        num_runs=runs.num_made,
    )


class _Search:
    """One search; `run` reads from top to bottom."""

    def __init__(self, runs: Runs, grid: LoadGrid, drawn: Runs | None) -> None:
        self.runs = runs
        self.grid = grid
        self.drawn = drawn
        self.knees = Knees(runs, grid)
        self.covers: tuple[Covered, ...] = ()

    def run(self) -> CapacityResult:
        low, high = self._bracket()
        if low is None:
            low, high = self._descend()
        if low is not None and high is not None:
            low, high = self._narrow(low, high)
        if low is not None:
            low, high = self._settle(low, high)
        return self._result(low, high)

    def _bracket(self) -> tuple[float | None, float | None]:
        """Raises the load from the first one until something breaks: (last that holds, first that breaks after it)."""
        load, holding, failed = self.grid.first, None, 0
        while True:
            if self._holds_quickly(load):
                holding = load
            elif holding is not None:
                return holding, load
            else:
                failed += 1
            if load >= self.grid.ceiling or (failed > _SCAN and not self._needs_load()):
                return holding, None
            load = self.grid.above(load, load if self._excess_at(load) < _NEAR else load / 2)

    def _excess_at(self, load: float) -> float:
        """Returns how near the worst measure is to its bound at a load that holds; 0 where none holds yet."""
        point = self.runs.judged(load)
        return point.excess if point.holds else 0.0

    def _descend(self) -> tuple[float | None, float | None]:
        """Halves the load below the first one, which breaks, until one holds or none is left."""
        broken = self.grid.first
        while (load := max(self.grid.lowest, self.grid.round(broken / 2))) < broken:
            if self._holds_quickly(load):
                return load, broken
            broken = load
        return None, broken

    def _narrow(self, low: float, high: float) -> tuple[float, float]:
        """Bisects with few seeds until the bracket is an eighth of the load."""
        while high > low * _NARROW:
            middle = self.grid.between(low, high)
            if middle is None:
                break
            if self.runs.point(middle, _QUICK).holds:
                low = middle
            else:
                high = middle
        return low, high

    def _settle(self, low: float, high: float | None) -> tuple[float | None, float | None]:
        """Bisects with all seeds: (largest that holds, the next that breaks); None where there is none."""
        distance = max(high - low if high is not None else 0, low * (_NARROW - 1) / 2)
        if not self.runs.point(low).holds:
            return self._bisect(*self._walk_down(low, distance))
        if high is None:
            return low, None
        if self.runs.point(high).holds:
            return self._bisect(*self._walk_up(high, distance))
        return self._bisect(low, high)

    def _bisect(self, low: float | None, high: float | None) -> tuple[float | None, float | None]:
        """Closes a bracket with all seeds, as far as that tells anything."""
        while low is not None and high is not None:
            middle = self.grid.between(low, high)
            if middle is None or self._is_settled(low, high):
                break
            if self.runs.point(middle).holds:
                low = middle
            else:
                high = middle
        return low, high

    def _walk_down(self, broken: float, distance: float) -> tuple[float | None, float]:
        """Steps down from a load that breaks until one holds: (it or None, the last that broke)."""
        while (load := self.grid.below(broken, distance)) < broken:
            if self.runs.point(load).holds:
                return load, broken
            broken, distance = load, 2 * distance
        return None, broken

    def _walk_up(self, holding: float, distance: float) -> tuple[float, float | None]:
        """Steps up from a load that holds until one breaks: (the last that held, it or None at the ceiling)."""
        while holding < self.grid.ceiling:
            load = self.grid.above(holding, distance)
            if not self.runs.point(load).holds:
                return holding, load
            holding, distance = load, 2 * distance
        return holding, None

    def _holds_quickly(self, load: float) -> bool:
        """Judges a load on few seeds, and on all of them when it breaks by so little that it may be chance."""
        point = self.runs.point(load, _QUICK)
        num_requests = sum(run.total.num_requests for run in point.runs)
        if point.holds or point.excess > _GROSS or num_requests >= _FEW_REQUESTS:
            return point.holds
        return self.runs.point(load).holds

    def _needs_load(self) -> bool:
        """Whether an objective asks for a throughput, which small loads cannot give."""
        return any(
            objective.metric.endswith("throughput") and objective.op == ">="
            for objective in self.runs.scenario.objectives
        )

    def _is_settled(self, low: float, high: float) -> bool:
        """Whether the seeds' knees differ by so much more than the bracket that closing it would tell nothing."""
        if len(self.runs.seeds) < _MIN_SEEDS:
            return False
        interval = t_interval([self.knees.at_least_so_far(seed, low) for seed in self.runs.seeds])
        return interval is not None and high - low <= (interval[1] - interval[0]) / 8

    def _result(self, low: float | None, high: float | None) -> CapacityResult:
        value = low if low is not None else 0
        interval = self._interval(value, high)
        points = tuple(self.runs.known())
        broken = next((point for point in points if point.load == high), None) if high is not None else None
        return CapacityResult(
            unit=self.grid.unit,
            value=value,
            low=interval[0] if interval else None,
            high=interval[1] if interval and high is not None else None,
            ceiling_reached=high is None,
            next_load=high,
            resolution=high - value if high is not None else None,
            binding_objective=broken.binding if broken is not None else None,
            diagnosis=diagnose(broken) if broken is not None else None,
            points=points,
            seeds=self.runs.seeds,
            num_runs=self.runs.num_made + (self.drawn.num_made if self.drawn is not None else 0),
            covers=self.covers,
            notes=tuple(_monotony_notes(points, value, high, len(self.runs.seeds))),
        )

    def _interval(self, value: float, high: float | None) -> tuple[float, float] | None:
        """Returns the 95 % interval around the answer, on the grid, after each seed's knee has been looked for."""
        if len(self.runs.seeds) < 2:
            return None
        anchor = value if value or high is None else high  # when nothing holds, the lowest load tried
        self.runs.make([(anchor, seed) for seed in self.runs.seeds])
        step = max((high if high is not None else anchor) - anchor, self.grid.step(anchor), 0.05 * anchor)
        self.knees.reach(dict.fromkeys(self.runs.seeds, (anchor, anchor)), step)
        knees = [self.knees.or_end(seed, anchor) for seed in self.runs.seeds]
        interval = t_interval(knees, self._fit_spread(anchor, step))
        assert interval is not None, f"no interval from {len(knees)} knees"
        low, upper = (self._on_grid(bound) for bound in interval)
        return min(low, value), max(upper, value)

    def _fit_spread(self, anchor: float, step: float) -> float:
        """Returns the standard error that the profile's own uncertainty adds; 0 where it cannot be told."""
        self.covers = ("seeds",)
        if self.drawn is None:
            return 0.0
        spread = fit_spread(self.knees, Knees(self.drawn, self.grid), anchor, step)
        if spread is None:
            return 0.0
        self.covers = ("seeds", "fit")
        return spread

    def _on_grid(self, bound: float) -> float:
        if bound <= 0:
            return 0
        return int(bound) if self.grid.is_integer else self.grid.round(bound)


def _monotony_notes(points: tuple[Point, ...], value: float, high: float | None, num_seeds: int) -> list[str]:
    """Says where the curve is not monotone: loads that break below the answer, loads that hold above the break."""
    sure = [(point.load, point.holds) for point in points if point.load is not None and len(point.seeds) == num_seeds]
    below = [f"{load:g}" for load, holds in sure if load < value and not holds]
    above = [f"{load:g}" for load, holds in sure if high is not None and load > high and holds]
    notes = []
    if below:
        notes.append(f"not monotone: something breaks at {', '.join(below)} although {value:g} holds")
    if above:
        notes.append(
            f"not monotone: everything holds again at {', '.join(above)}; the answer is the largest load below the "
            "first break"
        )
    return notes
