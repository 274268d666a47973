"""Least squares with few simulations: bounded Gauss-Newton steps, a robust loss, Jacobians reused by Broyden updates.

A residual costs a simulated run and carries a little noise (queues are chaotic), so the Jacobian comes from steps of
a few per cent, is kept from iteration to iteration and corrected by what each step taught (Broyden's rank-one update),
and is measured anew only when that no longer helps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Residuals = Callable[[Sequence[Floats]], list[Floats]]
"""Points in, the residuals at each out: several at once, so that they can be computed side by side."""

_DIFFERENCE = 0.03
_SMALLEST = 0.3
"""Differences and steps are taken relative to a term, but to no less than this share of its start."""

_TRUST = 0.5
"""The longest step, relative to each term; a third of the last one after a step that did not help."""

_FAILURES = 3
_ENOUGH = 1e-3


@dataclass(frozen=True, slots=True)
class Prior:
    """Independent normal priors: centre and standard deviation of each term."""

    mean: Floats
    sigma: Floats


@dataclass(slots=True)
class Solution:
    """Where a search ended.

    Attributes:
        x: the terms.
        residuals: at x.
        jacobian: at x or near it.
        cost: robust, with the prior's part.
        num_points: points at which residuals were asked for.
    """

    x: Floats
    residuals: Floats
    jacobian: Floats
    cost: float
    num_points: int


def search(
    residuals: Residuals,
    start: Floats,
    prior: Prior,
    upper: Floats,
    *,
    max_jacobians: int = 3,
    report: Callable[[int, float], None] = lambda _points, _cost: None,
) -> Solution:
    """Minimizes the robust sum of squares over 0 ≤ x ≤ upper.

    Args:
        residuals: the residuals at points.
        start: where to begin.
        prior: what is believed without data.
        upper: largest values.
        max_jacobians: how often the Jacobian is measured at most.
        report: told the number of points so far and the cost after each step.
    """
    best = Solution(start, residuals([start])[0], np.zeros((0, 0)), 0.0, 1)
    best.cost = _cost(best.residuals, best.x, prior)
    for _ in range(max_jacobians):
        best.jacobian = _measured_jacobian(residuals, best, upper)
        best.num_points += len(start)
        before = best.cost
        _descend(residuals, best, prior, upper, report)
        if before - best.cost < 0.01 * before:
            break
    return best


def covariance(solution: Solution, prior: Prior) -> Floats:
    """Returns the covariance of the terms: the inverse of the curvature, scaled by the residuals where they are large.

    The scale is never below 1, so that a lucky fit claims no less than the stated errors of the targets.
    """
    weights = _weights(solution.residuals)
    weighted = solution.jacobian * weights[:, None]
    curvature = weighted.T @ weighted
    freedom = max(1, len(solution.residuals) - len(solution.x))
    scale = max(1.0, float(np.sum((solution.residuals * weights) ** 2)) / freedom)
    inverse = np.linalg.inv(curvature / scale + np.diag(prior.sigma**-2.0))
    return np.asarray((inverse + inverse.T) / 2)


def _descend(
    residuals: Residuals, best: Solution, prior: Prior, upper: Floats, report: Callable[[int, float], None]
) -> None:
    """Takes steps, each checked, until they no longer pay."""
    trust, failures = _TRUST, 0
    while failures < _FAILURES:
        step = _step(best, prior, upper, trust)
        if np.max(np.abs(step) / np.maximum(best.x, _SMALLEST)) < _ENOUGH:
            return
        x = np.clip(best.x + step, 0.0, upper)
        found = residuals([x])[0]
        best.num_points += 1
        moved = x - best.x
        change = found - best.residuals - best.jacobian @ moved
        best.jacobian = best.jacobian + np.outer(change, moved) / max(float(moved @ moved), 1e-12)
        cost = _cost(found, x, prior)
        report(best.num_points, min(cost, best.cost))
        if cost < best.cost * (1 - _ENOUGH):
            best.x, best.residuals, best.cost, failures = x, found, cost, 0
            trust = min(_TRUST, 2 * trust)
        else:
            failures, trust = failures + 1, min(trust, float(np.max(np.abs(moved)))) / 3


def _measured_jacobian(residuals: Residuals, at: Solution, upper: Floats) -> Floats:
    steps = _DIFFERENCE * np.maximum(at.x, _SMALLEST)
    steps = np.where(at.x + steps > upper, -steps, steps)
    found = residuals([at.x + step * unit for step, unit in zip(steps, np.eye(len(steps)), strict=True)])
    return np.array([(each - at.residuals) / step for each, step in zip(found, steps, strict=True)]).T


def _step(at: Solution, prior: Prior, upper: Floats, trust: float) -> Floats:
    from scipy.optimize import lsq_linear

    weights = _weights(at.residuals)
    matrix = np.vstack([at.jacobian * weights[:, None], np.diag(1.0 / prior.sigma)])
    target = -np.concatenate([at.residuals * weights, (at.x - prior.mean) / prior.sigma])
    reach = trust * np.maximum(at.x, _SMALLEST)
    low = np.maximum(-at.x, -reach) - 1e-12
    high = np.minimum(upper - at.x, reach) + 1e-12
    return np.asarray(lsq_linear(matrix, target, bounds=(low, high)).x)


def _weights(residuals: Floats) -> Floats:
    """Returns the weights that make a squared residual count like a soft L1 loss beyond one unit."""
    return np.asarray((1.0 + residuals**2) ** -0.25)


def _cost(residuals: Floats, x: Floats, prior: Prior) -> float:
    soft = 2.0 * (np.sqrt(1.0 + residuals**2) - 1.0)
    return float(np.sum(soft) + np.sum(((x - prior.mean) / prior.sigma) ** 2))
