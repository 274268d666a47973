"""A toy server that drives a workload through its protocol: it serves first come, first served, in a fixed time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from sim.records import Outcome
from sim.workload.client import ClientRequest, Workload

SECOND = 1_000_000_000


@dataclass
class Served:
    """What happened to one request."""

    request: ClientRequest
    outcome: Outcome
    done_ns: int


@dataclass
class Run:
    """What was sent, in order, and how it ended; `in_flight` is how many others were under way at each sending."""

    sent: list[ClientRequest] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)


Fate = Callable[[ClientRequest], Outcome]


def serve(
    workload: Workload,
    service_ns: int = SECOND,
    slots: int | None = None,
    fate: Fate = lambda _: Outcome.FINISHED,
    most: int = 100_000,
) -> Run:
    """Serves a workload to its end.

    Each request occupies one of `slots` for `service_ns` (no limit when None), or leaves when its client gives up.
    `fate` decides how a request that is not given up ends.
    """
    run = Run()
    free_at = [0] * (slots or 0)
    events: list[tuple[int, int, Served]] = []
    while len(run.sent) < most:
        send_ns = workload.next_send_ns()
        if events and (send_ns is None or events[0][0] <= send_ns):
            now_ns, _, served = heapq.heappop(events)
            run.served.append(served)
            tokens = served.request.output_tokens if served.outcome is Outcome.FINISHED else 0
            workload.on_done(served.request, served.outcome, tokens, now_ns)
            continue
        if send_ns is None:
            return run
        for request in workload.pop_due(send_ns):
            run.in_flight.append(len(events))
            run.sent.append(request)
            start_ns = request.sent_ns
            if slots:
                start_ns = max(start_ns, heapq.heappop(free_at))
            done_ns, outcome = start_ns + service_ns, fate(request)
            if request.timeout_ns is not None and done_ns > request.sent_ns + request.timeout_ns:
                done_ns, outcome = request.sent_ns + request.timeout_ns, Outcome.TIMED_OUT
            if slots:
                heapq.heappush(free_at, max(start_ns, done_ns))
            heapq.heappush(events, (done_ns, request.request_id, Served(request, outcome, done_ns)))
    raise AssertionError("the workload does not end")
