"""Token streams: which parts of two prompts are the same text.

A stream is an endless token sequence named by an int. Text that nobody else has gets a fresh stream; shared text gets
the stream of whoever shares it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Literal

from sim.workload.client import Segment

Scope = Literal["all", "team", "user", "none"]


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Text that opens every conversation of a class.

    Attributes:
        text: names the text; prefixes of equal `text` are the same text (a shorter one is the longer one's beginning).
        tokens: its length.
        scope: who has the same text: all users, a team, one user in all conversations, or no other conversation.
    """

    text: str
    tokens: int
    scope: Scope


class TokenStreams:
    """Numbers the streams of one run, from `first` up."""

    def __init__(self, first: int = 0) -> None:
        self._numbers = count(first)
        self._shared: dict[tuple[str, str, int], int] = {}

    def fresh(self) -> int:
        """Returns a stream that nothing else has."""
        return next(self._numbers)

    def of(self, prefix: SharedPrefix, team: int, user: int) -> Segment:
        """Returns the segment of a shared prefix, for a member of `team` who is `user`."""
        if prefix.scope == "none":
            return (self.fresh(), prefix.tokens)
        member = {"all": 0, "team": team, "user": user}[prefix.scope]
        key = (prefix.text, prefix.scope, member)
        stream = self._shared.get(key)
        if stream is None:
            stream = self._shared[key] = self.fresh()
        return (stream, prefix.tokens)
