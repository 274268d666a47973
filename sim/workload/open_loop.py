"""Open loop: requests are sent when they are wanted, however busy the server is."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

from sim.records import Outcome
from sim.workload.client import ClientRequest, Retries
from sim.workload.requests import RequestSource


class OpenLoop:
    """Sends every request at its arrival, and again after a failure when clients retry.

    Args:
        source: the requests and their arrivals.
        class_names: of the source's classes.
        retries: what clients do after a timeout or a 503.
        end_ns: nothing is sent from here on; None: until the source ends.
        warnings: of the source.
    """

    def __init__(
        self,
        source: RequestSource,
        class_names: tuple[str, ...],
        retries: Retries | None = None,
        end_ns: int | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.class_names = class_names
        self.warnings = warnings
        self._source = source
        self._retries = retries or Retries()
        self._end_ns = end_ns
        self._last_ns = 0
        self._num_requests = 0
        self._again: list[tuple[int, int, ClientRequest]] = []  # a heap of (when, id of the failed one, the failed one)

    @property
    def arrivals_end_ns(self) -> int:
        """When new work stops (see `Workload`)."""
        return self._last_ns if self._end_ns is None else self._end_ns

    def next_send_ns(self) -> int | None:
        """Returns when the next request is to be sent (see `Workload`)."""
        first = self._source.next_ns
        if self._again and (first is None or self._again[0][0] <= first):
            first = self._again[0][0]
        return None if first is None or self._is_over(first) else first

    def pop_due(self, now_ns: int) -> list[ClientRequest]:
        """Returns the requests whose time has come (see `Workload`)."""
        due: list[ClientRequest] = []
        while (send_ns := self.next_send_ns()) is not None and send_ns <= now_ns:
            due.append(self._send(send_ns))
            self._last_ns = max(self._last_ns, send_ns)
        return due

    def on_done(
        self,
        request: ClientRequest,
        outcome: Outcome,
        num_output_tokens: int,  # noqa: ARG002  # nothing follows from an answer
        now_ns: int,
    ) -> None:
        """Plans a retry where there is to be one (see `Workload`)."""
        self._last_ns = max(self._last_ns, now_ns)
        delay_ns = self._retries.delay_ns(request, outcome)
        if delay_ns is not None:
            heappush(self._again, (now_ns + delay_ns, request.request_id, request))

    def _send(self, send_ns: int) -> ClientRequest:
        request_id = self._num_requests
        self._num_requests += 1
        if self._again and self._again[0][0] == send_ns:
            failed = heappop(self._again)[2]
            return replace(
                failed, request_id=request_id, queued_ns=send_ns, sent_ns=send_ns, attempt=failed.attempt + 1
            )
        return self._source.take(request_id, send_ns)

    def _is_over(self, send_ns: int) -> bool:
        return self._end_ns is not None and send_ns >= self._end_ns
