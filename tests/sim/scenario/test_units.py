"""A value with a unit reads back as the number it was, whatever unit wrote it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.scenario.units import format_duration, parse_bytes, parse_duration, parse_rate, parse_share


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45s", 45.0),
        ("80ms", 0.08),
        ("1.5 min", 90.0),
        ("8h", 28800.0),
        ("2d", 172800.0),
        ("7us", 7e-6),
        (0, 0.0),
        ("0", 0),
    ],
)
def test_a_duration_is_seconds(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@settings(deadline=None)
@given(st.floats(min_value=0, max_value=1e9))
def test_a_duration_written_is_the_duration_read(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(180.0, "3min"), (90.0, "90s"), (0.08, "80ms"), (0.0, "0s"), (86400.0, "1d")]
)
def test_a_duration_is_written_in_its_largest_whole_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("text", ["1e400s", "nans", "-1s", "5", "", "s", True, None, [1], "1s 2s"])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration|unit"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "size"), [("8GiB", 8 * 2**30), ("1.5 KB", 1500), (4096, 4096), ("16B", 16)])
def test_a_size_is_bytes(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", [0, -1, "8", "8G", "0GiB", 1.5, True])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"size|unit"):
        parse_bytes(text)


def test_a_share_is_a_fraction() -> None:
    assert parse_share("0.1%") == 0.001
    assert parse_share("100 %") == 1.0
    assert parse_share("0") == 0.0


def test_a_rate_may_be_infinite_but_not_zero() -> None:
    assert parse_rate("inf") == math.inf
    assert parse_rate(math.inf) == math.inf
    assert parse_rate(2) == 2.0
    for wrong in (0, -1, "5", True, math.nan, None):
        with pytest.raises(ValueError, match="a rate is a number"):
            parse_rate(wrong)
