"""How far the answer may be trusted: a 95 % confidence interval from the seeds.

Each seed is one day as it might have been, and has a knee of its own: the load at which that day's worst objective
reaches its bound, interpolated (logarithm of measure over bound, linear in the load) between two loads that were
simulated. The interval is Student's t interval of the mean of these knees: in 95 % of such searches it holds the mean
knee that ever more seeds would give. It says nothing of the spread from one day to the next (which is wider).

Where the profile states how sure its step times are, the interval covers that too. More seeds do not make a profile any
surer, so the two are kept apart: each seed's knee is looked for again with step times drawn from the profile's
covariance, and the root mean square of the differences is the standard error that the fit adds. It is known from as
many draws as there are seeds, so it is widened by Student's t as well; the two half-widths are added as squares. What a
profile's form cannot express is in neither (the profile states its errors on runs it had not seen).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev


def t_interval(values: Sequence[float], spread: float = 0.0) -> tuple[float, float] | None:
    """Returns the 95 % t interval of the mean, or None for fewer than two values.

    Args:
        values: one a seed.
        spread: standard error of what all of them have in common, estimated from as many draws as there are values
            (and around a known mean, so with one degree of freedom more).
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # noqa: PLC0415 - only a search with several seeds needs it

    number = len(values)
    half = float(stdtrit(number - 1, 0.975)) * stdev(values) / math.sqrt(number)
    if spread:
        half = math.hypot(half, float(stdtrit(number, 0.975)) * spread)
    return fmean(values) - half, fmean(values) + half


def seed_knee(excess: Mapping[float, float], around: float) -> float | None:
    """Finds the load at which one seed's measure-to-bound ratio crosses 1, nearest to a given load.

    Args:
        excess: load -> the seed's worst ratio there; `around` is among the loads.
        around: the load to start from: upwards when the seed holds there, downwards when it breaks.

    Returns:
        the knee, or None when it does not lie between two of the loads.
    """
    bracket = seed_bracket(excess, around)
    if bracket is None:
        return None
    low, high = bracket
    return _crossing(low, excess[low], high, excess[high])


def seed_bracket(excess: Mapping[float, float], around: float) -> tuple[float, float] | None:
    """Returns the two loads between which the knee lies: the seed holds at the lower one and breaks at the higher.

    Args:
        excess: as for `seed_knee`.
        around: as for `seed_knee`.
    """
    loads = sorted(excess)
    position = loads.index(around)
    holds = excess[around] <= 1
    path = loads[position:] if holds else loads[position::-1]
    for near, far in pairwise(path):
        if (excess[far] <= 1) != holds:
            return (near, far) if holds else (far, near)
    return None


def _crossing(low: float, low_excess: float, high: float, high_excess: float) -> float:
    """Interpolates where the ratio reaches 1; a ratio without a finite logarithm puts it in the middle."""
    if low_excess <= 0 or math.isinf(high_excess):
        return (low + high) / 2
    below, beyond = -math.log(low_excess), math.log(high_excess)
    return low + (high - low) * below / (below + beyond) if below + beyond > 0 else (low + high) / 2
