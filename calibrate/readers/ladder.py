"""A ladder of closed-loop runs: a table with one row a concurrency and the totals that `vllm bench serve` prints.

Columns: max_concurrency, num_prompts, input_len and output_len (the mean lengths), and any of duration_s,
req_throughput, output_tok_throughput, preemptions, and ttft, tpot, itl, e2el with _mean_ms, _median_ms, _p90_ms, … .
The requests themselves are not known: they are drawn, uniformly about the mean lengths.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.readers.measured import Floats, run_name
from sim.errors import UserError
from sim.workload.csv_columns import Column, read_columns, read_header, whole_numbers
from sim.workload.trace import Int64s, Trace

Key = tuple[str, str | None]
"""(metric, statistic), as profiles name them."""

_TOTALS = {
    "duration_s": "duration_s",
    "req_throughput": "request_throughput_per_s",
    "request_throughput": "request_throughput_per_s",
    "output_tok_throughput": "output_throughput_per_s",
    "output_throughput": "output_throughput_per_s",
    "preemptions": "preemptions",
}
_LATENCY = re.compile(r"^(ttft|tpot|itl|e2el)_(mean|median|p\d{1,2}(?:\.\d+)?)_ms$")


@dataclass(frozen=True, slots=True)
class Rung:
    """One run of the ladder.

    Attributes:
        name: for tables.
        max_concurrency: requests in flight.
        num_requests: in all.
        mean_input_tokens: of the prompts that were sent.
        mean_output_tokens: of the answers.
        measured: (metric, statistic) -> value, in the unit of the metric's name.
    """

    name: str
    max_concurrency: int
    num_requests: int
    mean_input_tokens: float
    mean_output_tokens: float
    measured: dict[Key, float]

    def requests(self, spread: float, seed: int = 0) -> Trace:
        """Draws the requests: all wanted at once, lengths uniform within ± `spread` of the mean, the mean exact."""
        rng = np.random.default_rng([seed, self.max_concurrency])
        return Trace(
            sent_ns=np.zeros(self.num_requests, dtype=np.int64),
            wanted_ns=np.zeros(self.num_requests, dtype=np.int64),
            prompt_tokens=_lengths(rng, self.mean_input_tokens, spread, self.num_requests),
            output_tokens=_lengths(rng, self.mean_output_tokens, spread, self.num_requests),
        )


def is_ladder(path: Path) -> bool:
    """Returns whether a table's header is that of a ladder."""
    return {"max_concurrency", "num_prompts"} <= {name.lower() for name in read_header(path)}


def read_ladder(path: Path) -> list[Rung]:
    """Reads the rungs, in the order of the file.

    Raises:
        UserError: a column is missing or a cell is not what it has to be, or no latency column is known.
    """
    header = read_header(path)
    keys = {name: key for name in header if (key := _key(name)) is not None}
    if not any(metric.endswith("_ms") for metric, _ in keys.values()):
        raise UserError(f"{path}:1:1: no latencies; expected columns such as ttft_mean_ms or itl_median_ms")
    count = whole_numbers(1)
    columns = read_columns(
        path,
        {
            "run": Column(("run", "name"), _texts, "a name", optional=True),
            "concurrency": Column(("max_concurrency",), count, "a whole number, at least 1"),
            "number": Column(("num_prompts",), count, "a whole number, at least 1"),
            "input": Column(("input_len",), _positive, "a number, at least 1"),
            "output": Column(("output_len",), _positive, "a number, at least 1"),
            **{name: Column((name,), _known_or_not, "a number, at least 0, or nothing") for name in keys},
        },
    )
    return [
        Rung(
            name=str(columns["run"][row]) if "run" in columns else f"{run_name(path)} C={columns['concurrency'][row]}",
            max_concurrency=int(columns["concurrency"][row]),
            num_requests=int(columns["number"][row]),
            mean_input_tokens=float(columns["input"][row]),
            mean_output_tokens=float(columns["output"][row]),
            measured={key: float(columns[name][row]) for name, key in keys.items() if columns[name][row] >= 0},
        )
        for row in range(len(columns["number"]))
    ]


def _key(name: str) -> Key | None:
    if name in _TOTALS:
        return _TOTALS[name], None
    match = _LATENCY.match(name)
    return (f"{match[1]}_ms", "p50" if match[2] == "median" else match[2]) if match else None


def _lengths(rng: np.random.Generator, mean: float, spread: float, number: int) -> Int64s:
    drawn = mean * (1 + spread * rng.uniform(-1, 1, number))
    return np.asarray(np.maximum(1, np.rint(drawn + mean - drawn.mean())), dtype=np.int64)


def _texts(cells: Sequence[str]) -> NDArray[np.str_]:
    return np.array(cells)


def _positive(cells: Sequence[str]) -> Floats:
    values = np.array(list(map(float, cells)))
    if not (np.isfinite(values) & (values >= 1)).all():
        raise ValueError
    return values


def _known_or_not(cells: Sequence[str]) -> Floats:
    """Parses numbers, at least 0; an empty cell is unknown and becomes -1."""
    values = np.array([-1.0 if not cell.strip() else float(cell) for cell in cells])
    if not np.isfinite(values).all() or any(cell.strip().startswith("-") for cell in cells):
        raise ValueError
    return values
