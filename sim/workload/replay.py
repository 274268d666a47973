"""A trace as a source of requests, for an open loop or for a client with a cap."""

from __future__ import annotations

import numpy as np

from sim.errors import UserError
from sim.workload.client import ClientRequest, Prompt
from sim.workload.csv_columns import LATEST_SECONDS
from sim.workload.streams import TokenStreams
from sim.workload.trace import Int64s, Trace

_BLOCK = 4096


class ReplayedRequests:
    """The requests of a trace, one after the other.

    Args:
        trace: the recording.
        arrivals_ns: when each request is wanted, ascending (see `replay_times`).
        timeout_ns: the clients' patience.
        priority: of requests for which the trace has none.
    """

    def __init__(self, trace: Trace, arrivals_ns: Int64s, timeout_ns: int | None, priority: int = 0) -> None:
        self._trace = trace
        self._arrivals_ns = arrivals_ns
        self._timeout_ns = timeout_ns
        self._priority = priority
        # A hashed block is a stream by its own number; the fresh streams come after all of these.
        hashes = trace.block_hashes
        self._streams = TokenStreams(first=0 if hashes is None else int(hashes.max(initial=-1)) + 1)
        self._row = 0
        self._block_start = 0
        self._load_block()
        self.next_ns: int | None = self._arrivals[0] if self._arrivals else None

    def take(self, request_id: int, sent_ns: int) -> ClientRequest:
        """Returns the next request (see `RequestSource`)."""
        assert self.next_ns is not None
        row, queued_ns = self._row - self._block_start, self.next_ns
        num_prompt_tokens, output_tokens = self._prompts[row], self._outputs[row]
        request = ClientRequest(
            request_id=request_id,
            prompt=self._prompt(row, num_prompt_tokens),
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=output_tokens,
            output_tokens=output_tokens,
            output_stream=self._streams.fresh(),
            class_id=self._class_ids[row],
            queued_ns=queued_ns,
            sent_ns=sent_ns,
            timeout_ns=self._timeout_ns,
            user_id=self._user_ids[row],
            priority=self._priorities[row],
        )
        self._advance()
        return request

    def _prompt(self, row: int, num_tokens: int) -> Prompt:
        """Returns the hashed blocks, then what is left as text of its own."""
        if self._trace.block_hashes is None:
            return ((self._streams.fresh(), num_tokens),)
        size = self._trace.block_tokens
        hashes = self._trace.block_hashes[self._block_starts[row] : self._block_ends[row]].tolist()
        left = num_tokens - size * len(hashes)
        if left > 0:
            return (*((number, size) for number in hashes), (self._streams.fresh(), left))
        return (*((number, size) for number in hashes[:-1]), (hashes[-1], size + left))

    def _advance(self) -> None:
        self._row += 1
        if self._row - self._block_start == len(self._arrivals):
            self._block_start = self._row
            self._load_block()
        self.next_ns = self._arrivals[self._row - self._block_start] if self._arrivals else None

    def _load_block(self) -> None:
        """Turns the next rows of the arrays into Python ints: much faster than one by one."""
        trace, rows = self._trace, slice(self._block_start, self._block_start + _BLOCK)
        self._arrivals: list[int] = self._arrivals_ns[rows].tolist()
        size = len(self._arrivals)
        self._prompts: list[int] = trace.prompt_tokens[rows].tolist()
        self._outputs: list[int] = trace.output_tokens[rows].tolist()
        self._class_ids = [0] * size if trace.class_ids is None else trace.class_ids[rows].tolist()
        self._user_ids = [-1] * size if trace.user_ids is None else trace.user_ids[rows].tolist()
        self._priorities = [self._priority] * size if trace.priorities is None else trace.priorities[rows].tolist()
        if trace.block_ends is not None:
            self._block_ends: list[int] = trace.block_ends[rows].tolist()
            before = int(trace.block_ends[self._block_start - 1]) if self._block_start else 0
            self._block_starts = [before, *self._block_ends[:-1]]


def replay_times(trace: Trace, scale: float, behind_a_cap: bool) -> Int64s:
    """Returns when each request of a trace is wanted in a replay, in nanoseconds, ascending.

    Behind a cap the client itself is replayed: requests come when the recorded client wanted to send them, in the
    recorded order, and wait for the cap of the replay. Without one they come when they were sent.

    Args:
        trace: the recording.
        scale: recorded times are multiplied by this; 0.5 doubles the rate.
        behind_a_cap: whether the replay has a cap on requests in flight.

    Raises:
        UserError: the replay would last longer than 64 bits of nanoseconds can count.
    """
    times = trace.sent_ns
    if behind_a_cap and trace.wanted_ns is not None:
        times = np.maximum.accumulate(trace.wanted_ns)
    if scale == 1:
        return times
    last_s = float(times[-1]) / 1e9 * scale
    if last_s > LATEST_SECONDS:
        raise UserError(
            f"the recording would be sent over {last_s:.3g} s; at most {LATEST_SECONDS:g} s: change the rate, "
            "time_scale or rate_scale"
        )
    scaled: Int64s = np.rint(times * scale).astype(np.int64)
    return scaled
