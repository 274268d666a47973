"""Reports of GuideLLM (github.com/vllm-project/guidellm): benchmarks.json with its requests.

A report holds several benchmarks, one a rate or concurrency; each is a run of its own. Request times are seconds
since 1970, latencies are in the unit of their names. Fields of its releases 0.3 and before (`start_time`,
`first_token_time`, `end_time`) are read as well as those since (`request_start_time`, `time_to_first_token_ms`,
`request_latency`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.readers.json_file import JsonFile, is_count, is_number
from calibrate.readers.measured import MeasuredRun, measured_run, run_name
from sim.workload.trace import Trace

_EXPECTS = "a GuideLLM report with benchmarks and their requests"


def read_guidellm(path: Path) -> list[MeasuredRun]:
    """Reads every benchmark of a report that has successful requests.

    Raises:
        UserError: it is not such a report, or no benchmark has its requests.
    """
    file = JsonFile(path, _EXPECTS)
    benchmarks = file.column("benchmarks")
    runs = [run for number, item in enumerate(benchmarks) if (run := _run(file, item, number, len(benchmarks)))]
    if not runs:
        file.fail("benchmarks", "no successful requests in any of them")
    return runs


def _run(file: JsonFile, benchmark: Any, number: int, num_benchmarks: int) -> MeasuredRun | None:
    where = f"benchmarks[{number}]"
    requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
    if isinstance(requests, dict):
        requests = requests.get("successful")
    if not isinstance(requests, list):
        file.fail("benchmarks", f"{where}.requests.successful is missing; expected {_EXPECTS}")
    if not requests:
        return None
    rows = [_row(file, request, f"{where}.requests.successful[{i}]") for i, request in enumerate(requests)]
    sent, wanted, prompts, outputs, ttfts, e2els = (np.array(column) for column in zip(*rows, strict=True))
    first = min(sent.min(), wanted.min())
    run = measured_run(
        file.path,
        Trace(
            sent_ns=np.rint((sent - first) * 1e9).astype(np.int64),
            wanted_ns=np.rint((wanted - first) * 1e9).astype(np.int64),
            prompt_tokens=prompts.astype(np.int64),
            output_tokens=outputs.astype(np.int64),
        ),
        ttft_s=None if np.isnan(ttfts).all() else ttfts,
        e2el_s=e2els,
        max_concurrency=_streams(benchmark),
        warnings=_left_out(file.path, benchmark, len(rows)),
    )
    name = run_name(file.path)
    return run if num_benchmarks == 1 else replace(run, name=f"{name}[{number}]")


def _row(file: JsonFile, request: Any, where: str) -> tuple[float, float, int, int, float, float]:
    """Returns sent, wanted (seconds since 1970), prompt and output tokens, TTFT and E2E (seconds)."""
    if not isinstance(request, dict):
        file.fail("requests", f"{where}: got {str(request)[:40]}; expected an object")

    def pick(*keys: str, count: bool = False) -> Any:
        found = next(((key, request[key]) for key in keys if request.get(key) is not None), None)
        if found is None:
            file.fail(keys[0], f"{where}: missing; expected {_EXPECTS}")
        if not (is_count if count else is_number)(found[1]):
            kind = "a whole number, at least 1" if count else "a number, at least 0"
            file.fail(found[0], f"{where}: got {str(found[1])[:40]}; expected {kind}")
        return found[1]

    sent = pick("request_start_time", "start_time")
    if request.get("request_latency") is not None:
        e2el = pick("request_latency")
    else:
        e2el = pick("request_end_time", "end_time") - sent
    if request.get("time_to_first_token_ms") is not None:
        ttft = pick("time_to_first_token_ms") / 1e3
    else:
        ttft = pick("first_token_time") - sent if request.get("first_token_time") is not None else np.nan
    timings = (request.get("info") or {}).get("timings") or {}
    target: Any = timings.get("targeted_start")
    wanted = min(sent, target) if is_number(target) and target > 0 else sent
    return sent, wanted, pick("prompt_tokens", count=True), pick("output_tokens", count=True), ttft, e2el


def _streams(benchmark: dict[str, Any]) -> int | None:
    """Returns the number of requests that the strategy keeps in flight, where it has one."""
    for owner in (benchmark.get("config"), benchmark.get("args"), benchmark.get("scheduler")):
        strategy = (owner or {}).get("strategy") if isinstance(owner, dict) else None
        if isinstance(strategy, dict):
            if strategy.get("type_") == "synchronous":
                return 1
            cap = strategy.get("streams") or strategy.get("max_concurrency")
            return cap if type(cap) is int and cap > 0 else None
    return None


def _left_out(path: Path, benchmark: dict[str, Any], num_rows: int) -> tuple[str, ...]:
    """Says when the report holds a sample of the requests only: a replay of it would see too low a load."""
    totals = (benchmark.get("metrics") or {}).get("request_totals") or {}
    total = totals.get("successful")
    if type(total) is int and total > num_rows:
        return (
            f"{path}: the report holds {num_rows} of {total} successful requests; a replay sees less load than the "
            "server did",
        )
    return ()
