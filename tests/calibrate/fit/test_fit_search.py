"""The search finds bounded, robust least squares of smooth and of noisy functions, and of parts of the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from calibrate.fit_search import Cloud, Floats, Prior, covariance, descend, refine, start_cloud

WIDE = Prior(np.ones(2), np.array([50.0, 50.0]), np.array([np.inf, np.inf]))
GRID = np.linspace(0, 2, 30)


def curve(x: Floats) -> Floats:
    return 100 * (x[0] * np.exp(-x[1] * GRID) - 2.0 * np.exp(-0.5 * GRID))


def curved(points: Sequence[Floats]) -> list[Floats]:
    return [curve(x) for x in points]


class Noisy:
    """Parts 0 and 1 are the same curve with noise of their own; part 2 wants something else."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.asked = 0

    def __call__(self, points: Sequence[Floats], parts: Sequence[int]) -> list[dict[int, Floats]]:
        self.asked += len(points)
        shift = {0: 0.0, 1: 0.0, 2: 0.2}
        return [{part: curve(x - shift[part]) + self.rng.normal(0, 1.0, len(GRID)) for part in parts} for x in points]


def test_a_curved_problem_is_solved() -> None:
    found = descend(curved, np.ones(2), WIDE, max_jacobians=3)
    np.testing.assert_allclose(found.x, [2.0, 0.5], rtol=0.01)
    assert found.num_points < 40


def test_outliers_count_little() -> None:
    def spoilt(points: Sequence[Floats]) -> list[Floats]:
        return [np.concatenate([each, [5000.0 + 0 * each[0]]]) for each in curved(points)]

    np.testing.assert_allclose(descend(spoilt, np.ones(2), WIDE, max_jacobians=3).x, [2.0, 0.5], rtol=0.02)


def test_bounds_hold() -> None:
    found = descend(lambda points: [100 * (x + 1) for x in points], np.ones(2), WIDE)
    np.testing.assert_allclose(found.x, [0, 0], atol=1e-6)
    capped = Prior(WIDE.mean, WIDE.sigma, np.array([2.0, np.inf]))
    found = descend(lambda points: [100 * (x - 3) for x in points], np.ones(2), capped)
    np.testing.assert_allclose(found.x, [2, 3], rtol=0.01)


def test_a_cloud_averages_noise_out() -> None:
    noisy = Noisy()
    near = descend(lambda points: [each[0] for each in noisy(points, [0])], np.ones(2), WIDE)
    found = refine(noisy, [0, 1], start_cloud(near), WIDE, center=near.x)
    np.testing.assert_allclose(found.x, [2.0, 0.5], rtol=0.02)
    assert noisy.asked < 60


def test_what_was_learnt_with_all_parts_serves_each_subset() -> None:
    noisy = Noisy()
    cloud = Cloud(np.array([0.05, 0.03]))
    refine(noisy, [0, 1, 2], cloud, WIDE, center=np.array([2.05, 0.55]))
    asked = noisy.asked
    found = refine(noisy, [0, 1], Cloud(cloud.scale, list(cloud.points), list(cloud.found)), WIDE, center=found_at())
    np.testing.assert_allclose(found.x, [2.0, 0.5], rtol=0.03)
    assert noisy.asked - asked < asked


def found_at() -> Floats:
    return np.array([2.05, 0.55])


def test_without_data_the_prior_stays_and_its_variance_is_the_answer() -> None:
    prior = Prior(np.ones(2), np.array([0.5, 0.5]), WIDE.upper)
    found = descend(lambda points: [np.array([100 * (x[0] - 2)]) for x in points], np.ones(2), prior)
    assert found.x[0] == pytest.approx(2.0, rel=0.01)
    assert found.x[1] == pytest.approx(1.0, abs=1e-6)
    variance = np.diag(covariance(found, prior))
    assert variance[0] < 0.001
    assert variance[1] == pytest.approx(0.25)
