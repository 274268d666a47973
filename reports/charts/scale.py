"""From values to places on a plot, and the round numbers that label its axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values between `low` and `high` to places between `start` and `end` (user units of the SVG)."""

    low: float
    high: float
    start: float
    end: float
    kind: Literal["linear", "log"] = "linear"

    def __call__(self, value: float) -> float:
        """Returns the place of a value, clipped to the plot."""
        if self.kind == "log":
            value, low, high = math.log(max(value, self.low)), math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int) -> list[float]:
        """Returns about so many round values of the axis."""
        return (
            log_ticks(self.low, self.high, wanted) if self.kind == "log" else linear_ticks(self.low, self.high, wanted)
        )


def fit_scale(
    values: list[float], kind: Literal["linear", "log"], start: float, end: float, at_least: float | None = None
) -> Scale:
    """Returns the scale that shows all values: from 0, or from a round number below the smallest where logarithmic."""
    if kind == "log":
        known = [value for value in values if value > 0] or [1.0]
        low, high = _floor_125(min(known)), max(*known, at_least or 0.0) * 1.05
        return Scale(low, high if high > low else low * 10, start, end, "log")
    low = min([0.0, *values])
    high = max([*values, at_least or 0.0], default=1.0)
    return Scale(low, high * 1.04 if high > low else low + 1.0, start, end)


def fit_range(values: list[float], kind: Literal["linear", "log"], start: float, end: float) -> Scale:
    """Returns the scale from the smallest to the largest value, for a horizontal axis."""
    known = [value for value in values if kind == "linear" or value > 0] or [0.0 if kind == "linear" else 1.0]
    low, high = min(known), max(known)
    if high <= low:
        low, high = (low - 1, high + 1) if kind == "linear" else (low / 2, high * 2)
    return Scale(low, high, start, end, kind)


def linear_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Returns multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / max(wanted, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def log_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Returns 1, 2, 5 of each power of ten, fewer when these are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{each * 10.0**power:.10g}") for power in powers for each in factors]
        ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) <= wanted + 1:
            return ticks
    stride = math.ceil(len(ticks) / wanted)
    return ticks[::stride]


def _floor_125(value: float) -> float:
    """Returns the largest 1, 2 or 5 times a power of ten that is not above the value."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * next(factor for factor in (5, 2, 1) if factor * power <= value * (1 + 1e-9))
