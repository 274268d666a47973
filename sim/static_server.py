"""The HTTP side of a server with static batches, and how one is made of a scenario."""

from __future__ import annotations

from sim.engine.static_batching import StaticEngine, StaticRequest, StaticResult, StaticStep
from sim.engine.step_time import ClientLatency
from sim.frontend import Frontend
from sim.records import Outcome, RunRecord, StaticLog
from sim.workload.client import Workload


class StaticServer:
    """Serves a workload in static batches, and fills a run's records.

    Args:
        workload: sends the requests and is told how each ended.
        engine: makes the batches.
        run: the records to fill.
        latency: time outside the engine.
        streaming: tokens go out as they are made; else an answer goes out when its batch is done.
    """

    def __init__(
        self, workload: Workload, engine: StaticEngine, run: RunRecord, *, latency: ClientLatency, streaming: bool
    ) -> None:
        self.frontend = Frontend(workload, run, latency)
        self.engine = engine
        self.run = run
        self.response_ns = latency.response_ns
        self.streaming = streaming
        self.log = run.static = StaticLog(engine.config.reservation)
        self._requests: dict[int, StaticRequest] = {}
        self._batch = _BatchSums()

    def advance(self, now_ns: int) -> int | None:
        """Does all that is due by now (see `sim.engine.process.Server`)."""
        for arrival in self.frontend.given_up(now_ns):
            request = self._requests.pop(arrival.client.request_id)
            arrival.record.num_output_tokens = request.num_generated if self.streaming else 0
            self.engine.cancel(request)
        step = self.engine.step
        if step is not None and step.end_ns <= now_ns:
            self._publish(step, self.engine.complete())
        for arrival in self.frontend.arrivals(now_ns):
            self._receive(arrival.client.request_id)
        fresh = not self.engine.batch
        self.engine.dispatch(now_ns)
        if fresh and self.engine.batch:
            self._begin_batch(now_ns)
        times = [time for time in (self.engine.next_event_ns(), self.frontend.next_ns()) if time is not None]
        return max(now_ns, min(times)) if times else None

    def _receive(self, request_id: int) -> None:
        arrival = self.frontend.pending[request_id]
        client, record, config = arrival.client, arrival.record, self.engine.config
        room = config.max_model_len - client.num_prompt_tokens
        if room <= 0:
            self.frontend.close(request_id, Outcome.REFUSED, record.arrival_ns + self.response_ns)
            return
        answer = min(client.output_tokens, client.max_tokens, room)
        request = StaticRequest(request_id, client.num_prompt_tokens, answer, client.class_id, record.arrival_ns)
        if config.reserved(request) > config.kv_tokens:
            self.frontend.close(request_id, Outcome.NEVER_FITS, record.arrival_ns + self.response_ns)
            return
        self._requests[request_id] = request
        self.engine.submit(request)

    def _begin_batch(self, now_ns: int) -> None:
        self._batch = _BatchSums(start_ns=now_ns)
        for request in self.engine.batch:
            if not request.is_cancelled:
                self.frontend.pending[request.request_id].record.scheduled_ns = now_ns

    def _publish(self, step: StaticStep, result: StaticResult) -> None:
        """Takes the tokens of a pass to their clients, and the pass into the log."""
        self._batch.add(step)
        self._add_engine_time(step, result)
        seen_ns = step.end_ns + self.response_ns
        if self.streaming:
            for request in result.started:
                self.frontend.pending[request.request_id].record.first_token_ns = seen_ns
            duration_ns = step.end_ns - step.start_ns
            gaps = {(class_id, duration_ns): count for class_id, count in result.gaps.items()}
            self.run.itl.add(step.end_ns, gaps)
            for request in result.finished:
                self._answer(request, seen_ns)
        config, usable = self.engine.config, self.run.num_gpu_blocks - 1
        self.frontend.log_step(
            replica=0,
            times_ns=(step.start_ns, step.end_ns),
            tokens=(step.num_prefill_tokens, 0 if step.num_prefill_tokens else step.num_seats),
            queue=(step.num_running, step.num_waiting),
            num_free_blocks=max(0, usable - -(-step.num_reserved // config.block_size)),
        )
        if result.batch is not None:
            self._end_batch(result.batch, step.end_ns, seen_ns)

    def _add_engine_time(self, step: StaticStep, result: StaticResult) -> None:
        """Divides a pass among the requests that it works for: by prompt tokens, or one token each."""
        members = self.engine.batch if result.batch is None else result.batch
        live = [*(each for each in members if not each.is_done), *result.finished]
        weights = {each: each.num_prompt_tokens if step.num_prefill_tokens else 1 for each in live}
        for each, weight in weights.items():
            record = self.frontend.pending[each.request_id].record
            record.engine_ns += (step.end_ns - step.start_ns) * weight // sum(weights.values())

    def _end_batch(self, batch: list[StaticRequest], end_ns: int, seen_ns: int) -> None:
        if not self.streaming:
            for request in batch:
                if not request.is_cancelled:
                    self.frontend.pending[request.request_id].record.first_token_ns = seen_ns
                    self._answer(request, seen_ns)
        self._batch.write(self.log, batch, end_ns)

    def _answer(self, request: StaticRequest, seen_ns: int) -> None:
        del self._requests[request.request_id]
        self.frontend.pending[request.request_id].record.num_output_tokens = request.num_generated
        self.frontend.close(request.request_id, Outcome.FINISHED, seen_ns)


class _BatchSums:
    """Adds up one batch."""

    def __init__(self, start_ns: int = 0) -> None:
        self.start_ns = start_ns
        self.seat_steps = self.padded = self.reserved = self.used = 0

    def add(self, step: StaticStep) -> None:
        duration_ns = step.end_ns - step.start_ns
        self.seat_steps += step.num_seats
        self.padded += step.num_prefill_tokens
        self.reserved += step.num_reserved * duration_ns
        self.used += step.num_used * duration_ns

    def write(self, log: StaticLog, batch: list[StaticRequest], end_ns: int) -> None:
        log.start_ns.append(self.start_ns)
        log.end_ns.append(end_ns)
        log.size.append(len(batch))
        log.num_output_tokens.append(sum(request.num_generated for request in batch))
        log.num_seat_steps.append(self.seat_steps)
        log.num_prompt_tokens.append(sum(request.num_prompt_tokens for request in batch))
        log.num_padded_tokens.append(self.padded)
        log.reserved_token_ns.append(self.reserved)
        log.used_token_ns.append(self.used)
