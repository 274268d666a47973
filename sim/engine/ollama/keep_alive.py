"""OLLAMA_KEEP_ALIVE and `keep_alive`: how long an idle model stays loaded, as Go writes durations."""

from __future__ import annotations

import re
from typing import Any

_NANOSECONDS = {
    "ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}  # fmt: skip
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|min|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_keep_alive(value: Any) -> int | None:
    """Returns the nanoseconds of a keep-alive; 0: unload at once; None: for ever.

    Ollama takes Go's durations (`5m`, `1h30m`, `-1m`) and plain numbers of seconds; negative is for ever. (`5min` and
    `2d`, as scenarios write times, are understood too.)

    Raises:
        ValueError: neither. Ollama itself would answer 400, or take five minutes when it stands in the environment.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return None if value < 0 else round(value * 1e9)
    text = value.strip() if isinstance(value, str) else ""
    if re.fullmatch(r"[+-]?\d+", text):
        return parse_keep_alive(int(text))
    negative, magnitude = text.startswith("-"), text.lstrip("+-")
    if not _WHOLE.fullmatch(magnitude):
        raise ValueError(
            f"a keep-alive is a time such as 5m, 1h30m or 300 (seconds), 0 to unload at once, or -1 to keep the model "
            f"for ever; got {value!r}"
        )
    if negative:
        return None
    return round(sum(float(number) * _NANOSECONDS[unit] for number, unit in _PART.findall(magnitude)))
