"""Which configurations are not beaten: the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sim.search.measures import Measure
from sim.search.outcome import Outcome

_T = TypeVar("_T")


def losses(measures: Sequence[Measure], outcome: Outcome) -> tuple[float, ...]:
    """Returns the values with their signs turned so that less is better; what has no value is worst."""
    found = []
    for measure in measures:
        value = outcome.measures[measure.name]
        sign = 1.0 if measure.direction == "minimize" else -1.0
        found.append(float("inf") if value is None else sign * value)
    return tuple(found)


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one is nowhere worse and somewhere better (less is better)."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def pareto_front(items: Sequence[tuple[_T, tuple[float, ...]]]) -> list[_T]:
    """Returns the items that no other dominates, in the order given; equal ones stay together.

    Args:
        items: each with its losses.
    """
    return [item for item, own in items if not any(dominates(other, own) for _, other in items)]
