"""How numbers are rounded in plain data."""

from __future__ import annotations

import math

import pytest

from sim.results.rounding import rounded


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (math.inf, None),
        (math.nan, None),
        (3.0, 3),
        (1234567.0, 1234567),
        (1234567.5, 1234570.0),
        (0.12345678, 0.123457),
    ],
)
def test_six_digits_are_kept_whole_numbers_stay_whole_and_what_is_not_finite_is_nothing(
    value: float | None, expected: float | None
) -> None:
    assert repr(rounded(value)) == repr(expected)
