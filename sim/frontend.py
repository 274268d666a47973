"""What every server does at its door, whatever engine is behind it: requests arrive, clients give up, records are kept.

`sim.api_server` is vLLM's own door; this one serves the other kinds. Time outside the engine is added here: it delays
the client and holds nothing else.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from sim.engine.step_time import ClientLatency
from sim.records import Outcome, RequestRecord, RunRecord
from sim.workload.client import ClientRequest, Workload, new_record


@dataclass(slots=True)
class Arrival:
    """A request that has reached the server, with its two faces."""

    client: ClientRequest
    record: RequestRecord


class Frontend:
    """Between a workload's clients and an engine.

    Args:
        workload: sends the requests and is told how each ended.
        run: the records to fill.
        latency: time outside the engine.
    """

    def __init__(self, workload: Workload, run: RunRecord, latency: ClientLatency) -> None:
        self.workload = workload
        self.run = run
        self.latency = latency
        self.pending: dict[int, Arrival] = {}  # by request_id
        self._in_transit: deque[tuple[int, ClientRequest]] = deque()  # (arrival, request), in order
        self._last_arrival_ns = -latency.serial_ns
        self._deadlines: list[tuple[int, int]] = []  # heap by when the client gives up
        self._last_done_ns = 0

    def arrivals(self, now_ns: int) -> list[Arrival]:
        """Returns the requests that have arrived by now, in order; each is pending until it is closed."""
        for client in self.workload.pop_due(now_ns):
            tokens, previous_ns = client.num_prompt_tokens, self._last_arrival_ns
            self._last_arrival_ns = self.latency.arrival_ns(client.sent_ns, tokens, previous_ns)
            self._in_transit.append((self._last_arrival_ns, client))
        arrived = []
        while self._in_transit and self._in_transit[0][0] <= now_ns:
            arrival_ns, client = self._in_transit.popleft()
            arrived.append(self._receive(client, arrival_ns))
        return arrived

    def given_up(self, now_ns: int) -> list[Arrival]:
        """Returns the pending requests whose clients have given up by now, and closes them."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            deadline_ns, request_id = heapq.heappop(self._deadlines)
            arrival = self.pending.get(request_id)
            if arrival is not None:
                due.append(arrival)
                self.close(request_id, Outcome.TIMED_OUT, deadline_ns)
        return due

    def next_ns(self) -> int | None:
        """Returns when a request is sent or arrives, or a client gives up; None: nothing is known of."""
        while self._deadlines and self._deadlines[0][1] not in self.pending:
            heapq.heappop(self._deadlines)
        times = [queue[0][0] for queue in (self._in_transit, self._deadlines) if queue]
        next_send_ns = self.workload.next_send_ns()
        if next_send_ns is not None:
            times.append(next_send_ns)
        return min(times, default=None)

    def close(self, request_id: int, outcome: Outcome, end_ns: int) -> None:
        """Ends a request, and tells its client.

        Args:
            request_id: a pending one; its record holds what it got.
            outcome: how it ended.
            end_ns: when the client knew.
        """
        arrival = self.pending.pop(request_id)
        record = arrival.record
        record.outcome, record.finish_ns = outcome, end_ns
        self._last_done_ns = max(self._last_done_ns, end_ns)
        self.workload.on_done(arrival.client, outcome, record.num_output_tokens, self._last_done_ns)

    def log_step(
        self,
        *,
        replica: int,
        times_ns: tuple[int, int],
        tokens: tuple[int, int],
        queue: tuple[int, int],
        num_free_blocks: int,
        prefix: tuple[int, int] = (0, 0),
    ) -> None:
        """Writes one row of the step log.

        Args:
            replica: the engine's number.
            times_ns: start and end.
            tokens: prompt tokens in chunks, decodes.
            queue: requests running, waiting.
            num_free_blocks: KV blocks that no request holds.
            prefix: prompt tokens looked up in the prefix cache, found there.
        """
        steps = self.run.steps
        steps.replica.append(replica)
        steps.start_ns.append(times_ns[0])
        steps.end_ns.append(times_ns[1])
        steps.num_prefill_tokens.append(tokens[0])
        steps.num_decodes.append(tokens[1])
        steps.num_running.append(queue[0])
        steps.num_waiting.append(queue[1])
        steps.num_free_blocks.append(num_free_blocks)
        steps.num_preempted.append(0)
        steps.prefix_queries.append(prefix[0])
        steps.prefix_hits.append(prefix[1])

    def _receive(self, client: ClientRequest, arrival_ns: int) -> Arrival:
        record = new_record(client, arrival_ns, replica=0)
        self.run.requests.append(record)
        arrival = self.pending[client.request_id] = Arrival(client, record)
        if client.timeout_ns is not None:
            heapq.heappush(self._deadlines, (client.sent_ns + client.timeout_ns, client.request_id))
        return arrival
