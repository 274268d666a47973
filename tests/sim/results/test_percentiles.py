"""A percentile is numpy's linear one, whether the data are written out or run-length coded."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.results.percentiles import Sample

VALUES = st.integers(min_value=0, max_value=10**13)
RUNS = st.lists(st.tuples(VALUES, st.integers(min_value=0, max_value=40)), max_size=30)
QS = st.floats(min_value=0, max_value=100)


@given(st.lists(VALUES, min_size=1, max_size=200), QS)
def test_a_plain_sample_has_numpys_percentiles(values: list[int], q: float) -> None:
    assert Sample(values).percentile(q) == float(np.percentile(values, q))


@given(RUNS, QS)
def test_a_run_length_coded_sample_equals_the_expanded_one(runs: list[tuple[int, int]], q: float) -> None:
    expanded = [value for value, count in runs for _ in range(count)]
    sample, plain = Sample([v for v, _ in runs], counts=[c for _, c in runs]), Sample(expanded)
    assert len(sample) == len(expanded)
    assert sample.percentile(q) == plain.percentile(q)
    assert sample.mean() == plain.mean()
    assert sample.max() == plain.max()
    if expanded:
        assert sample.percentile(q) == float(np.percentile(expanded, q))
        assert sample.mean() == pytest.approx(float(np.mean(expanded)))


@given(RUNS, QS, QS)
def test_percentiles_grow_with_q_and_stay_within_the_data(runs: list[tuple[int, int]], a: float, b: float) -> None:
    sample = Sample([v for v, _ in runs], counts=[c for _, c in runs])
    low, high = sample.percentile(min(a, b)), sample.percentile(max(a, b))
    if low is None or high is None:
        assert len(sample) == 0
        return
    held = [v for v, c in runs if c]
    assert min(held) <= low <= high <= max(held)


def test_nothing_has_no_percentile() -> None:
    for empty in (Sample([]), Sample([5, 6], counts=[0, 0])):
        assert (empty.percentile(50), empty.mean(), empty.max()) == (None, None, None)


@pytest.mark.parametrize("q", [-1, 100.5])
def test_a_percentile_outside_its_range_is_a_bug(q: float) -> None:
    with pytest.raises(AssertionError, match="outside"):
        Sample([1]).percentile(q)


def test_twenty_five_million_tokens_take_no_time() -> None:
    gaps = np.arange(200_000, dtype=np.int64) % 9973
    sample = Sample(gaps, counts=np.full(200_000, 125, dtype=np.int64))
    assert len(sample) == 25_000_000
    assert sample.percentile(50) == float(np.percentile(gaps, 50))
