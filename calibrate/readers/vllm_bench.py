"""Results of `vllm bench serve --save-result --save-detailed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibrate.readers.json_file import JsonFile, is_number
from calibrate.readers.measured import Floats, MeasuredRun, measured_run
from sim.workload.trace_json import read_vllm_bench

_EXPECTS = "a result of `vllm bench serve --save-result --save-detailed`"


def read_bench_result(path: Path) -> MeasuredRun:
    """Reads start_times, input_lens, output_lens, ttfts and itls; failed requests are left out.

    E2E is TTFT plus the gaps between the tokens: the client records no end. Times are seconds.

    Raises:
        UserError: it is not such a result, or has no details.
    """
    file = JsonFile(path, _EXPECTS)
    requests = read_vllm_bench(path)  # checks what both need
    num_requests = len(file.column("start_times"))
    errors = file.root.get("errors") or [""] * num_requests
    kept = [not error for error in errors]
    order = np.argsort(np.array(file.root["start_times"], dtype=np.float64)[kept], kind="stable")
    ttfts = _latencies(file, "ttfts", num_requests, kept)
    gaps = _gaps(file, num_requests, kept)
    e2el_s = None
    if ttfts is not None and gaps is not None:
        e2el_s = (ttfts + np.array([sum(row) for row in gaps]))[order]
    cap = file.root.get("max_concurrency")
    return measured_run(
        path,
        requests,
        ttft_s=None if ttfts is None else ttfts[order],
        e2el_s=e2el_s,
        itl_s=None if gaps is None else np.array([gap for row in gaps for gap in row], dtype=np.float64),
        max_concurrency=cap if type(cap) is int and cap > 0 else None,
    )


def _latencies(file: JsonFile, key: str, num_requests: int, kept: list[bool]) -> Floats | None:
    if file.root.get(key) is None:
        return None
    values = [value for value, keep in zip(file.column(key, num_requests), kept, strict=True) if keep]
    for index, value in enumerate(values):
        if not is_number(value):
            file.fail(key, f"got {value!r} at [{index}]; expected a number of seconds, at least 0")
    return np.array(values, dtype=np.float64)


def _gaps(file: JsonFile, num_requests: int, kept: list[bool]) -> list[list[float]] | None:
    if file.root.get("itls") is None:
        return None
    rows: list[Any] = [row for row, keep in zip(file.column("itls", num_requests), kept, strict=True) if keep]
    for index, row in enumerate(rows):
        if not isinstance(row, list) or not all(map(is_number, row)):
            file.fail("itls", f"got {str(row)[:40]} at [{index}]; expected a list of seconds, each at least 0")
    return rows
