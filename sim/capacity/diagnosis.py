"""Which resource is behind a broken objective: rules that planners use, each with the numbers that made it fire."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from sim.capacity.finding import Diagnosis, Resource
from sim.capacity.other_diagnosis import diagnose_ollama, diagnose_static
from sim.capacity.point import Point, mean
from sim.results.metrics import RunMetrics
from sim.results.objectives import ObjectiveResult

_KV_FULL = 0.95
_MANY_PREEMPTIONS = 0.05  # a request in twenty: beyond it recomputation shows in the percentiles
_IDLE = 0.9
_TAIL = 95.0


def diagnose(point: Point) -> Diagnosis | None:
    """Names the resource that binds at a load where something breaks; None where nothing does."""
    if point.holds or not point.runs:
        return None
    facts = _Facts.of(point)
    broken = point.broken
    metric, percentile, _ = _asked(facts, broken)
    parts = {kind: facts.part_ms(kind, percentile) for kind in _parts_of(metric)}
    found = (
        diagnose_ollama(point, metric, parts)
        or diagnose_static(point, metric, parts)
        or _of_errors(facts, broken)
        or _of_latency(facts, broken)
    )
    return Diagnosis(found.resource, found.evidence, found.cure, tuple(_notes(facts, point)))


@dataclass(frozen=True, slots=True)
class _Facts:
    """Means over the seeds of what the rules look at. Times in ms, shares 0 to 1."""

    runs: tuple[RunMetrics, ...]
    max_num_seqs: int
    budget: int
    running: float
    waiting: float
    kv_mean: float
    kv_max: float
    busy: float
    preemptions_per_request: float
    decode_step_ms: float | None
    mixed_step_ms: float | None
    full_step_share: float
    errors: dict[str, int]

    @classmethod
    def of(cls, point: Point) -> _Facts:
        requests = sum(run.total.num_requests for run in point.runs)
        preemptions = sum(run.server.num_preemptions for run in point.runs)
        errors: dict[str, int] = {}
        for run in point.runs:
            for kind, count in run.total.errors.items():
                errors[kind] = errors.get(kind, 0) + count
        return cls(
            runs=point.runs,
            max_num_seqs=point.runs[0].max_num_seqs,
            budget=point.runs[0].max_num_batched_tokens,
            running=point.mean(lambda run: run.server.running.mean) or 0.0,
            waiting=point.mean(lambda run: run.server.waiting.mean) or 0.0,
            kv_mean=point.mean(lambda run: run.server.kv.mean) or 0.0,
            kv_max=point.mean(lambda run: run.server.kv.max) or 0.0,
            busy=point.mean(lambda run: run.server.busy) or 0.0,
            preemptions_per_request=preemptions / requests if requests else 0.0,
            decode_step_ms=point.mean(lambda run: run.server.decode_step_ms),
            mixed_step_ms=point.mean(lambda run: run.server.mixed_step_ms),
            full_step_share=point.mean(lambda run: run.server.full_step_share) or 0.0,
            errors=errors,
        )

    def waited_for(self, percentile: float | None) -> dict[Resource, float]:
        """Returns what the requests of a tail waited for, as shares; None: what all did."""
        reasons = [
            run.server.wait_reasons if percentile is None else run.server.tail_wait_reasons[percentile]
            for run in self.runs
        ]
        return {
            "max_num_seqs": fmean(each.max_num_seqs for each in reasons),
            "token_budget": fmean(each.token_budget for each in reasons),
            "kv_blocks": fmean(each.kv_blocks for each in reasons),
        }

    @property
    def preempts(self) -> bool:
        """Whether preemptions are frequent enough to show in the latencies."""
        return self.preemptions_per_request > _MANY_PREEMPTIONS

    def part_ms(self, kind: str, percentile: float | None) -> float:
        """Returns a part of the latency at the percentile that broke (None: its mean)."""
        if percentile is None:
            return mean(run.total.latency[kind].mean for run in self.runs) or 0.0
        return mean(run.total.latency[kind].percentiles.get(percentile) for run in self.runs) or 0.0

    @property
    def kv_text(self) -> str:
        return f"KV cache {_percent(self.kv_mean)} used on average, {_percent(self.kv_max)} at most"


def _of_errors(facts: _Facts, broken: ObjectiveResult | None) -> Diagnosis | None:
    """Errors name their resource themselves, unless they are timeouts, which are latencies carried too far."""
    if broken is None or broken.objective.metric not in ("errors", "goodput") or not facts.errors:
        return None
    kind = max(facts.errors, key=lambda name: facts.errors[name])
    count = f"{facts.errors[kind]} requests"
    match kind:
        case "rejected":
            return Diagnosis(
                "admission_limit",
                f"{count} were answered 503: max_num_queued_reqs or max_num_queued_tokens was reached",
                "raise the admission limit if the latency objectives leave room, or add a server",
            )
        case "refused":
            return Diagnosis(
                "max_model_len",
                f"{count} were answered 400: prompt and answer exceed max_model_len",
                "raise max_model_len, or shorten the prompts",
            )
        case "never_fits":
            return Diagnosis(
                "kv_blocks",
                f"{count} are longer than the whole KV cache and can never be served",
                "give the KV cache more memory, or lower max_model_len so that they are refused at once",
            )
    return None


def _of_latency(facts: _Facts, broken: ObjectiveResult | None) -> Diagnosis:
    metric, percentile, bound_ms = _asked(facts, broken)
    if metric == "preemptions":
        return _kv_blocks(facts)
    if metric in ("output_throughput", "request_throughput", "duration") and facts.busy < _IDLE and facts.waiting < 1:
        return _client_idle(facts)
    if metric in ("itl", "tpot"):
        return _slow_tokens(facts, bound_ms)
    parts = {kind: facts.part_ms(kind, percentile) for kind in _parts_of(metric)}
    match max(parts, key=lambda kind: parts[kind]):
        case "queue":
            return _queue(facts, parts["queue"], percentile)
        case "prefill":
            return _prefill(facts, parts["prefill"], percentile)
        case "client":
            return _client_slow(parts["client"], percentile)
    return _slow_tokens(facts, bound_ms=0.0)


def _asked(facts: _Facts, broken: ObjectiveResult | None) -> tuple[str, float | None, float]:
    """Returns the metric that broke, the percentile to look at (None: the mean), and the bound in ms.

    A goodput breaks by the latency that exceeds its own bound the most, in the tail.
    """
    if broken is None:
        return "e2el", None, 0.0
    objective = broken.objective
    if objective.metric != "goodput":
        return objective.metric, objective.percentile, objective.value * 1000
    worst = max(objective.bounds, key=lambda bound: facts.part_ms(bound.metric, _TAIL) / bound.seconds)
    return worst.metric, _TAIL, worst.seconds * 1000


def _parts_of(metric: str) -> tuple[str, ...]:
    match metric:
        case "queue":
            return ("queue",)
        case "ttft":
            return ("queue", "prefill", "client")
    return ("queue", "prefill", "decode", "client")


def _queue(facts: _Facts, queue_ms: float, percentile: float | None) -> Diagnosis:
    waited_for = facts.waited_for(percentile)
    reason = max(waited_for, key=lambda resource: waited_for[resource])
    share = f"{_percent(waited_for[reason])} of it"
    waited = f"requests wait {_time(queue_ms)} in the queue ({_stat(percentile)})"
    if reason == "max_num_seqs":
        return Diagnosis(
            "max_num_seqs",
            f"{waited}, {share} while max_num_seqs ({facts.max_num_seqs}) requests were running; {facts.kv_text}",
            "raise max_num_seqs" if facts.kv_max < _KV_FULL else "more KV cache, then a higher max_num_seqs",
        )
    if reason == "token_budget":
        return Diagnosis(
            "token_budget",
            f"{waited}, {share} while steps were full ({facts.budget} tokens), with "
            f"{facts.running:.3g} of {facts.max_num_seqs} running; {facts.kv_text}: prompts arrive as fast as they can "
            "be read",
            "a larger max_num_batched_tokens if ITL has room, more shared prefix, or another GPU",
        )
    return _kv_blocks(facts, f"{waited}, {share} for free KV blocks; ")


def _prefill(facts: _Facts, prefill_ms: float, percentile: float | None) -> Diagnosis:
    if facts.preempts:
        return _kv_blocks(facts)
    return Diagnosis(
        "token_budget",
        f"reading a prompt takes {_time(prefill_ms)} ({_stat(percentile)}) from its first chunk to the first token "
        f"(budget {facts.budget} tokens a step); {facts.kv_text}",
        "another max_num_batched_tokens, shorter prompts, more shared prefix, or a faster GPU",
    )


def _slow_tokens(facts: _Facts, bound_ms: float) -> Diagnosis:
    if facts.preempts:
        return _kv_blocks(facts)
    decode, mixed = facts.decode_step_ms, facts.mixed_step_ms
    if mixed is not None and bound_ms and (decode is None or decode <= bound_ms):
        alone = "" if decode is None else f", one that only decodes {_time(decode)}"
        return Diagnosis(
            "token_budget",
            f"a step that carries prompt chunks takes {_time(mixed)} on average{alone}: prompts hold up the answers",
            "a smaller max_num_batched_tokens, or prefill on other GPUs",
        )
    if facts.full_step_share > 0.5:
        return Diagnosis(
            "token_budget",
            f"{_percent(facts.full_step_share)} of the busy time goes into full steps ({facts.budget} tokens): reading "
            "prompts leaves little for writing answers",
            "more shared prefix, shorter prompts, or another GPU",
        )
    step = decode if decode is not None else mixed
    took = "" if step is None else f"a step takes {_time(step)} on average with {facts.running:.3g} requests running; "
    return Diagnosis(
        "decode_speed",
        f"{took}{facts.kv_text}",
        "fewer requests at once, a smaller or quantized model, more tensor parallelism, or a faster GPU",
    )


def _kv_blocks(facts: _Facts, lead: str = "") -> Diagnosis:
    return Diagnosis(
        "kv_blocks",
        f"{lead}{facts.preemptions_per_request:.3g} preemptions a request, {facts.running:.3g} of "
        f"{facts.max_num_seqs} running; {facts.kv_text}",
        "cap the context, use an fp8 KV cache, give the KV cache more memory, or lower max_num_seqs",
    )


def _client_idle(facts: _Facts) -> Diagnosis:
    return Diagnosis(
        "client",
        f"the server is busy only {_percent(facts.busy)} of the time and nothing waits: it is not offered more",
        "offer more load: the client is the limit, not the server",
    )


def _client_slow(client_ms: float, percentile: float | None) -> Diagnosis:
    return Diagnosis(
        "client",
        f"{_time(client_ms)} ({_stat(percentile)}) pass outside the engine, between client and server",
        "a faster path between client and engine (HTTP, tokenizer, network)",
    )


def _notes(facts: _Facts, point: Point) -> list[str]:
    p50, p99 = facts.part_ms("ttft", 50.0), facts.part_ms("ttft", 99.0)
    notes = []
    queued = facts.part_ms("queue", 99.0) > p99 / 2  # else the slow ones have long prompts, and nobody was in their way
    if p50 > 0 and p99 > 10 * p50 and facts.busy < 0.6 and queued:
        notes.append(
            f"bursts: TTFT p99 is {p99 / p50:.3g} times its p50 while the server is busy {_percent(facts.busy)} of "
            "the time"
        )
    notes += sorted({run.overload.sentence for run in point.runs[:1] if run.overload is not None})
    return notes


def _stat(percentile: float | None) -> str:
    return "mean" if percentile is None else f"p{percentile:g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


__all__ = ["Diagnosis", "Resource", "diagnose"]
