"""Arrival processes have the rate and the burstiness that they are asked for."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sim.workload.arrivals import Peaks, RateCurve, arrivals_ns, at_once, unit_times
from sim.workload.random import random_stream

rates = st.floats(0.01, 1000)
seeds = st.integers(0, 2**32)


def unit_gaps(burstiness: float, n: int, seed: int = 1) -> NDArray[np.float64]:
    blocks = unit_times(random_stream(seed, "arrivals"), burstiness, None)
    return np.diff(np.concatenate([next(blocks) for _ in range(-(-n // 1024))]), prepend=0.0)


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 1.0, 2.0, 10.0])
def test_gaps_have_mean_one_and_the_variance_of_a_gamma_of_that_shape(burstiness: float) -> None:
    """Gamma(shape B, scale 1/B): mean 1, variance 1/B; B = 1 is the exponential of a Poisson process."""
    gaps = unit_gaps(burstiness, 200_000)
    assert gaps.mean() == pytest.approx(1, rel=0.02)
    assert gaps.var() == pytest.approx(1 / burstiness, rel=0.05)


def test_poisson_counts_have_the_variance_of_their_mean() -> None:
    times = np.cumsum(unit_gaps(1.0, 200_000))
    counts = np.histogram(times, bins=np.arange(0, times[-1], 10.0))[0]
    assert counts.var() == pytest.approx(counts.mean(), rel=0.05)


def test_infinite_burstiness_is_a_constant_gap() -> None:
    assert set(unit_gaps(math.inf, 1024).tolist()) == {1.0}


@given(rate=rates, burstiness=st.sampled_from([0.3, 1.0, 5.0, math.inf]), number=st.integers(1, 300), seed=seeds)
def test_a_given_number_of_requests_ends_exactly_at_number_over_rate(
    rate: float, burstiness: float, number: int, seed: int
) -> None:
    """As in vllm bench: the delays are rescaled so that their sum is N/rate, and the first comes after a gap."""
    times = unit_times(random_stream(seed, "arrivals"), burstiness, number)
    arrivals = list(arrivals_ns(times, RateCurve(rate), None))
    assert len(arrivals) == number
    assert arrivals[-1] == pytest.approx(number / rate * 1e9, rel=1e-9, abs=1)
    assert arrivals == sorted(arrivals)


@given(slow=rates, fast=rates, seed=seeds)
def test_the_same_request_comes_at_every_rate_only_sooner(slow: float, fast: float, seed: int) -> None:
    """Common random numbers: arrival times at two rates are proportional."""

    def first_seconds(rate: float) -> NDArray[np.float64]:
        blocks = unit_times(random_stream(seed, "arrivals"), 0.5, None)
        return RateCurve(rate).time_of(next(blocks))

    assert first_seconds(slow) * slow == pytest.approx(first_seconds(fast) * fast, rel=1e-9)


def test_arrivals_stop_before_the_end() -> None:
    times = unit_times(random_stream(0, "arrivals"), math.inf, None)
    assert list(arrivals_ns(times, RateCurve(2.0), 2_000_000_000)) == [500_000_000, 1_000_000_000, 1_500_000_000]


def test_all_at_once_is_at_time_zero() -> None:
    assert list(at_once(3)) == [0, 0, 0]


def test_steps_change_the_rate_from_their_moment_on() -> None:
    """Ten a second, then twenty from second 10 on, then none from 20 to 30, then ten again."""
    curve = RateCurve(10.0, ((10.0, 2.0), (20.0, 0.0), (30.0, 1.0)))
    times = unit_times(random_stream(0, "arrivals"), math.inf, None)
    seconds = np.array(list(arrivals_ns(times, curve, 40_000_000_000))) / 1e9
    counts = np.histogram(seconds, bins=[0.0, 10.0001, 20.0001, 30.0, 40.0001])[0]
    assert counts.tolist() == [100, 200, 0, 99]


def test_a_rate_that_falls_to_zero_for_good_ends_the_arrivals() -> None:
    curve = RateCurve(10.0, ((1.0, 0.0),))
    assert len(list(arrivals_ns(unit_times(random_stream(0, "a"), math.inf, None), curve, None))) == 10


def test_a_rate_of_zero_under_peaks_ends_the_arrivals() -> None:
    curve = RateCurve(10.0, ((1.0, 0.0),), Peaks(3.0, 1.0, 10.0))
    assert len(list(arrivals_ns(unit_times(random_stream(0, "a"), math.inf, None), curve, None))) == 10


def test_the_first_peak_starts_half_a_period_in_and_the_next_a_period_later() -> None:
    curve = RateCurve(1.0, peaks=Peaks(factor=3.0, duration_s=60.0, every_s=600.0))
    assert [curve.rate_at(second) for second in (0, 299, 300, 359, 360, 899, 900, 959, 960)] == [
        1, 1, 3, 3, 1, 1, 3, 3, 1,
    ]  # fmt: skip


def test_peaks_add_their_share_of_requests_however_long_it_lasts() -> None:
    """A peak of 3x for a tenth of the time makes 1.2 times as many."""
    curve = RateCurve(10.0, peaks=Peaks(factor=3.0, duration_s=60.0, every_s=600.0))
    times = unit_times(random_stream(0, "arrivals"), math.inf, None)
    assert len(list(arrivals_ns(times, curve, 6_000 * 1_000_000_000))) == pytest.approx(72_000, abs=1)


@given(
    steps=st.lists(st.tuples(st.floats(0, 100), st.sampled_from([0.0, 0.5, 1.0, 4.0])), max_size=4),
    peaks=st.none() | st.builds(Peaks, st.sampled_from([0.5, 3.0]), st.floats(1, 5), st.floats(5, 50)),
    units=st.lists(st.floats(0.001, 500), min_size=1, max_size=20),
)
def test_the_time_of_a_unit_is_where_the_integral_of_the_rate_reaches_it(
    steps: list[tuple[float, float]], peaks: Peaks | None, units: list[float]
) -> None:
    curve = RateCurve(2.0, tuple(steps), peaks)
    for unit, second in zip(sorted(units), curve.time_of(np.array(sorted(units))).tolist(), strict=True):
        if math.isfinite(second):
            edges = {0.0, second, *(start for start, _ in steps)}
            if peaks:
                for start in np.arange(peaks.every_s / 2, second, peaks.every_s).tolist():
                    edges |= {start, start + peaks.duration_s}
            ordered = [edge for edge in sorted(edges) if edge <= second]
            pieces = pairwise(ordered)
            area = sum((end - start) * curve.rate_at((start + end) / 2) for start, end in pieces)
            assert area == pytest.approx(unit, rel=1e-6)


def test_blocks_join_without_a_seam() -> None:
    blocks = unit_times(random_stream(0, "arrivals"), math.inf, None)
    assert np.concatenate(list(islice(blocks, 3))).tolist() == list(range(1, 3073))
