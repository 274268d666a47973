"""The API server: between a workload's clients and one engine. It admits or refuses, counts, and keeps the records.

Time outside the engine is added here: from the client's send to the engine's queue, and from the end of a step to the
client's eyes. It delays the client and never holds the batch.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from dataclasses import dataclass

from sim.core.request import Request
from sim.engine.engine_core import EngineCore, InFlightBatch, StepOutputs
from sim.engine.engine_time import EngineTime
from sim.engine.steady_steps import SteadySteps
from sim.engine.step_time import ClientLatency
from sim.records import Outcome, RequestRecord, RunRecord
from sim.workload.client import ClientRequest, Workload, new_record

_MOST_USERS = 20_000  # whose last request is remembered: a trace may name a million
_SPARE_DEADLINES = 256


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What the API server refuses.

    Attributes:
        max_model_len: prompts this long or longer, and max_tokens beyond it, are answered 400.
        refuse_sum: 400 as well when prompt + max_tokens exceeds max_model_len; newer versions cut max_tokens instead.
        max_num_queued_reqs: 503 when waiting + running + 1 would exceed it.
        max_num_queued_tokens: 503 when the prompt tokens of requests still in prefill have reached it.
        max_request_tokens: the most tokens one request can hold in the KV pool; longer ones would wait for ever.
    """

    max_model_len: int
    refuse_sum: bool = False
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_request_tokens: int | None = None


@dataclass(slots=True)
class _Pending:
    """A request in the engine, with its two faces."""

    client: ClientRequest
    record: RequestRecord


class ApiServer:
    """Serves a workload with one engine, and fills a run's records.

    Args:
        workload: sends the requests and is told how each ended.
        engine: runs them.
        run: the records to fill.
        limits: what is refused.
        latency: time outside the engine.
        replica: this server's number, in the records.
        records: records of requests that failed elsewhere and come here next, by request_id; each is taken out.
    """

    def __init__(
        self,
        workload: Workload,
        engine: EngineCore,
        run: RunRecord,
        *,
        limits: AdmissionLimits,
        latency: ClientLatency,
        replica: int = 0,
        records: dict[int, RequestRecord] | None = None,
    ) -> None:
        self.workload = workload
        self.engine = engine
        self.run = run
        self.limits = limits
        self.latency = latency
        self.replica = replica
        self._records = {} if records is None else records
        self._pending: dict[Request, _Pending] = {}
        self._in_transit: deque[tuple[int, ClientRequest]] = deque()  # (arrival at the engine, request), in order
        self._last_arrival_ns = -latency.serial_ns
        self._deadlines: list[tuple[int, int, Request]] = []  # heap by when the client gives up
        self._latest_of_user: dict[int, Request] = {}
        self._engine_time = EngineTime()
        self._preempted: dict[int, int] = {}  # request -> its open row in the log of preemptions
        self._num_preempted = 0  # since the last row of the log of steps: a step without tokens has none
        self._num_prefill_tokens = 0  # prompt tokens of requests without a first token
        self._last_done_ns = 0

    def deliver(self, now_ns: int) -> None:
        """Hands the engine all requests that have arrived by now, then aborts those given up by now."""
        for client in self.workload.pop_due(now_ns):
            self._in_transit.append((self._arrival_ns(client), client))
        while self._in_transit and self._in_transit[0][0] <= now_ns:
            arrival_ns, client = self._in_transit.popleft()
            self._receive(client, arrival_ns)
        self.abort_due(now_ns)

    def abort_due(self, now_ns: int) -> None:
        """Aborts requests given up by now."""
        if not self._deadlines or self._deadlines[0][0] > now_ns:
            return
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            deadline_ns, _, request = heapq.heappop(self._deadlines)
            if request in self._pending:
                due.append((request, deadline_ns))
        if not due:
            return
        self.engine.scheduler.abort_requests([request for request, _ in due])
        for request, deadline_ns in due:
            if request.num_output_tokens == 0:
                self._num_prefill_tokens -= request.num_prompt_tokens
            self._close(request, Outcome.TIMED_OUT, deadline_ns)

    def next_event_ns(self) -> int | None:
        """Returns when the next request is sent or arrives, whichever is known to come first."""
        times = [self._in_transit[0][0]] if self._in_transit else []
        next_send_ns = self.workload.next_send_ns()
        if next_send_ns is not None:
            times.append(next_send_ns)
        return min(times, default=None)

    def next_interruptions_ns(self) -> tuple[int, int | None]:
        """Returns when the next request can arrive while none finishes, and when the next client may give up."""
        next_ns = self.next_event_ns()
        return (1 << 62) if next_ns is None else next_ns, self._deadlines[0][0] if self._deadlines else None

    def publish_steady(self, steps: SteadySteps) -> None:
        """Takes steps that were made ahead into the log: none of their tokens is a first or a last one."""
        if steps.first is not None:
            self.publish(*steps.first)
        self._engine_time.add_steady(steps)
        num_steps = len(steps.end_ns)
        zeros = array("q", bytes(8 * num_steps))
        decodes = array("q", [steps.num_decodes]) * num_steps
        log = self.run.steps
        log.replica.extend(array("q", [self.replica]) * num_steps)
        log.start_ns.extend(steps.start_ns)
        log.end_ns.extend(steps.end_ns)
        log.num_decodes.extend(decodes)
        log.num_running.extend(decodes)
        log.num_waiting.extend(array("q", [steps.num_waiting]) * num_steps)
        log.num_free_blocks.extend(steps.num_free_blocks)
        for column in (log.num_prefill_tokens, log.num_preempted, log.prefix_queries, log.prefix_hits):
            column.extend(zeros)
        if num_steps:
            log.num_preempted[-num_steps], self._num_preempted = self._num_preempted, 0
        self._log_steady_gaps(steps)

    def publish(self, batch: InFlightBatch, outputs: StepOutputs) -> None:
        """Takes the tokens of a completed step to their clients, and the step into the log."""
        seen_ns = batch.end_ns + self.latency.response_ns
        for request in outputs.first_tokens:
            self._pending[request].record.first_token_ns = seen_ns
            self._num_prefill_tokens -= request.num_prompt_tokens
        if batch.output.preempted or self._preempted:
            self._log_preemptions(batch)
            self._num_preempted += len(batch.output.preempted)
        if not batch.output.is_empty:
            self._engine_time.add(batch, outputs)
            self._log_step(batch, outputs)
        for request in outputs.finished:
            self._close(request, Outcome.FINISHED, seen_ns)

    def take_back(self) -> list[tuple[ClientRequest, RequestRecord | None]]:
        """Gives up all requests, for the engine has failed; returns each with its record, where it had arrived.

        The caller decides what becomes of them; the records hold what the clients got.
        """
        self.engine.settle()
        taken: list[tuple[ClientRequest, RequestRecord | None]] = []
        for request, pending in self._pending.items():
            self._note_progress(pending.record, request)
            taken.append((pending.client, pending.record))
        taken += [(client, None) for _, client in self._in_transit]
        self._pending.clear()
        self._in_transit.clear()
        return taken

    def warnings(self) -> list[str]:
        """Returns a sentence where requests came that a real server would hold for ever."""
        stuck = self.run.requests.column("outcome").count(Outcome.NEVER_FITS)
        if not stuck:
            return []
        return [
            f"{stuck} of {len(self.run.requests)} requests can never be served: the KV cache holds one of at most "
            f"{self.limits.max_request_tokens} tokens. vLLM would keep each waiting for ever, and in order of arrival "
            "all behind it; here they are turned away at once. Give the KV cache more memory, or lower max_model_len, "
            "so that they are refused"
        ]

    def _arrival_ns(self, client: ClientRequest) -> int:
        self._last_arrival_ns = self.latency.arrival_ns(client.sent_ns, client.num_prompt_tokens, self._last_arrival_ns)
        return self._last_arrival_ns

    def _receive(self, client: ClientRequest, arrival_ns: int) -> None:
        record = self._records.pop(client.request_id, None) if self._records else None
        if record is None:
            record = new_record(client, arrival_ns, self.replica)
            self.run.requests.append(record)
        else:
            record.arrival_ns, record.replica = arrival_ns, self.replica
        refusal = self._refusal(client)
        if refusal is not None:
            record.outcome = refusal
            record.finish_ns = arrival_ns + self.latency.response_ns
            self._tell(client, refusal, 0, record.finish_ns)
            return
        # 0.32 cuts max_tokens to what the context leaves; the scheduler's own length cap comes to the same.
        request = Request(
            client.request_id,
            client.prompt,
            client.max_tokens,
            arrival_ns,
            client.output_stream,
            eos_tokens=client.output_tokens,
            priority=client.priority,
            class_id=client.class_id,
        )
        if client.user_id >= 0:
            self._continue(client, request)
        self._pending[request] = _Pending(client, record)
        self._num_prefill_tokens += request.num_prompt_tokens
        if client.timeout_ns is not None:
            self._set_deadline(client.sent_ns + client.timeout_ns, request)
        self.engine.scheduler.add_request(request)

    def _continue(self, client: ClientRequest, request: Request) -> None:
        """Hands on what is known of the last request of the same user; users not seen for long are forgotten."""
        previous = self._latest_of_user.pop(client.user_id, None)
        if previous is not None and client.turn:
            request.continue_from(previous, self.run.block_size)
        self._latest_of_user[client.user_id] = request
        if len(self._latest_of_user) > _MOST_USERS:
            del self._latest_of_user[next(iter(self._latest_of_user))]

    def _set_deadline(self, deadline_ns: int, request: Request) -> None:
        """Notes when a client gives up; requests that have long ended are not kept until then."""
        if len(self._deadlines) > 2 * len(self._pending) + _SPARE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._pending]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline_ns, request.request_id, request))

    def _refusal(self, client: ClientRequest) -> Outcome | None:
        limits, scheduler = self.limits, self.engine.scheduler
        total = client.num_prompt_tokens + client.max_tokens
        if client.num_prompt_tokens >= limits.max_model_len or client.max_tokens > limits.max_model_len:
            return Outcome.REFUSED
        if limits.refuse_sum and total > limits.max_model_len:
            return Outcome.REFUSED
        num_requests = len(scheduler.running) + len(scheduler.waiting)
        if limits.max_num_queued_reqs is not None and num_requests + 1 > limits.max_num_queued_reqs:
            return Outcome.REJECTED
        if limits.max_num_queued_tokens is not None and self._num_prefill_tokens >= limits.max_num_queued_tokens:
            return Outcome.REJECTED
        needed = min(client.num_prompt_tokens + min(client.output_tokens, client.max_tokens), limits.max_model_len)
        if limits.max_request_tokens is not None and needed - 1 > limits.max_request_tokens:
            # The last token is never computed, so it needs no slot.
            return Outcome.NEVER_FITS
        return None

    def _close(self, request: Request, outcome: Outcome, now_ns: int) -> None:
        pending = self._pending.pop(request)
        record = pending.record
        record.outcome = outcome
        record.finish_ns = now_ns
        self._note_progress(record, request)
        self._tell(pending.client, outcome, request.num_output_tokens, now_ns)

    def _note_progress(self, record: RequestRecord, request: Request) -> None:
        record.scheduled_ns = request.scheduled_ns
        record.num_output_tokens = request.num_output_tokens
        record.num_cached_tokens = max(0, request.num_cached_tokens)
        record.num_preemptions = request.num_preemptions
        record.engine_ns = self._engine_time.close(request)
        self._preempted.pop(request.request_id, None)

    def _tell(self, client: ClientRequest, outcome: Outcome, num_output_tokens: int, now_ns: int) -> None:
        # A timeout is noticed at a step boundary, after later answers may have been seen: tell in order.
        self._last_done_ns = max(self._last_done_ns, now_ns)
        self.workload.on_done(client, outcome, num_output_tokens, self._last_done_ns)

    def _log_preemptions(self, batch: InFlightBatch) -> None:
        """Ends the rows of requests that this step took up again, and begins those of its victims."""
        log = self.run.preemptions
        for request in batch.output.hits:
            row = self._preempted.pop(request.request_id, None)
            if row is not None:
                log.end_ns[row] = batch.scheduled_ns
        for request in batch.output.preempted:
            if request in self._pending:  # else its client gave up while the step was in flight
                self._preempted[request.request_id] = len(log.request_id)
                log.request_id.append(request.request_id)
                log.start_ns.append(batch.scheduled_ns)
                log.end_ns.append(-1)

    def _log_steady_gaps(self, steps: SteadySteps) -> None:
        itl, classes = self.run.itl, steps.classes
        num_steps = len(steps.end_ns)
        if len(classes) == 1:
            itl.end_ns.extend(steps.end_ns)
            itl.gap_ns.extend(steps.gap_ns)
        else:
            itl.end_ns.extend([end_ns for end_ns in steps.end_ns for _ in classes])
            itl.gap_ns.extend([gap_ns for gap_ns in steps.gap_ns for _ in classes])
        itl.class_id.extend(array("q", classes) * num_steps)
        itl.count.extend(array("q", classes.values()) * num_steps)

    def _log_step(self, batch: InFlightBatch, outputs: StepOutputs) -> None:
        steps = self.run.steps
        steps.replica.append(self.replica)
        steps.start_ns.append(batch.start_ns)
        steps.end_ns.append(batch.end_ns)
        steps.num_prefill_tokens.append(batch.num_prefill_tokens)
        steps.num_decodes.append(batch.num_decodes)
        steps.num_running.append(batch.num_running)
        steps.num_waiting.append(batch.num_waiting)
        steps.num_free_blocks.append(batch.num_free_blocks)
        steps.num_preempted.append(self._num_preempted)
        self._num_preempted = 0
        steps.prefix_queries.append(batch.output.num_prefix_queries)
        steps.prefix_hits.append(batch.output.num_prefix_hits)
        self.run.itl.add(batch.end_ns, outputs.gaps)
