"""What only other servers than vLLM do, summed up over the window: Ollama's loads and slots, static batches' waste."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from sim.records import OllamaLog, OllamaModel, OllamaResponse, RunRecord
from sim.results.percentiles import Sample
from sim.results.window import Window


@dataclass(frozen=True, slots=True)
class Waits:
    """How long complete answers waited for something, in milliseconds; None where there are none.

    Attributes:
        mean: over all answers.
        p95: of them.
        total_s: all together, in seconds.
        share: part of the answers that waited at all.
    """

    mean: float | None
    p95: float | None
    total_s: float
    share: float | None


@dataclass(frozen=True, slots=True)
class OllamaUse:
    """An Ollama server in the window.

    Attributes:
        models: as they are loaded: slots, context, layers on the GPU.
        num_loads: loads that ended, aborted ones not counted.
        num_aborted_loads: loads whose client gave up.
        load_s: time spent loading.
        num_evictions: models unloaded to make room, or because a request wanted other options.
        num_expired: models unloaded because nobody asked for them.
        wait_for_load: what `load_duration` shows: the queue before a load, evictions, the load.
        wait_for_slot: the queue of NUM_PARALLEL.
        num_rejected: requests answered 503.
        rejected_s: when the first and the last of them was; None without any.
        eval_tokens_per_s: median over the answers of eval_count / eval_duration, as users compute it.
        prompt_tokens_per_s: the same of prompt_eval_count / prompt_eval_duration, cached tokens included.
        num_shifts: context shifts of the whole run.
        num_truncated: prompts cut, of the whole run.
    """

    models: tuple[OllamaModel, ...]
    num_loads: int
    num_aborted_loads: int
    load_s: float
    num_evictions: int
    num_expired: int
    wait_for_load: Waits
    wait_for_slot: Waits
    num_rejected: int
    rejected_s: tuple[float, float] | None
    eval_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    num_shifts: int
    num_truncated: int

    @property
    def num_parallel(self) -> int:
        """Slots of the model that has most."""
        return max(model.num_parallel for model in self.models)

    @property
    def context_gib(self) -> float:
        """Context of all models together, GiB."""
        return sum(model.context_bytes for model in self.models) / 2**30


@dataclass(frozen=True, slots=True)
class StaticUse:
    """A server with static batches in the window; shares are None where there was nothing.

    Attributes:
        reservation: how much KV memory a request reserves.
        num_batches: batches that ended.
        mean_size: requests of a batch.
        idle_seat_share: of the tokens computed while answers were written, those that nobody got.
        padding_share: of the prompt tokens computed, padding.
        kv_waste_share: of the reserved KV memory (over time), what held no token that an answer still needed.
    """

    reservation: str
    num_batches: int
    mean_size: float | None
    idle_seat_share: float | None
    padding_share: float | None
    kv_waste_share: float | None


def ollama_use(run: RunRecord, window: Window) -> OllamaUse | None:
    """Sums up an Ollama server; None of other kinds."""
    log = run.ollama
    if log is None:
        return None
    sent = {
        request.request_id for request in run.requests if window.start_ns <= request.sent_ns <= window.end_ns
    }  # fmt: skip
    answers = [answer for answer in log.responses if answer.request_id in sent]
    loads = [load for load in log.loads if load[2] >= window.start_ns and load[1] <= window.end_ns]
    unloads = [unload for unload in log.unloads if window.start_ns <= unload[1] <= window.end_ns]
    rejected = [time_ns / 1e9 for time_ns in log.rejected_ns if window.start_ns <= time_ns <= window.end_ns]
    return OllamaUse(
        models=log.models,
        num_loads=sum(not aborted for *_, aborted in loads),
        num_aborted_loads=sum(aborted for *_, aborted in loads),
        load_s=sum(end_ns - start_ns for _, start_ns, end_ns, _ in loads) / 1e9,
        num_evictions=sum(cause != "keep_alive" for *_, cause in unloads),
        num_expired=sum(cause == "keep_alive" for *_, cause in unloads),
        wait_for_load=_waits([answer.load_duration for answer in answers]),
        wait_for_slot=_waits([answer.slot_wait for answer in answers], least_ns=_longest_batch_ns(log, run)),
        num_rejected=len(rejected),
        rejected_s=(rejected[0], rejected[-1]) if rejected else None,
        eval_tokens_per_s=_median(_rates(answers, "eval")),
        prompt_tokens_per_s=_median(_rates(answers, "prompt_eval")),
        num_shifts=log.num_shifts,
        num_truncated=log.num_truncated,
    )


def static_use(run: RunRecord, window: Window) -> StaticUse | None:
    """Sums up a server with static batches; None of other kinds."""
    log = run.static
    if log is None:
        return None
    chosen = [
        index for index, end_ns in enumerate(log.end_ns) if window.start_ns <= end_ns <= window.end_ns
    ]  # fmt: skip

    def total(column: Sequence[int]) -> int:
        return sum(column[index] for index in chosen)

    def missing(part: Sequence[int], whole: Sequence[int]) -> float | None:
        return 1 - total(part) / total(whole) if total(whole) else None

    return StaticUse(
        reservation=log.reservation,
        num_batches=len(chosen),
        mean_size=total(log.size) / len(chosen) if chosen else None,
        idle_seat_share=missing(log.num_output_tokens, log.num_seat_steps),
        padding_share=missing(log.num_prompt_tokens, log.num_padded_tokens),
        kv_waste_share=missing(log.used_token_ns, log.reserved_token_ns),
    )


def _waits(values_ns: list[int], least_ns: int = 0) -> Waits:
    """Sums up waits; one of at most `least_ns` is no wait, but the end of the batch under way."""
    if not values_ns:
        return Waits(None, None, 0.0, None)
    p95 = Sample(values_ns).percentile(95)
    return Waits(
        mean=fmean(values_ns) / 1e6,
        p95=None if p95 is None else p95 / 1e6,
        total_s=sum(values_ns) / 1e9,
        share=sum(value > least_ns for value in values_ns) / len(values_ns),
    )


def _longest_batch_ns(log: OllamaLog, run: RunRecord) -> int:
    if all(model.num_parallel == 1 for model in log.models):
        return 0  # a free slot means that nothing is computed
    return max(
        (end_ns - start_ns for start_ns, end_ns in zip(run.steps.start_ns, run.steps.end_ns, strict=True)), default=0
    )


def _rates(answers: Iterable[OllamaResponse], phase: str) -> list[float]:
    rates = []
    for answer in answers:
        duration_ns = getattr(answer, f"{phase}_duration")
        if duration_ns:
            rates.append(getattr(answer, f"{phase}_count") / duration_ns * 1e9)
    return rates


def _median(values: list[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None
