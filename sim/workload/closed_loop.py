"""Closed loop with a cap: what `vllm bench serve --request-rate R --burstiness B --max-concurrency C` does.

Each request is spawned at its arrival time and then waits for one of C permits, first come first served
(asyncio.Semaphore); it is sent when it has one. TTFT and E2E count from the send, so time at the semaphore is in
neither; `queued_ns` keeps the spawn.
"""

from __future__ import annotations

from collections import deque

from sim.records import Outcome
from sim.workload.client import ClientRequest
from sim.workload.requests import RequestSource


class ClosedLoop:
    """Sends requests at their arrivals, at most `max_concurrency` at a time.

    A permit goes to the oldest spawned request at once, so there are never both free permits and spawned requests
    without one: either the next request is still to come, or all permits are out.

    Args:
        source: the requests and when they are spawned.
        class_names: of the source's classes.
        max_concurrency: the number of permits.
        end_ns: nothing is sent from here on; None: until the source ends.
        warnings: of the source.
    """

    def __init__(
        self,
        source: RequestSource,
        class_names: tuple[str, ...],
        max_concurrency: int,
        end_ns: int | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.class_names = class_names
        self.warnings = warnings
        self._source = source
        self._free_permits = max_concurrency
        self._end_ns = end_ns
        self._last_ns = 0
        self._num_requests = 0
        self._is_closed = False  # the oldest spawned request got no permit before the end
        self._ready: deque[ClientRequest] = deque()  # have a permit, not popped yet

    @property
    def arrivals_end_ns(self) -> int:
        """When new work stops (see `Workload`)."""
        return self._last_ns if self._end_ns is None else self._end_ns

    def next_send_ns(self) -> int | None:
        """Returns when the next request is to be sent (see `Workload`)."""
        if self._ready:
            return self._ready[0].sent_ns
        if not self._free_permits or self._is_closed:
            return None
        spawn_ns = self._source.next_ns
        return None if spawn_ns is None or self._is_over(spawn_ns) else spawn_ns

    def pop_due(self, now_ns: int) -> list[ClientRequest]:
        """Returns the requests whose time has come (see `Workload`)."""
        due: list[ClientRequest] = []
        while (send_ns := self.next_send_ns()) is not None and send_ns <= now_ns:
            if not self._ready:
                self._free_permits -= 1
                self._acquire(send_ns)
            due.append(self._ready.popleft())
            self._last_ns = max(self._last_ns, send_ns)
        return due

    def on_done(
        self,
        request: ClientRequest,  # noqa: ARG002  # one permit is like another
        outcome: Outcome,  # noqa: ARG002  # the benchmark client does not retry
        num_output_tokens: int,  # noqa: ARG002  # nothing follows from an answer
        now_ns: int,
    ) -> None:
        """Hands the permit to the oldest request that waits for one (see `Workload`)."""
        self._last_ns = max(self._last_ns, now_ns)
        spawn_ns = self._source.next_ns
        is_waiting = spawn_ns is not None and spawn_ns <= now_ns and not self._free_permits
        if is_waiting and not self._is_over(now_ns):
            self._acquire(now_ns)
        else:
            self._is_closed |= is_waiting  # those behind it would be sent later still
            self._free_permits += 1

    def _acquire(self, sent_ns: int) -> None:
        self._ready.append(self._source.take(self._num_requests, sent_ns))
        self._num_requests += 1

    def _is_over(self, send_ns: int) -> bool:
        return self._end_ns is not None and send_ns >= self._end_ns
