"""Values with a unit, as a scenario writes them: `45s`, `80ms`, `8GiB`, `0.1%`, `inf`.

Inside, durations are seconds (float), sizes are bytes (int), shares are fractions (float).
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
MOST_SECONDS_OF_ANY = 1e9
"""Of any duration: far beyond the longest run, and its nanoseconds fit 64 bits."""

_USUAL_NAMES = {
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "m": "min", "mins": "min", "minute": "min",
    "minutes": "min", "hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d",
    "msec": "ms", "millisecond": "ms", "milliseconds": "ms", "µs": "us", "microseconds": "us",
    "G": "GiB", "M": "MiB", "K": "KiB", "gb": "GB", "mb": "MB", "kb": "KB", "gib": "GiB", "mib": "MiB", "kib": "KiB",
}  # fmt: skip
_NUMBER_AND_UNIT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)")


def parse_duration(value: Any) -> float:
    """Returns the seconds of a text like `45s`; 0 needs no unit.

    Raises:
        ValueError: not a number with a known unit, negative, or longer than any simulation.
    """
    seconds = _parse(value, SECONDS, what="a duration", example="45s")
    if seconds < 0:
        raise ValueError(f"a duration cannot be negative; got {value!r}")
    if seconds > MOST_SECONDS_OF_ANY:
        raise ValueError(f"a duration is at most 1e9s (31 years); got {value!r}")
    return seconds


def format_duration(seconds: float) -> str:
    """Returns the shortest text that `parse_duration` reads back as the same number: 180.0 -> `3min`."""
    if seconds == 0:
        return "0s"
    for unit in ("d", "h", "min", "s", "ms", "us"):
        number = round(seconds / SECONDS[unit], 9)
        if number == int(number) and number * SECONDS[unit] == seconds:
            return f"{int(number)}{unit}"
    return f"{seconds!r}s"


def parse_bytes(value: Any) -> int:
    """Returns the bytes of a whole number or of a text like `8GiB`.

    Raises:
        ValueError: not a number with a known unit, or not positive.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size: float = value
    else:
        size = _parse(value, BYTES, what="a size", example="8GiB")
    if size <= 0:
        raise ValueError(f"a size must be above 0; got {value!r}")
    return round(size)


def parse_share(text: str) -> float:
    """Returns the fraction of a text like `0.1%`; 0 needs no sign.

    Raises:
        ValueError: no percent sign, or outside 0 to 100 %.
    """
    percent = _parse(text, {"%": 1.0}, what="a share", example="0.1%")
    if not 0 <= percent <= 100:
        raise ValueError(f"a share lies between 0% and 100%; got {text!r}")
    return percent / 100


def parse_rate(value: Any) -> float:
    """Returns requests per second from a number above 0 or `inf`.

    Raises:
        ValueError: neither.
    """
    if value == "inf":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"a rate is a number of requests per second above 0, or inf; got {value!r}")
    return float(value)


def _parse(value: Any, units: dict[str, Any], *, what: str, example: str) -> float:
    """Reads `NUMBER UNIT`; only 0 may stand without a unit."""
    known = ", ".join(units)
    cure = f"units: {known} (for example {example})"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value == 0:
            return 0.0
        raise ValueError(f"{what} needs a unit; got {value}; {cure}")
    if not isinstance(value, str):
        raise ValueError(f"{what} is a number with a unit; got {_show(value)}; {cure}")
    match = _NUMBER_AND_UNIT.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{what} is a number with a unit; got {value!r}; {cure}")
    number, unit = match.groups()
    if math.isinf(float(number)):
        raise ValueError(f"{what} must be finite; got {value!r}")
    if unit in units:
        return float(number) * float(units[unit])
    if not unit:
        if float(number) == 0:
            return 0.0
        raise ValueError(f"{what} needs a unit; got {value!r}; {cure}")
    meant = _USUAL_NAMES.get(unit, _USUAL_NAMES.get(unit.lower()))
    if meant in units:
        raise ValueError(f"unknown unit {unit!r}; got {value!r}; did you mean '{number}{meant}'?")
    raise ValueError(f"unknown unit {unit!r}; got {value!r}; {cure}")


def _show(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r}"


def _write_rate(rate: float) -> float | str:
    return "inf" if math.isinf(rate) else rate


_DURATION_SCHEMA = {
    "anyOf": [
        {"type": "string", "pattern": r"^\s*(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*(us|ms|s|min|h|d)\s*$"},
        {"const": 0},
    ]
}
_BYTES_SCHEMA = {
    "anyOf": [
        {"type": "string", "pattern": r"^\s*(\d+\.?\d*|\.\d+)\s*(B|KiB|MiB|GiB|KB|MB|GB)\s*$"},
        {"type": "integer", "exclusiveMinimum": 0},
    ]
}
_RATE_SCHEMA = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "inf"}]}

Duration = Annotated[
    float, BeforeValidator(parse_duration), PlainSerializer(format_duration), WithJsonSchema(_DURATION_SCHEMA)
]
"""Seconds; written with a unit."""

Bytes = Annotated[int, BeforeValidator(parse_bytes), WithJsonSchema(_BYTES_SCHEMA)]
"""Bytes; written as a whole number or with a unit."""

Rate = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(parse_rate),
    PlainSerializer(_write_rate),
    WithJsonSchema(_RATE_SCHEMA),
]
"""Requests per second; may be infinite."""
