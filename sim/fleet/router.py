"""The router: between a workload's clients and the replicas. It chooses, sends again what failed, and counts.

A request is routed at the moment it is sent. Nothing in the system changes between two events of its engines, so the
router need not be a process: every engine, before it looks for new requests, lets the router send what is due, and a
timer does so when no engine would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sim.engine.process import Clock
from sim.engine.step_time import ClientLatency
from sim.fleet.routing import Endpoint, Routing
from sim.records import FleetLog, Outcome, RequestRecord, RunRecord
from sim.workload.client import ClientRequest, Workload, new_record

NO_REPLICA = -1
"""The replica of a request that never reached one."""


class Target(Endpoint, Protocol):
    """A replica, as the router uses it."""

    @property
    def is_listed(self) -> bool:
        """Whether requests may be sent there."""

    @property
    def is_idle(self) -> bool:
        """Whether it is there and has to be woken."""

    def take(self, client: ClientRequest) -> None:
        """Gets a request."""

    def wake(self) -> None:
        """Looks at what has come."""


class Router:
    """Sends each request to a replica, by a rule.

    Args:
        workload: sends the requests and is told how each ended.
        clock: of all replicas.
        routing: the rule.
        run: the records to fill.
        log: of what happens to replicas.
        latency: time outside the engine.
        max_retries: how often a request that failed before its first token is sent again (the production stack's
            `--max-retries`; once an answer streams, nothing can be taken back).
    """

    def __init__(
        self,
        workload: Workload,
        clock: Clock,
        routing: Routing,
        run: RunRecord,
        *,
        log: FleetLog,
        latency: ClientLatency,
        max_retries: int = 0,
    ) -> None:
        self.workload = workload
        self.targets: Sequence[Target] = ()
        self.records: dict[int, RequestRecord] = {}  # of requests that are sent again, by request_id
        self._clock = clock
        self._routing = routing
        self._run = run
        self._log = log
        self._latency = latency
        self._max_retries = max_retries
        self._tried: dict[int, list[int]] = {}  # request_id -> replicas where it failed
        self._num_open = 0
        self._last_done_ns = 0
        self._timer_ns: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether a request is under way or will be sent."""
        return self._num_open > 0 or self.workload.next_send_ns() is not None

    def deliver(self, now_ns: int) -> None:
        """Sends all requests that are due by now."""
        for client in self.workload.pop_due(now_ns):
            self._num_open += 1
            self._send(client)
        self._set_timer(now_ns)

    def on_done(self, client: ClientRequest, outcome: Outcome, num_output_tokens: int, now_ns: int) -> None:
        """Tells the client how its request ended."""
        self._num_open -= 1
        if self._tried:
            self._tried.pop(client.request_id, None)
        # Replicas notice timeouts at their own steps' ends; clients are told in order.
        self._last_done_ns = max(self._last_done_ns, now_ns)
        self.workload.on_done(client, outcome, num_output_tokens, self._last_done_ns)
        self._set_timer(self._clock.now_ns)

    def on_failed(self, client: ClientRequest, number: int, record: RequestRecord | None = None) -> None:
        """Takes back a request whose replica failed: it is sent elsewhere, or its client sees the error.

        Args:
            client: the request.
            number: the replica.
            record: its record, where this replica's server had it.
        """
        if record is None:
            record = self.records.pop(client.request_id, None)  # made by a replica where it failed before
        started = record is not None and record.first_token_ns >= 0
        tried = self._tried.setdefault(client.request_id, [])
        tried.append(number)
        if not started and len(tried) <= self._max_retries:
            if record is not None:
                self.records[client.request_id] = record
            self._log.rerouted.append((client.request_id, self._clock.now_ns))
            self._send(client)
        else:
            self._turn_away(client, Outcome.LOST, number, record)

    def forget(self, number: int) -> None:
        """Takes note that a replica has lost its cache."""
        self._routing.forget(number)

    def _send(self, client: ClientRequest) -> None:
        tried = self._tried.get(client.request_id, ())
        listed = [target for target in self.targets if target.is_listed]
        endpoints = [target for target in listed if target.number not in tried] or listed
        if not endpoints:
            self._turn_away(client, Outcome.REJECTED, NO_REPLICA, self.records.pop(client.request_id, None))
            return
        target = self.targets[self._routing.choose(client, endpoints)]
        target.take(client)
        if target.is_idle:  # not at once: others may be due at this very moment, and belong to the same step
            self._clock.at(self._clock.now_ns, target.wake)

    def _turn_away(self, client: ClientRequest, outcome: Outcome, number: int, record: RequestRecord | None) -> None:
        """Answers with an error: 503 where there is no replica, a broken connection where it failed."""
        now_ns = self._clock.now_ns
        if record is None:
            record = new_record(client, now_ns, number)
            self._run.requests.append(record)
        record.outcome, record.finish_ns = outcome, now_ns + self._latency.response_ns
        self.on_done(client, outcome, record.num_output_tokens, record.finish_ns)

    def _set_timer(self, now_ns: int) -> None:
        """Makes sure that the router looks again when the next request is due."""
        next_ns = self.workload.next_send_ns()
        if next_ns is not None and (self._timer_ns is None or next_ns < self._timer_ns):
            self._timer_ns = max(next_ns, now_ns)
            self._clock.at(self._timer_ns, self._on_timer)

    def _on_timer(self) -> None:
        now_ns = self._clock.now_ns
        if self._timer_ns is not None and self._timer_ns <= now_ns:
            self._timer_ns = None
        self.deliver(now_ns)
