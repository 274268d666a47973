"""When each token came out. The records hold gaps by step and class, not by request; most can be put together again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.records import RequestRecord, RunRecord
from sim.results.columns import as_array
from sim.results.percentiles import IntArray

_MOST_OFFSETS = 200  # steps before a first token that its time may belong to


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """The ends of all steps, and how much later a client sees them.

    Attributes:
        ends_ns: when each step ended, in order.
        response_ns: from the end of a step to the client's eyes.
        itl_end_ns, itl_gap_ns, itl_count: the log of gaps.
    """

    ends_ns: IntArray
    response_ns: int
    itl_end_ns: IntArray
    itl_gap_ns: IntArray
    itl_count: IntArray

    @classmethod
    def of(cls, run: RunRecord) -> TokenTimes:
        """Reads them from a run."""
        ends = np.unique(as_array(run.steps.end_ns))
        itl = run.itl
        return cls(ends, _response_ns(run, ends), as_array(itl.end_ns), as_array(itl.gap_ns), as_array(itl.count))

    def gaps_ms(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns every gap between two tokens in milliseconds, and how often it occurs."""
        return self.itl_gap_ns / 1e6, self.itl_count.astype(np.float64)

    def most_per_second(self, done: Iterable[RequestRecord]) -> float:
        """Returns the most tokens that came out in one second, counted from the first send."""
        requests = list(done)
        if not requests:
            return 0.0
        first = min(each.sent_ns for each in requests)
        firsts = np.array([each.first_token_ns for each in requests])
        seconds = np.concatenate([firsts, self.itl_end_ns + self.response_ns]) - first
        weights = np.concatenate([np.ones(len(firsts)), self.itl_count])
        kept = seconds >= 0
        return float(np.bincount(seconds[kept] // 10**9, weights=weights[kept]).max())

    def gaps_of(self, request: RequestRecord) -> list[float]:
        """Returns the gaps of one request in seconds.

        A request that got a token in every step from its first to its last has the gaps of those steps, exactly. One
        that was preempted, or left out of a full step, has equal gaps of the right sum: its pauses are not recorded.
        """
        num_gaps = request.num_output_tokens - 1
        if num_gaps < 1:
            return []
        first, last = (
            int(np.searchsorted(self.ends_ns, time - self.response_ns))
            for time in (request.first_token_ns, request.finish_ns)
        )
        if last - first == num_gaps and last < len(self.ends_ns):
            return [round(float(gap) / 1e9, 9) for gap in np.diff(self.ends_ns[first : last + 1])]
        return [round((request.finish_ns - request.first_token_ns) / num_gaps / 1e9, 9)] * num_gaps


def _response_ns(run: RunRecord, ends: IntArray) -> int:
    """Finds the delay that makes every first token the end of a step."""
    firsts = np.unique(np.array([each.first_token_ns for each in run.requests if each.first_token_ns >= 0], np.int64))
    if not len(firsts) or not len(ends):
        return 0
    place = int(np.searchsorted(ends, firsts[0], side="right"))
    for end in ends[max(0, place - _MOST_OFFSETS) : place][::-1]:
        offset = int(firsts[0] - end)
        if np.isin(firsts - offset, ends, assume_unique=True).all():
            return offset
    return 0
