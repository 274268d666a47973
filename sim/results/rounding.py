"""How numbers are rounded where results become plain data."""

from __future__ import annotations

import math


def rounded(value: float | None) -> float | int | None:
    """Returns six significant digits; whole numbers stay whole, what is not finite becomes None."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f"{value:.6g}")
