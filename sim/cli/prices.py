"""What a GPU costs an hour, as `--gpu-price` says it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sim.cli.checked import gpu_named
from sim.errors import UserError


def parse_prices(texts: Sequence[str], *, of_any: bool) -> tuple[float | None, dict[str, float]]:
    """Reads `2.5` and `h100=2.5`; a GPU may be called as people call it.

    Args:
        texts: of the options.
        of_any: whether a price may stand without a GPU, for all of them.

    Returns:
        The price of any GPU, None where none is given; and those of the GPUs that are named.

    Raises:
        UserError: no price, or an unknown GPU.
    """
    any_gpu, of_gpu = None, {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not 0 <= price < math.inf or not (name or of_any):
            example = "2.5 or h100=2.5" if of_any else "h100=2.5"
            raise UserError(f"--gpu-price {text}: expected a price of an hour, at least 0, as in {example}")
        if name:
            of_gpu[gpu_named("--gpu-price", name)] = price
        else:
            any_gpu = price
    return any_gpu, of_gpu
