"""The loads that a search may try: whole numbers of users, or rates of three significant digits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sim.scenario.model import ClosedLoopWorkload, OpenLoopWorkload, Scenario, Search, UsersWorkload

Unit = Literal["users", "requests_per_s", "concurrency", "context_tokens"]

UNITS: dict[str, Unit] = {
    "users": "users",
    "request_rate": "requests_per_s",
    "max_concurrency": "concurrency",
    "context_tokens": "context_tokens",
}
"""What `search.vary` names -> the unit of the answer."""

_KIND_UNITS: dict[str, Unit] = {
    "users": "users",
    "open_loop": "requests_per_s",
    "closed_loop": "concurrency",
    "trace": "requests_per_s",
}


def unit_of(scenario: Scenario) -> Unit:
    """Returns the unit of the scenario's load: what it varies, or what its workload is counted in."""
    if scenario.search is not None:
        return UNITS[scenario.search.vary]
    return _KIND_UNITS[scenario.workload.kind]


def own_load(scenario: Scenario) -> float | None:
    """Returns the load that the workload itself states; None for a trace and for a load without a number."""
    match scenario.workload:
        case UsersWorkload(users=users):
            return users
        case OpenLoopWorkload(request_rate=rate, arrivals=arrivals):
            return None if rate is None or math.isinf(rate) or arrivals == "all_at_once" else rate
        case ClosedLoopWorkload(max_concurrency=concurrency):
            return concurrency
    return None


@dataclass(frozen=True, slots=True)
class LoadGrid:
    """The loads between the first and the last that a search may try.

    Whole numbers for users and concurrency, where two neighbours differ by 1 up to 400 and by 0.5 % above; whole
    numbers 1 % apart for context tokens; rates of three significant digits, 1 % apart. `search.resolution` replaces
    the distance.

    Attributes:
        unit: what is counted.
        first: where the search begins.
        ceiling: where it ends.
        resolution: distance of two neighbours, where the scenario sets it.
    """

    unit: Unit
    first: float
    ceiling: float
    resolution: float | None = None

    @classmethod
    def of(cls, search: Search) -> LoadGrid:
        """Returns the grid of a scenario's search."""
        grid = cls(UNITS[search.vary], search.from_, search.to, search.resolution)
        return cls(grid.unit, grid.round(search.from_), grid.round(search.to), search.resolution)

    @property
    def is_integer(self) -> bool:
        """Whether loads are whole numbers."""
        return self.unit != "requests_per_s"

    @property
    def lowest(self) -> float:
        """The smallest load worth asking about when even the first one breaks."""
        return 1 if self.is_integer else self.round(self.first / 64)

    def round(self, load: float) -> float:
        """Returns the nearest load of the grid."""
        if self.is_integer:
            return max(1, round(load))
        return float(f"{load:.3g}")

    def step(self, load: float) -> float:
        """Returns the distance from a load to the next one that counts as more."""
        if self.resolution is not None:
            return max(1, round(self.resolution)) if self.is_integer else self.resolution
        if not self.is_integer:
            return 0.01 * load
        return max(1, int(load) // (100 if self.unit == "context_tokens" else 200))

    def between(self, low: float, high: float) -> float | None:
        """Returns a load halfway between two, or None when they are neighbours already."""
        if high - low <= self.step(low) * (1 + 1e-9):
            return None
        middle = (low + high) / 2
        rounded = math.floor(middle) if self.is_integer else self.round(middle)
        return rounded if low < rounded < high else None

    def above(self, load: float, distance: float) -> float:
        """Returns the load that lies `distance` higher, at least one step, at most the ceiling."""
        return min(self.ceiling, self.round(max(load + distance, load + self.step(load))))

    def below(self, load: float, distance: float) -> float:
        """Returns the load that lies `distance` lower, at least one step, at least the lowest."""
        return max(self.lowest, self.round(min(load - distance, load - self.step(load))))
