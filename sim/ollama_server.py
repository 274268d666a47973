"""The HTTP side of an Ollama server: requests in, answers with their timing fields out, and the run's records."""

from __future__ import annotations

from sim.engine.ollama.engine import OllamaEngine, StepDone
from sim.engine.ollama.request import OllamaRequest
from sim.engine.ollama.runner import Step
from sim.engine.ollama.scheduler import ModelConfig
from sim.engine.step_time import ClientLatency
from sim.frontend import Arrival, Frontend
from sim.records import OllamaLog, OllamaModel, OllamaResponse, Outcome, RunRecord
from sim.workload.client import Workload


class OllamaServer:
    """Serves a workload with Ollama, and fills a run's records.

    Args:
        workload: sends the requests and is told how each ended.
        engine: the server behind the HTTP interface.
        run: the records to fill.
        model_of_class: the model that the requests of each class ask for.
        latency: time outside the server.
        tells_cached: answers have `prompt_eval_cached_count`.
    """

    def __init__(
        self,
        workload: Workload,
        engine: OllamaEngine,
        run: RunRecord,
        *,
        model_of_class: tuple[int, ...],
        latency: ClientLatency,
        tells_cached: bool,
    ) -> None:
        self.frontend = Frontend(workload, run, latency)
        self.engine = engine
        self.run = run
        self.models = engine.scheduler.models
        self.model_of_class = model_of_class
        self.response_ns = latency.response_ns
        self.tells_cached = tells_cached
        self.log = run.ollama = OllamaLog(tuple(_described(model) for model in self.models))
        self._requests: dict[int, OllamaRequest] = {}

    def advance(self, now_ns: int) -> int | None:
        """Does all that is due by now (see `sim.engine.process.Server`)."""
        for arrival in self.frontend.given_up(now_ns):
            request = self._requests.pop(arrival.client.request_id)
            self._note(request, arrival)
            self.engine.cancel(request, now_ns)
        for done in self.engine.advance(now_ns):
            self._publish(done)
        for arrival in self.frontend.arrivals(now_ns):
            self._receive(arrival)
        for request in self.engine.scheduler.rejected:
            self._reject(self.frontend.pending[request.request_id], now_ns)
        self.engine.scheduler.rejected.clear()
        outside_ns = self.frontend.next_ns()
        self.engine.dispatch(now_ns, outside_ns)
        times = [time for time in (self.engine.next_event_ns(), outside_ns) if time is not None]
        return max(now_ns, min(times)) if times else None

    def finish(self) -> None:
        """Takes over what the scheduler kept."""
        scheduler = self.engine.scheduler
        self.log.loads = [(each.model_id, each.start_ns, each.end_ns, each.aborted) for each in scheduler.loads]
        self.log.unloads = [(each.model_id, each.time_ns, each.cause) for each in scheduler.unloads]

    def warnings(self) -> list[str]:
        """Returns a sentence for each thing that Ollama does without telling its clients."""
        said = []
        if self.log.num_truncated:
            said.append(
                f"{self.log.num_truncated} prompts were longer than num_ctx: Ollama cut out their middle without an "
                "error, and answered what was left"
            )
        if self.log.num_shifts:
            said.append(
                f"{self.log.num_shifts} times an answer reached the end of its context, and the older half was dropped"
            )
        return said

    def _receive(self, arrival: Arrival) -> None:
        client, record = arrival.client, arrival.record
        model_id = self.model_of_class[client.class_id]
        if self.models[model_id].runner.refuses(client.num_prompt_tokens):
            self.frontend.close(client.request_id, Outcome.REFUSED, record.arrival_ns + self.response_ns)
            return
        request = OllamaRequest(
            client.request_id,
            model_id,
            client.prompt,
            client.num_prompt_tokens,
            client.max_tokens,
            client.output_tokens,
            client.output_stream,
            client.class_id,
            record.arrival_ns,
        )
        self._requests[client.request_id] = request
        if not self.engine.submit(request, record.arrival_ns):
            self._reject(arrival, record.arrival_ns)

    def _reject(self, arrival: Arrival, now_ns: int) -> None:
        del self._requests[arrival.client.request_id]
        self.log.rejected_ns.append(now_ns)
        self.frontend.close(arrival.client.request_id, Outcome.REJECTED, now_ns + self.response_ns)

    def _publish(self, done: StepDone) -> None:
        """Takes the tokens of a batch to their clients, and the batch into the log."""
        model_id, step, result = done
        for request in result.first_tokens:
            self.frontend.pending[request.request_id].record.first_token_ns = request.first_token_ns + self.response_ns
        self._add_engine_time(step)
        model = self.log.models[model_id]
        usable = self.run.num_gpu_blocks - 1
        per_token = usable / (model.num_parallel * model.num_ctx)
        start_ns, held, prefix = step.start_ns, step.num_tokens_held, (step.prefix_queries, step.prefix_hits)
        for end_ns, gaps in zip(step.ends_ns, result.gaps, strict=True):
            self.run.itl.add(end_ns, gaps)
            self.frontend.log_step(
                replica=model_id,
                times_ns=(start_ns, end_ns),
                tokens=(step.num_prefill_tokens, step.num_decodes),
                queue=(step.num_running, step.num_waiting),
                num_free_blocks=usable - round(per_token * held),
                prefix=prefix,
            )
            start_ns, held, prefix = end_ns, held + step.num_decodes, (0, 0)
        for request in result.finished:
            self._answer(request)

    def _add_engine_time(self, step: Step) -> None:
        """Divides the batches among their tokens; those after the first have one token a request."""
        first_ns, num_tokens = step.ends_ns[0] - step.start_ns, sum(tokens for _, tokens in step.work)
        later_ns = (step.end_ns - step.ends_ns[0]) // len(step.work)
        for request, tokens in step.work:
            arrival = self.frontend.pending.get(request.request_id)
            if arrival is not None:
                arrival.record.engine_ns += first_ns * tokens // num_tokens + later_ns

    def _answer(self, request: OllamaRequest) -> None:
        arrival = self.frontend.pending[request.request_id]
        del self._requests[request.request_id]
        self._note(request, arrival)
        self.log.responses.append(
            OllamaResponse(
                request_id=request.request_id,
                model_id=request.model_id,
                total_duration=request.end_ns - request.arrival_ns,
                load_duration=request.runner_ns - request.arrival_ns,
                prompt_eval_count=request.num_prompt_tokens,
                prompt_eval_duration=request.first_token_ns - request.prompt_start_ns,
                eval_count=request.num_generated,
                eval_duration=request.end_ns - request.first_token_ns,
                prompt_eval_cached_count=request.num_cached if self.tells_cached else None,
            )
        )
        self.frontend.close(request.request_id, Outcome.FINISHED, request.end_ns + self.response_ns)

    def _note(self, request: OllamaRequest, arrival: Arrival) -> None:
        """Writes what a request got into its record."""
        record = arrival.record
        record.scheduled_ns = request.slot_ns
        record.num_output_tokens = request.num_generated
        record.num_cached_tokens = request.num_cached
        self.log.num_shifts += request.num_shifts
        self.log.num_truncated += request.num_truncated > 0


def _described(model: ModelConfig) -> OllamaModel:
    placement = model.placement
    return OllamaModel(
        name=model.name,
        num_parallel=placement.num_parallel,
        num_ctx=placement.num_ctx,
        num_batch=placement.num_batch,
        context_bytes=round(placement.context_bytes),
        gpu_bytes=round(placement.gpu_bytes),
        ram_bytes=round(placement.ram_bytes),
        num_gpu_layers=placement.num_gpu_layers,
        num_layers=placement.num_layers,
    )
