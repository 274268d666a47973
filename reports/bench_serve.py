"""A simulated run as `vllm bench serve` would have reported it: the same console block, the same result JSON.

Definitions are those of vllm/benchmarks/serve.py (`calculate_metrics`, `benchmark`, 0.32): only requests answered in
full count; TTFT and E2EL run from the client's send, after its semaphore; peaks are counted in buckets of one second
since the first send. A script that compares benchmark results reads these files unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reports.token_times import TokenTimes
from sim.records import Outcome, RequestRecord, RunRecord
from sim.scenario.model import ClosedLoopWorkload, GammaArrivals, OpenLoopWorkload, Scenario, TraceWorkload

FloatArray = npt.NDArray[np.float64]

PERCENTILES = (50, 90, 95, 99)

_DATE = "19700101-000000"  # the same run gives the same bytes, so no date can stand there
_METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
_ERRORS = {
    Outcome.REFUSED: "Bad Request", Outcome.REJECTED: "Service Unavailable", Outcome.TIMED_OUT: "TimeoutError",
    Outcome.NEVER_FITS: "never scheduled", Outcome.UNFINISHED: "unfinished",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What the benchmark's command line would have said.

    Attributes:
        model: served model.
        request_rate: requests per second, or inf.
        burstiness: shape of the gaps.
        max_concurrency: requests in flight at most.
        goodput_s: bounds of goodput in seconds by metric (ttft, tpot, e2el).
    """

    model: str
    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    goodput_s: Mapping[str, float] | None = None

    @classmethod
    def of(cls, scenario: Scenario, load: float | None = None) -> BenchSettings:
        """Reads them from a scenario; `load` is the value of what its search varies."""
        workload, rate, burstiness, concurrency = scenario.workload, math.inf, 1.0, None
        match workload:
            case OpenLoopWorkload():
                rate = workload.request_rate or load or math.inf
                burstiness = workload.arrivals.burstiness if isinstance(workload.arrivals, GammaArrivals) else 1.0
            case ClosedLoopWorkload():
                rate, burstiness, concurrency = workload.request_rate, workload.burstiness, workload.max_concurrency
            case TraceWorkload():
                concurrency = workload.max_concurrency
        if scenario.search is not None and load is not None:
            rate = load if scenario.search.vary == "request_rate" else rate
            concurrency = int(load) if scenario.search.vary == "max_concurrency" else concurrency
        bounds: dict[str, float] = {
            each.metric: each.value for each in scenario.objectives
            if each.metric in ("ttft", "tpot", "e2el") and each.op == "<=" and not each.class_name
        }  # fmt: skip
        return cls(scenario.server.model, rate, burstiness, concurrency, bounds or None)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The numbers of the benchmark; latencies in milliseconds."""

    settings: BenchSettings
    requests: tuple[RequestRecord, ...]
    duration_s: float
    completed: int
    failed: int
    total_input: int
    total_output: int
    request_goodput: float | None
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    latencies: Mapping[str, tuple[FloatArray, FloatArray]]  # metric -> values (ms), how often each

    @property
    def request_throughput(self) -> float:
        """Requests answered in full, per second."""
        return self.completed / self.duration_s

    @property
    def output_throughput(self) -> float:
        """Generated tokens per second."""
        return self.total_output / self.duration_s

    @property
    def total_token_throughput(self) -> float:
        """Prompt and generated tokens per second."""
        return (self.total_input + self.total_output) / self.duration_s

    def statistics(self, metric: str) -> dict[str, float]:
        """Returns mean, median, standard deviation and percentiles of a latency, under vLLM's names; 0 without data."""
        values, counts = self.latencies[metric]
        if not len(values):
            values, counts = np.zeros(1), np.ones(1)
        mean = float(np.average(values, weights=counts))
        std = math.sqrt(float(np.average((values - mean) ** 2, weights=counts)))
        found = {"mean": mean, "median": _percentile(values, counts, 50), "std": std}
        found |= {f"p{q}": _percentile(values, counts, q) for q in PERCENTILES}
        return {f"{name}_{metric}_ms": value for name, value in found.items()}


def bench_result(run: RunRecord, settings: BenchSettings) -> BenchResult:
    """Sums up a run as the benchmark client does."""
    done = [each for each in run.requests if each.outcome is Outcome.FINISHED and each.num_output_tokens]
    started = min((each.queued_ns for each in run.requests), default=0)
    ended = max((each.finish_ns for each in run.requests), default=run.end_ns)
    duration_s = max(ended - started, 1) / 1e9
    good = _good(done, settings.goodput_s)
    times = TokenTimes.of(run)
    return BenchResult(
        settings=settings,
        requests=tuple(run.requests),
        duration_s=duration_s,
        completed=len(done),
        failed=len(run.requests) - len(done),
        total_input=sum(each.num_prompt_tokens for each in done),
        total_output=sum(each.num_output_tokens for each in done),
        request_goodput=None if good is None else good / duration_s,
        max_output_tokens_per_s=times.most_per_second(done),
        max_concurrent_requests=_most_concurrent(done),
        latencies=_latencies(done) | {"itl": times.gaps_ms()},
    )


def render_console(result: BenchResult) -> str:
    """Returns the block that `vllm bench serve` prints, ttft, tpot, itl and e2el selected."""
    settings = result.settings
    lines = [f"{' Serving Benchmark Result ':=^50}", _line("Successful requests:", result.completed)]
    lines.append(_line("Failed requests:", result.failed))
    if settings.max_concurrency is not None:
        lines.append(_line("Maximum request concurrency:", settings.max_concurrency))
    if math.isfinite(settings.request_rate):
        lines.append(_line("Request rate configured (RPS):", settings.request_rate))
    lines += [
        _line("Benchmark duration (s):", result.duration_s),
        _line("Total input tokens:", result.total_input),
        _line("Total generated tokens:", result.total_output),
        _line("Request throughput (req/s):", result.request_throughput),
    ]
    if result.request_goodput is not None:
        lines.append(_line("Request goodput (req/s):", result.request_goodput))
    lines += [
        _line("Output token throughput (tok/s):", result.output_throughput),
        _line("Peak output token throughput (tok/s):", result.max_output_tokens_per_s),
        _line("Peak concurrent requests:", float(result.max_concurrent_requests)),
        _line("Total token throughput (tok/s):", result.total_token_throughput),
    ]
    for metric, (short, header) in _METRICS.items():
        values = result.statistics(metric)
        lines.append(f"{header:-^50}")
        lines.append(_line(f"Mean {short} (ms):", values[f"mean_{metric}_ms"]))
        lines.append(_line(f"Median {short} (ms):", values[f"median_{metric}_ms"]))
        lines += [_line(f"P{q} {short} (ms):", values[f"p{q}_{metric}_ms"]) for q in PERCENTILES]
    return "\n".join([*lines, "=" * 50]) + "\n"


def render_json(result: BenchResult, run: RunRecord | None = None) -> str:
    """Returns the result file (`--save-result`).

    Args:
        result: the numbers.
        run: given, the file has one entry a request as well (`--save-detailed`).
    """
    settings = result.settings
    data: dict[str, Any] = {
        "date": _DATE, "endpoint_type": "openai", "backend": "openai", "label": "headcount",
        "model_id": settings.model, "tokenizer_id": settings.model, "num_prompts": len(result.requests),
        "request_rate": settings.request_rate if math.isfinite(settings.request_rate) else "inf",
        "burstiness": settings.burstiness, "max_concurrency": settings.max_concurrency,
        "duration": result.duration_s, "completed": result.completed, "failed": result.failed,
        "total_input_tokens": result.total_input, "total_output_tokens": result.total_output,
        "request_throughput": result.request_throughput, "request_goodput": result.request_goodput,
        "output_throughput": result.output_throughput, "total_token_throughput": result.total_token_throughput,
    }  # fmt: skip
    if run is not None:
        data |= _detailed(run)
    data["max_output_tokens_per_s"] = result.max_output_tokens_per_s
    data["max_concurrent_requests"] = result.max_concurrent_requests
    data["rtfx"] = 0.0
    for metric in _METRICS:
        data |= result.statistics(metric)
    return json.dumps(data, allow_nan=False) + "\n"


def _detailed(run: RunRecord) -> dict[str, Any]:
    """Returns one entry a request. Times are seconds since the start of the run."""
    times = TokenTimes.of(run)
    found: dict[str, list[Any]] = {name: [] for name in (
        "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts",
        "errors",
    )}  # fmt: skip
    for each in run.requests:
        done = each.outcome is Outcome.FINISHED
        found["input_lens"].append(each.num_prompt_tokens)
        found["output_lens"].append(each.num_output_tokens if done else 0)
        found["ttfts"].append((each.first_token_ns - each.sent_ns) / 1e9 if each.first_token_ns >= 0 else 0.0)
        found["itls"].append(times.gaps_of(each) if done else [])
        found["latencies"].append((each.finish_ns - each.sent_ns) / 1e9 if done else 0.0)
        found["start_times"].append(each.sent_ns / 1e9)
        found["queue_times"].append((each.sent_ns - each.queued_ns) / 1e9)
        found["generated_texts"].append("")
        found["errors"].append("" if done else _ERRORS[each.outcome])
    return dict(found)


def _line(title: str, value: float) -> str:
    return f"{title:<40} {value:<10}" if isinstance(value, int) else f"{title:<40} {value:<10.2f}"


def _latencies(done: list[RequestRecord]) -> dict[str, tuple[FloatArray, FloatArray]]:
    ttft = np.array([each.first_token_ns - each.sent_ns for each in done]) / 1e6
    e2el = np.array([each.finish_ns - each.sent_ns for each in done]) / 1e6
    tpot = np.array([_tpot_ms(each) for each in done if each.num_output_tokens > 1])
    return {name: (values, np.ones(len(values))) for name, values in (("ttft", ttft), ("tpot", tpot), ("e2el", e2el))}


def _tpot_ms(request: RequestRecord) -> float:
    if request.num_output_tokens < 2:
        return 0.0
    return (request.finish_ns - request.first_token_ns) / (request.num_output_tokens - 1) / 1e6


def _good(done: list[RequestRecord], bounds_s: Mapping[str, float] | None) -> int | None:
    """Counts the requests that met every bound; a request of one token has a TPOT of 0 here."""
    if not bounds_s:
        return None
    measures: dict[str, Callable[[RequestRecord], float]] = {
        "ttft": lambda each: (each.first_token_ns - each.sent_ns) / 1e9,
        "tpot": lambda each: _tpot_ms(each) / 1e3,
        "e2el": lambda each: (each.finish_ns - each.sent_ns) / 1e9,
    }
    return sum(all(measures[name](each) <= bound for name, bound in bounds_s.items()) for each in done)


def _most_concurrent(done: list[RequestRecord]) -> int:
    """Returns the most requests that were active in the same second."""
    if not done:
        return 0
    first = min(each.sent_ns for each in done)
    changes = np.zeros(int((max(each.finish_ns for each in done) - first) // 10**9) + 2, dtype=np.int64)
    for each in done:
        changes[(each.sent_ns - first) // 10**9] += 1
        changes[(each.finish_ns - first) // 10**9 + 1] -= 1
    return int(np.cumsum(changes).max())


def _percentile(values: FloatArray, counts: FloatArray, q: float) -> float:
    """Returns numpy's linear percentile of values that each occur so many times."""
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(counts[order])
    index = q / 100 * (ends[-1] - 1)
    low, high = (
        values[order][np.searchsorted(ends, place, side="right")] for place in (math.floor(index), math.ceil(index))
    )
    return float(low + (high - low) * (index - math.floor(index)))
