"""Named random streams: the same name and seed give the same numbers, whatever else is drawn.

A user, a request class or an arrival process has a stream of its own, so that user 7 holds the same conversation
among ten users and among four hundred (common random numbers), and a change in one place leaves the others alone.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

Sampler = Callable[[Generator, int], NDArray[np.float64]]
"""Draws n independent values."""

IntSampler = Callable[[Generator, int], NDArray[np.int64]]
"""Draws n independent whole numbers."""


def random_stream(seed: int, *names: str | int) -> Generator:
    """Returns the generator of a name: one that is independent of those of all other names and seeds.

    Args:
        seed: the run's seed, ≥ 0.
        names: the path to the stream, such as ("users", 7); texts count by their CRC-32, numbers as they are.
    """
    key = tuple(crc32(name.encode()) if isinstance(name, str) else name for name in names)
    return Generator(PCG64(SeedSequence(seed, spawn_key=key)))


class Draws:
    """Whole numbers from one stream, drawn in blocks and handed out one by one as Python ints."""

    __slots__ = ("_block", "_generator", "_index", "_sampler", "_values")

    def __init__(self, sampler: IntSampler, generator: Generator, block: int = 1024) -> None:
        self._sampler = sampler
        self._generator = generator
        self._block = block
        self._values: list[int] = []
        self._index = 0

    def one(self) -> int:
        """Returns the next value."""
        if self._index == len(self._values):
            self._values = self._sampler(self._generator, self._block).tolist()
            self._index = 0
        value = self._values[self._index]
        self._index += 1
        return value
