"""Sessions: users who come, work for a while, and go."""

from __future__ import annotations

from dataclasses import dataclass

from sim.workload.random import Draws, IntSampler, random_stream

_BLOCK = 16
_SESSIONS_IN_A_ROW = 12


@dataclass(frozen=True, slots=True)
class Sessions:
    """How long users work and stay away, in turn.

    Attributes:
        length_ns: how long a user works.
        pause_ns: how long a user stays away.
    """

    length_ns: IntSampler
    pause_ns: IntSampler


class Attendance:
    """When one user is there, from a random stream of the user's own.

    Args:
        sessions: how long, and how long not.
        seed: of the run.
        user_id: names the random stream.
        under_way: whether the run starts at any moment of the user's coming and going; else with a session.

    Attributes:
        start_ns: when the current session starts.
        end_ns: when it ends.
    """

    def __init__(self, sessions: Sessions, seed: int, user_id: int, under_way: bool) -> None:
        generator = random_stream(seed, "sessions", user_id)
        self._lengths = Draws(sessions.length_ns, generator, _BLOCK)
        self._pauses = Draws(sessions.pause_ns, generator, _BLOCK)
        self.start_ns = 0
        self.end_ns = self._lengths.one()
        if under_way:
            self._look_in(generator.random())

    def leave(self, now_ns: int) -> None:
        """Ends the session: the user goes when it is over and nothing is awaited any more, and comes back later."""
        self._come_back_at(max(self.end_ns, now_ns) + self._pauses.one())

    def _look_in(self, phase: float) -> None:
        """Sets the current session as one finds it at a moment of a row of them, at this share of the whole row.

        Any moment is equally likely, so a long session or pause is more often met than a short one.
        """
        row = [(self.end_ns, self._pauses.one())]
        row += [(self._lengths.one(), self._pauses.one()) for _ in range(_SESSIONS_IN_A_ROW - 1)]
        moment_ns = int(phase * sum(map(sum, row)))
        for length_ns, pause_ns in row:
            if moment_ns < length_ns:
                self.end_ns = length_ns - moment_ns
                return
            moment_ns -= length_ns
            if moment_ns < pause_ns:
                self._come_back_at(pause_ns - moment_ns)
                return
            moment_ns -= pause_ns

    def _come_back_at(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.end_ns = start_ns + self._lengths.one()
