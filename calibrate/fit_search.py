"""Least squares with few simulations: bounded Gauss-Newton steps, then a regression through all points near the end.

A residual costs a simulated run and carries noise, for queues are chaotic: a change of a term by a millionth moves a
percentile by half a per cent. `descend` comes near the minimum: the Jacobian comes from steps of a few per cent, is
kept from iteration to iteration and corrected by what each step taught (Broyden's rank-one update). There a point that
chance made a little better would stop it. `refine` therefore does not compare points: it draws a cloud of them, puts
one linear model through all, weighted by distance, goes to the minimum of that, and draws again. Noise averages out,
and the same points serve every subset of the residuals (runs left out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Residuals = Callable[[Sequence[Floats]], list[Floats]]
"""Points in, the residuals at each out: several at once, so that they can be computed side by side."""

PartResiduals = Callable[[Sequence[Floats], Sequence[int]], list[dict[int, Floats]]]
"""Points and parts of the data in, the residuals by part at each point out."""

_FIRST_DIFFERENCE = 0.05
_DIFFERENCES = (0.01, 0.4)
_CHANGE = 1.0
"""A difference is chosen so that residuals change by this many units, as far as the last Jacobian knows, within the
bounds above, relative to the term."""

_SMALLEST = 0.3
"""Differences and steps are taken relative to a term, but to no less than this share of its start."""

_TRUST = 0.5
"""The longest step, relative to each term; a third of the last one after a step that did not help."""

_ZERO = 1e-6
"""Of a term's start: what lies below is at the boundary."""

_FAILURES = 3
_ENOUGH = 1e-3

_ROUNDS = 6  # towards the minimum of the linear model at most
_REACH = 1.5
_FAR = 2.0
_SETTLED = 0.3
"""In scales of a cloud: points beyond the first count little, no step is longer than the second, and a minimum that
moved less than the third has settled."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of the terms without data.

    Attributes:
        mean: centre of an independent normal distribution of each.
        sigma: its standard deviation.
        upper: the largest value that makes sense; the smallest is 0.
    """

    mean: Floats
    sigma: Floats
    upper: Floats


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


def descend(
    residuals: Residuals,
    start: Floats,
    prior: Prior,
    *,
    max_jacobians: int = 2,
    report: Callable[[int, float], None] = lambda _points, _cost: None,
) -> Solution:
    """Minimizes the robust sum of squares over 0 ≤ x ≤ upper.

    Args:
        residuals: the residuals at points.
        start: where to begin.
        prior: what is believed without data.
        max_jacobians: how often the Jacobian is measured at most.
        report: told the number of points so far and the cost after each step.
    """
    best = Solution(start, residuals([start])[0], np.zeros((0, 0)), 0.0, 1)
    best.cost = _cost(best.residuals, best.x, prior)
    for _ in range(max_jacobians):
        best.jacobian = _measured_jacobian(residuals, best, prior.upper)
        best.num_points += len(start)
        before = best.cost
        _descend(residuals, best, prior, report)
        if before - best.cost < 0.01 * before:
            break
    return best


@dataclass
class Cloud:
    """Points near a minimum, with the residuals of each part of the data at each.

    Attributes:
        scale: how far each term has to move for the residuals to stand out of their noise.
        points: where residuals are known.
        found: by part of the data, the residuals at each point, None where they were not asked for.
    """

    scale: Floats
    points: list[Floats] = field(default_factory=list)
    found: list[dict[int, Floats]] = field(default_factory=list)

    def add(self, points: Sequence[Floats], parts: Sequence[int], residuals: PartResiduals) -> None:
        """Asks for residuals at points."""
        for x, known in zip(points, residuals(points, parts), strict=True):
            self.points.append(x)
            self.found.append(known)

    def model(self, center: Floats, parts: Sequence[int]) -> tuple[Floats, Floats]:
        """Returns residuals and Jacobian at a point, of these parts one after the other, by regression."""
        values, slopes = zip(*(self._part(center, part) for part in parts), strict=True)
        return np.concatenate(values), np.concatenate(slopes)

    def weight(self, center: Floats, parts: Sequence[int]) -> float:
        """Returns how many points speak of a place, each by its distance."""
        rows = [x for x, known in zip(self.points, self.found, strict=True) if all(part in known for part in parts)]
        return float(np.sum(self._weights(center, rows))) if rows else 0.0

    def drawn(self, center: Floats, upper: Floats, number: int, rng: np.random.Generator) -> list[Floats]:
        """Draws points about a centre: every term moves in each of them."""
        moves = rng.choice([-1.0, 1.0], (number, len(center))) * rng.uniform(0.4, 1.0, (number, len(center)))
        return [np.clip(center + move * self.scale, 0.0, upper) for move in moves]

    def _part(self, center: Floats, part: int) -> tuple[Floats, Floats]:
        rows = [i for i, known in enumerate(self.found) if part in known]
        moved = np.array([(self.points[i] - center) / self.scale for i in rows])
        weights = self._weights(center, [self.points[i] for i in rows])[:, None]
        design = np.hstack([np.ones((len(rows), 1)), moved])
        values = np.array([self.found[i][part] for i in rows])
        ridge = 1e-3 * np.eye(design.shape[1])
        solved = np.linalg.solve(design.T @ (weights * design) + ridge, design.T @ (weights * values))
        return solved[0], (solved[1:] / self.scale[:, None]).T

    def _weights(self, center: Floats, points: Sequence[Floats]) -> Floats:
        away = (np.array(points) - center) / self.scale
        return np.asarray(np.exp(-0.5 * np.mean(away**2, axis=1) / _REACH**2))


def start_cloud(near: Solution) -> Cloud:
    """Returns an empty cloud whose scale suits what a descent learnt."""
    change = np.sqrt(np.mean(near.jacobian**2, axis=0))
    size = np.maximum(near.x, _SMALLEST)
    return Cloud(np.clip(_CHANGE / np.maximum(change, 1e-9), _DIFFERENCES[0] * size, _DIFFERENCES[1] * size))


def refine(
    residuals: PartResiduals,
    parts: Sequence[int],
    cloud: Cloud,
    prior: Prior,
    *,
    center: Floats,
    report: Callable[[int, float], None] = lambda _points, _cost: None,
) -> Solution:
    """Goes to the minimum of a linear model through all points of a cloud, drawing more of them about each minimum.

    Three points for every two terms are drawn before each round, unless as many lie there already.

    Args:
        residuals: the residuals of parts of the data at points.
        parts: those that count.
        cloud: points known already; new ones are added.
        prior: what is believed without data.
        center: where to begin.
        report: told the number of points and the cost of the model.
    """
    rng = np.random.default_rng(len(cloud.points))
    number = 3 * len(center) // 2 + 1
    for _ in range(_ROUNDS):
        if cloud.weight(center, parts) < number:
            cloud.add([center, *cloud.drawn(center, prior.upper, number, rng)], parts, residuals)
        model = cloud.model(center, parts)
        moved = _minimum(model, center, prior, cloud.scale) - center
        center = center + moved
        report(len(cloud.points), _cost(model[0] + model[1] @ moved, center, prior))
        if np.max(np.abs(moved) / cloud.scale) < _SETTLED:
            break
    values, slopes = cloud.model(center, parts)
    return Solution(center, values, slopes, _cost(values, center, prior), len(cloud.points))


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


def _descend(residuals: Residuals, best: Solution, prior: Prior, report: Callable[[int, float], None]) -> None:
    """Takes steps, each checked, until they no longer pay."""
    trust, failures = _TRUST, 0
    while failures < _FAILURES:
        step = _step(best, prior, trust)
        if np.max(np.abs(step) / np.maximum(best.x, _SMALLEST)) < _ENOUGH:
            return
        x = np.clip(best.x + step, 0.0, prior.upper)
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
    """Returns the Jacobian from one step along each term, long enough to stand out of the noise of the residuals."""
    relative = np.full(len(at.x), _FIRST_DIFFERENCE)
    if at.jacobian.size:
        change = np.sqrt(np.mean(at.jacobian**2, axis=0)) * np.maximum(at.x, _SMALLEST)
        relative = np.clip(_CHANGE / np.maximum(change, 1e-9), *_DIFFERENCES)
    steps = relative * np.maximum(at.x, _SMALLEST)
    steps = np.where(at.x + steps > upper, -np.minimum(steps, at.x), steps)
    found = residuals([at.x + step * unit for step, unit in zip(steps, np.eye(len(steps)), strict=True)])
    return np.array([(each - at.residuals) / step for each, step in zip(found, steps, strict=True)]).T


def _step(at: Solution, prior: Prior, trust: float) -> Floats:
    """Returns the best step of the linear model that is no longer than the trust."""
    return _bounded((at.residuals, at.jacobian), at.x, prior, trust * np.maximum(at.x, _SMALLEST))


def _minimum(model: tuple[Floats, Floats], x: Floats, prior: Prior, scale: Floats) -> Floats:
    """Returns the minimum of the robust cost of a linear model, within the reach of the cloud about x."""
    values, slopes = model
    moved = np.zeros(len(x))
    for _ in range(10):  # weights follow the residuals
        step = _bounded((values + slopes @ moved, slopes), x + moved, prior, _FAR * scale)
        moved = np.clip(moved + step, -_FAR * scale, _FAR * scale)
        if np.max(np.abs(step) / scale) < 1e-3:
            break
    found = np.clip(x + moved, 0.0, prior.upper)
    return np.where(found < _ZERO, 0.0, found)


def _bounded(model: tuple[Floats, Floats], x: Floats, prior: Prior, reach: Floats) -> Floats:
    from scipy.optimize import lsq_linear

    values, slopes = model
    weights = _weights(values)
    matrix = np.vstack([slopes * weights[:, None], np.diag(1.0 / prior.sigma)])
    target = -np.concatenate([values * weights, (x - prior.mean) / prior.sigma])
    low = np.maximum(-x, -reach) - 1e-12
    high = np.minimum(prior.upper - x, reach) + 1e-12
    return np.asarray(lsq_linear(matrix, target, bounds=(low, high)).x)


def _weights(residuals: Floats) -> Floats:
    """Returns the weights that make a squared residual count like a soft L1 loss beyond one unit."""
    return np.asarray((1.0 + residuals**2) ** -0.25)


def _cost(residuals: Floats, x: Floats, prior: Prior) -> float:
    soft = 2.0 * (np.sqrt(1.0 + residuals**2) - 1.0)
    return float(np.sum(soft) + np.sum(((x - prior.mean) / prior.sigma) ** 2))
