"""The answer of a search, or of a single load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from sim.capacity.diagnosis import Diagnosis
from sim.capacity.loads import Unit
from sim.capacity.point import Point

Covered: TypeAlias = Literal["seeds", "fit"]
"""What an interval may cover."""


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """How much the server supports, and why not more.

    Attributes:
        unit: what loads are counted in.
        value: the largest load tried at which everything holds; 0 when none holds; None when nothing was searched.
        low: lower end of the 95 % interval, or None when there is none (one seed, or nothing was searched).
        high: its upper end; None also when the ceiling was reached, as `value` is then only a lower bound.
        ceiling_reached: whether everything still holds at the last load of the search.
        next_load: the next load tried, where something breaks; None when nothing broke.
        resolution: distance between `value` and `next_load`.
        binding_objective: what breaks at `next_load` (for a single load: there).
        diagnosis: the resource behind it, with evidence.
        points: every load tried, in order.
        seeds: the seeds of the scenario.
        num_runs: simulations made.
        covers: what the interval covers: how the seeds differ, and what the profile's fit is not sure of.
        notes: what the reader has to know of the search.
    """

    unit: Unit
    value: float | None
    low: float | None
    high: float | None
    ceiling_reached: bool
    next_load: float | None
    resolution: float | None
    binding_objective: str | None
    diagnosis: Diagnosis | None
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    num_runs: int
    covers: tuple[Covered, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def supported(self) -> bool:
        """Whether some load holds (a search), or the load holds (a single one)."""
        return self.points[-1].holds if self.value is None else self.value > 0
