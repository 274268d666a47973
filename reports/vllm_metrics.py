"""A simulated run as vLLM's Prometheus metrics: names, labels and buckets of vllm/v1/metrics/loggers.py.

Times are the server's: from a request's arrival at the engine, as vLLM measures them. Two older names are there as
well, since dashboards still ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from reports.document import Document
from reports.exposition import Counter, Exposition, FloatArray, Gauge, Histogram
from reports.timeseries import Steps
from sim.records import Outcome, RequestRecord, RunRecord
from sim.results.columns import as_array
from sim.results.percentiles import IntArray

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_N_BUCKETS = (1, 2, 5, 10, 20)
_REASONS = ("stop", "length", "abort", "error", "repetition")


def one_two_five(most: int) -> tuple[int, ...]:
    """Returns 1, 2, 5, 10, … up to a number: the buckets of counts of tokens."""
    found: list[int] = []
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power > most:
                return tuple(found)
            found.append(factor * power)
        power *= 10


def vllm_metrics(run: RunRecord, document: Document) -> Exposition:
    """Reads a run; the document names the model and the server's flags."""
    model_len = int(document["memory"]["max_model_len"])
    families: tuple[Gauge | Counter | Histogram, ...] = (
        *_scheduler(run),
        *_counters(run),
        *_histograms(run, model_len),
    )
    labels = f'engine="0",model_name="{_quoted(document["server"]["model"])}"'
    return Exposition(families, labels, _cache_config(document), run.end_ns)


def _scheduler(run: RunRecord) -> list[Gauge]:
    """Returns the state of the scheduler: a level a step, and nothing between two steps."""
    steps = Steps.of(run)
    idle = steps.begin_ns[1:] > steps.end_ns[:-1]
    gaps = np.append(steps.end_ns[:-1][idle], steps.end_ns[-1:])
    times = np.concatenate([steps.begin_ns, gaps])
    order = np.argsort(times, kind="stable")

    def level(name: str, text: str, values: IntArray | FloatArray) -> Gauge:
        return Gauge(name, text, times[order], np.concatenate([values, np.zeros(len(gaps))])[order])

    return [
        level("vllm:num_requests_running", "Number of requests in model execution batches.", steps.running),
        level("vllm:num_requests_waiting", "Number of requests waiting to be processed.", steps.waiting),
        level("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", steps.kv_share),
        level("vllm:gpu_cache_usage_perc", "KV-cache usage under its older name.", steps.kv_share),
        level("vllm:num_requests_swapped", "Always 0: V1 preempts by recomputation.", np.zeros(len(steps.end_ns))),
    ]


def _counters(run: RunRecord) -> list[Counter]:
    steps = Steps.of(run)
    ends, answered = steps.end_ns, [each for each in run.requests if each.first_token_ns >= 0]
    firsts = _array(each.first_token_ns for each in answered)
    prompts = _array(each.num_prompt_tokens for each in answered)
    itl_end, itl_count = as_array(run.itl.end_ns), as_array(run.itl.count)
    token_times = np.concatenate([firsts, itl_end])
    tokens = np.concatenate([np.ones(len(firsts), np.int64), itl_count])
    order = np.argsort(firsts, kind="stable")
    by_time = np.argsort(token_times, kind="stable")
    return [
        Counter("vllm:num_preemptions", "Cumulative number of preemption.", (("", ends, steps.preempted),)),
        Counter("vllm:prefix_cache_queries", "Prefix cache queries, in tokens.", (("", ends, steps.queries),)),
        Counter("vllm:prefix_cache_hits", "Prefix cache hits, in tokens.", (("", ends, steps.hits),)),
        Counter("vllm:prompt_tokens", "Number of prefill tokens processed.", (("", firsts[order], prompts[order]),)),
        Counter("vllm:generation_tokens", "Number of generation tokens processed.",
                (("", token_times[by_time], tokens[by_time]),)),
        Counter("vllm:request_success", "Count of successfully processed requests.", _successes(run)),
    ]  # fmt: skip


def _successes(run: RunRecord) -> tuple[tuple[str, IntArray, IntArray], ...]:
    found: dict[str, list[int]] = {reason: [] for reason in _REASONS}
    for each in run.requests:
        if each.outcome is Outcome.FINISHED:
            found["length" if each.num_output_tokens >= each.max_tokens else "stop"].append(each.finish_ns)
        elif each.outcome is Outcome.TIMED_OUT:
            found["abort"].append(each.finish_ns)
    return tuple(
        (f'finished_reason="{reason}"', np.sort(_array(times)), np.ones(len(times), np.int64))
        for reason, times in found.items()
    )


def _histograms(run: RunRecord, max_model_len: int) -> list[Histogram]:
    steps, lengths = Steps.of(run), one_two_five(max_model_len)
    done = [each for each in run.requests if each.outcome is Outcome.FINISHED]
    answered = [each for each in run.requests if each.first_token_ns >= 0]
    tokens = Histogram(
        "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", ITERATION_BUCKETS,
        steps.end_ns, (steps.prefill + steps.decodes).astype(np.float64), np.ones(len(steps.end_ns), np.int64),
    )  # fmt: skip
    ttft_s = [(each.first_token_ns - each.arrival_ns) / 1e9 for each in answered]
    ttft_ns = [each.first_token_ns for each in answered]
    name, text = "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds."
    found = [tokens, _observed(name, text, TTFT_BUCKETS, ttft_ns, ttft_s)]
    gaps, counts, ends_ns = as_array(run.itl.gap_ns) / 1e9, as_array(run.itl.count), as_array(run.itl.end_ns)
    text = "Histogram of inter-token latency in seconds."
    found += [
        Histogram(name, text, TOKEN_BUCKETS, ends_ns, gaps, counts)
        for name in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
    ]
    ends = [each.finish_ns for each in done]
    per_request = _per_request(done, lengths)
    return found + [_observed(name, text, buckets, ends, values) for name, text, buckets, values in per_request]


def _per_request(
    done: list[RequestRecord], lengths: tuple[int, ...]
) -> Iterator[tuple[str, str, Sequence[float], list[float]]]:
    """Yields the histograms that a request enters when it ends."""

    def seconds(start: str, end: str) -> list[float]:
        return [(getattr(each, end) - getattr(each, start)) / 1e9 for each in done]

    times = (
        ("e2e_request_latency", "e2e request latency", "arrival_ns", "finish_ns"),
        ("request_queue_time", "time spent in WAITING phase for request", "arrival_ns", "scheduled_ns"),
        ("request_inference_time", "time spent in RUNNING phase for request", "scheduled_ns", "finish_ns"),
        ("request_prefill_time", "time spent in PREFILL phase for request", "scheduled_ns", "first_token_ns"),
        ("request_decode_time", "time spent in DECODE phase for request", "first_token_ns", "finish_ns"),
    )
    for name, text, start, end in times:
        yield f"vllm:{name}_seconds", f"Histogram of {text} in seconds.", REQUEST_BUCKETS, seconds(start, end)
    per_token = [
        gap / max(each.num_output_tokens - 1, 1)
        for gap, each in zip(seconds("first_token_ns", "finish_ns"), done, strict=True)
    ]
    name = "vllm:request_time_per_output_token_seconds"
    yield name, "Histogram of time_per_output_token_seconds per request.", TOKEN_BUCKETS, per_token
    counts = (
        ("request_prompt_tokens", "Number of prefill tokens processed.", "num_prompt_tokens"),
        ("request_generation_tokens", "Number of generation tokens processed.", "num_output_tokens"),
        ("request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.",
         "num_output_tokens"),
        ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", "max_tokens"),
    )  # fmt: skip
    for name, text, field in counts:
        yield f"vllm:{name}", text, lengths, [float(getattr(each, field)) for each in done]
    yield "vllm:request_params_n", "Histogram of the n request parameter.", _N_BUCKETS, [1.0] * len(done)


def _observed(name: str, text: str, buckets: Sequence[float], at_ns: list[int], values: list[float]) -> Histogram:
    return Histogram(name, text, tuple(buckets), _array(at_ns), np.array(values), np.ones(len(values), np.int64))


def _cache_config(document: Document) -> str:
    memory = document["memory"]

    def flag(name: str) -> str:
        return str(document["server"]["flags"].get(name, {"value": ""})["value"])

    known = {
        "block_size": memory["block_size"], "cache_dtype": flag("kv_cache_dtype"),
        "enable_prefix_caching": flag("enable_prefix_caching"), "engine": "0",
        "gpu_memory_utilization": flag("gpu_memory_utilization"), "num_gpu_blocks": memory["num_gpu_blocks"],
    }  # fmt: skip
    return ",".join(f'{name}="{_quoted(str(value))}"' for name, value in known.items())


def _array(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
