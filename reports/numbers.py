"""Numbers as terminals show them, and means over the runs of a load as documents hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.capacity.point import mean
from sim.results.rounding import rounded


def show(value: float | None) -> str:
    """Returns three significant digits, whole numbers in full; a dash where there is no value."""
    if value is None:
        return "-"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def mean_of(uses: Sequence[Any], name: str) -> float | int | None:
    """Returns the mean of an attribute over what was recorded of several runs, where they have it."""
    return rounded(mean(None if (value := getattr(use, name)) is None else float(value) for use in uses))
