"""Token ids for token streams: what a simulated prompt, made of named streams, is sent to a real server as.

A stream's tokens are drawn from its name, so equal streams are equal text. The salt makes two runs' texts differ, so
that the second does not hit what the first left in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sim.workload.client import Segment

FIRST_ID = 1_000
LAST_ID = 9_999
"""Ids that every tokenizer of today has, clear of the special ones at the low end: 9,000 words are enough to make
equal blocks by chance impossible."""

_CHUNK = 1_024


class TokenText:
    """The text of token streams.

    Args:
        salt: another salt is another text.
        vocabulary: the ids to draw from, first and last; None: ids that any model has.
    """

    def __init__(self, salt: int, vocabulary: tuple[int, int] | None = None) -> None:
        self.salt = salt
        self.first, self.last = vocabulary or (FIRST_ID, LAST_ID)
        self._streams: dict[int, list[int]] = {}
        self._answers: dict[int, list[int]] = {}

    def prompt(self, segments: Iterable[Segment]) -> list[int]:
        """Returns the token ids of a prompt."""
        ids: list[int] = []
        for stream, length in segments:
            ids += self._first_ids(stream, length)
        return ids

    def set_answer(self, stream: int, ids: Sequence[int]) -> None:
        """Tells what the model answered in this stream: a later prompt that repeats the answer holds these ids."""
        self._answers[stream] = list(ids)

    def _first_ids(self, stream: int, length: int) -> list[int]:
        answer = self._answers.get(stream)
        if answer is not None and len(answer) >= length:
            return answer[:length]
        ids = self._streams.get(stream, [])
        if len(ids) < length:
            ids = self._streams[stream] = self._draw(stream, -(-length // _CHUNK) * _CHUNK)
        return ids[:length]

    def _draw(self, stream: int, length: int) -> list[int]:
        """Draws a stream from its beginning: a longer draw begins with the shorter one."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.salt, stream))))
        return [int(value) for value in generator.random(length) * (self.last + 1 - self.first) + self.first]
