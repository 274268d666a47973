"""The effect of a change on one measure: the mean of the differences of equal seeds, and how far it may be trusted.

A seed is one day as it might have been, and both servers are given the same day: the same users, the same prompts, the
same arrivals. So the differences vary far less than the measures themselves, and the interval (Student's t of the mean
difference, 95 %) tells small effects from chance. It says nothing of the error of the step times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from sim.capacity.interval import t_interval


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change does to one measure, in its unit.

    Attributes:
        before: mean over the seeds that have data with and without the change; None when there is none.
        after: the same with the change.
        difference: after - before.
        low, high: 95 % interval of the difference; None for fewer than two seeds.
        num_pairs: seeds compared.
    """

    before: float | None
    after: float | None
    difference: float | None
    low: float | None
    high: float | None
    num_pairs: int

    @property
    def is_clear(self) -> bool:
        """Whether the effect is told from chance: the interval lies on one side of 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def is_none(self) -> bool:
        """Whether the measure is the same in every seed."""
        return self.num_pairs > 0 and self.difference == 0 and self.low in (None, 0) and self.high in (None, 0)


def effect_of(before: Sequence[float | None], after: Sequence[float | None]) -> Effect:
    """Compares two servers seed by seed.

    Args:
        before: one value a seed; None without data.
        after: the same seeds, with the change.
    """
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    if not pairs:
        return Effect(None, None, None, None, None, 0)
    differences = [b - a for a, b in pairs]
    low, high = t_interval(differences) or (None, None)
    return Effect(
        fmean(a for a, _ in pairs), fmean(b for _, b in pairs), fmean(differences), low, high, len(pairs)
    )  # fmt: skip
