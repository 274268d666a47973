"""How much a configuration that was not simulated promises, told from those that were.

Each measure is interpolated between the configurations that are known: radial basis functions with the distance itself
as kernel, on the places of the values along their axes, of the logarithm of the measure. That is crude, and enough to
tell which of some tens of proposals to simulate first: nothing else is decided by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import RBFInterpolator

from sim.search.space import Space, is_ordered

FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_UNEXPLORED = 0.1  # of the range of a measure: what a step from one end of an axis to the other counts as
_BROKEN = 10.0  # a proposal that seems to break a constraint comes after all that do not


@dataclass(frozen=True, slots=True)
class Known:
    """A configuration that was simulated.

    Attributes:
        identity: which.
        losses: its measures, less is better; infinite without data.
        feasible: whether it holds every constraint.
    """

    identity: tuple[int, ...]
    losses: tuple[float, ...]
    feasible: bool


def promises(
    space: Space,
    known: Sequence[Known],
    running: Sequence[tuple[int, ...]],
    proposals: Sequence[tuple[int, ...]],
    *,
    explore: bool,
) -> FloatArray:
    """Returns a number for each proposal: the larger, the sooner it should be simulated.

    It is the margin by which the proposal is expected to escape from what is known to be best: the smallest, over all
    feasible configurations, of the largest gain in any measure.

    Args:
        space: every configuration.
        known: at least two that were simulated.
        running: being simulated; they are expected to give what is interpolated for them.
        proposals: to be ranked.
        explore: whether being far from all that is known counts too.
    """
    places = _features(space, [each.identity for each in known])
    values = _scaled(np.array([each.losses for each in known]))
    broken = np.array([not each.feasible for each in known], dtype=float)
    targets = np.column_stack([values, broken])
    model = RBFInterpolator(places, targets, kernel="linear", degree=0)
    asked = _features(space, [*proposals, *running])
    guessed = np.asarray(model(asked))
    here, beside = guessed[: len(proposals)], guessed[len(proposals) :]
    best = values[broken == 0] if (broken == 0).any() else values
    rivals = np.vstack([best, beside[:, :-1]])
    gain = (rivals[None, :, :] - here[:, None, :-1]).max(axis=2).min(axis=1)
    seen = np.vstack([places, asked[len(proposals) :]])
    distance = np.sqrt(((asked[: len(proposals), None, :] - seen[None, :, :]) ** 2).sum(axis=2)).min(axis=1)
    score: FloatArray = gain + _UNEXPLORED * explore * distance - _BROKEN * (here[:, -1] > 0.5)
    return score


def _features(space: Space, identities: Sequence[tuple[int, ...]]) -> FloatArray:
    """Returns coordinates: an axis of numbers has the length 1, two values without an order lie 1 apart."""
    places = np.array(identities, dtype=int).reshape(-1, len(space.axes))
    columns = []
    for position, axis in enumerate(space.axes):
        number = len(axis.values)
        if is_ordered(axis):
            columns.append(places[:, [position]] / max(number - 1, 1))
        else:
            columns.append(np.eye(number)[places[:, position]] / np.sqrt(2))
    return np.hstack(columns)


def _scaled(losses: FloatArray) -> FloatArray:
    """Returns each measure between 0 and 1, on a logarithmic scale where its sign allows; no data counts as worst."""
    scaled = np.empty_like(losses)
    for column, values in enumerate(losses.T):
        finite = values[np.isfinite(values)]
        worst = finite.max() if len(finite) else 0.0
        capped = np.where(np.isfinite(values), values, worst)
        if (capped > 0).all() or (capped < 0).all():
            capped = np.sign(capped) * np.log1p(np.abs(capped) / np.abs(capped).min())
        span = np.ptp(capped)
        scaled[:, column] = (capped - capped.min()) / span if span else 0.0
    return scaled
