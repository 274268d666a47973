"""The interval is Student's, over knees that are interpolated between simulated loads."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.capacity.interval import seed_knee, t_interval


def test_the_interval_is_that_of_the_textbook() -> None:
    # Mean 3, standard deviation sqrt(2.5), t(0.975, 4) = 2.7764 (any table of Student's t).
    low, high = t_interval([1, 2, 3, 4, 5]) or (math.nan, math.nan)
    half = 2.7764 * math.sqrt(2.5 / 5)
    assert (low, high) == (pytest.approx(3 - half, rel=1e-4), pytest.approx(3 + half, rel=1e-4))


def test_one_value_has_no_interval_and_equal_ones_a_point() -> None:
    assert t_interval([7.0]) is None
    assert t_interval([7.0, 7.0, 7.0]) == (7, 7)


@given(knee=st.floats(11, 89), loads=st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_an_exponential_curve_is_interpolated_exactly(knee: float, loads: list[int]) -> None:
    excess = {float(load): math.exp((load - knee) / 20) for load in (*loads, 10, 90)}
    for around in excess:
        assert seed_knee(excess, around) == pytest.approx(knee)


def test_the_crossing_nearest_to_the_answer_counts() -> None:
    bumpy = {1.0: 2.0, 4.0: 0.5, 10.0: 0.9, 20.0: 1.5, 30.0: 0.8, 40.0: 3.0}
    assert 10 < (seed_knee(bumpy, 10.0) or 0) < 20
    assert 10 < (seed_knee(bumpy, 20.0) or 0) < 20
    assert 30 < (seed_knee(bumpy, 30.0) or 0) < 40


def test_a_knee_beyond_all_loads_is_not_made_up() -> None:
    assert seed_knee({1.0: 0.2, 2.0: 0.4}, 1.0) is None
    assert seed_knee({1.0: 1.2, 2.0: 1.4}, 2.0) is None


def test_a_ratio_without_a_logarithm_puts_the_knee_in_the_middle() -> None:
    assert seed_knee({10.0: 0.0, 20.0: 5.0}, 10.0) == 15
    assert seed_knee({10.0: 0.9, 20.0: math.inf}, 10.0) == 15
