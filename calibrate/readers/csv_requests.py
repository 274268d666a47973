"""A plain table of requests: arrival_s, input_tokens, output_tokens, and send_s, ttft_s, e2el_s where known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrate.readers.measured import Floats, MeasuredRun, measured_run
from sim.errors import UserError
from sim.workload.csv_columns import LATEST_SECONDS, SECONDS, Column, Labels, read_columns, whole_numbers
from sim.workload.trace import Trace

_PER_UNIT = {"s": 1.0, "ms": 1e-3}


def _optional_numbers(cells: Sequence[str]) -> Floats:
    """Parses numbers from 0 to the longest time; an empty cell, NA or nan is unknown."""
    values = np.array([np.nan if cell.strip().lower() in ("", "na", "nan") else float(cell) for cell in cells])
    if (values > LATEST_SECONDS).any() or (values < 0).any():
        raise ValueError
    return values


def _known_numbers(cells: Sequence[str]) -> Floats:
    values = _optional_numbers(cells)
    if np.isnan(values).any():
        raise ValueError
    return values


def _seconds(names: tuple[str, ...], *, known: bool, optional: bool) -> Column:
    parse = _known_numbers if known else _optional_numbers
    return Column(names, parse, SECONDS if known else f"{SECONDS}, or nothing", optional)


def _milliseconds(*names: str) -> Column:
    return Column(names, _optional_numbers, "a number of milliseconds, from 0 to 9e9, or nothing", optional=True)


def read_request_csv(path: Path) -> MeasuredRun:
    """Reads a table with a header, one row a request, plain or gzip.

    Columns: arrival_s (when the client wanted to send), input_tokens, output_tokens; and, where known, send_s (when
    it did send), ttft_s or ttft_ms, e2el_s or e2el_ms, class, user. Latencies count from the send. Empty cells are
    unknown latencies; other columns are ignored.

    Raises:
        UserError: a column is missing or given in two units, or a cell is not what it has to be.
    """
    labels = {"class": Labels(), "user": Labels()}
    tokens = whole_numbers(1)
    columns = read_columns(
        path,
        {
            "arrival": _seconds(("arrival_s", "time_s", "arrived_at"), known=True, optional=False),
            "prompt": Column(("input_tokens", "prompt_tokens", "input_length"), tokens, "a whole number, at least 1"),
            "output": Column(("output_tokens", "output_length"), tokens, "a whole number, at least 1"),
            "send": _seconds(("send_s", "sent_s"), known=True, optional=True),
            "ttft_s": _seconds(("ttft_s",), known=False, optional=True),
            "ttft_ms": _milliseconds("ttft_ms"),
            "e2el_s": _seconds(("e2el_s", "e2e_s", "latency_s"), known=False, optional=True),
            "e2el_ms": _milliseconds("e2el_ms", "e2e_ms", "latency_ms"),
            "class": Column(("class", "class_name"), labels["class"].parse, "a name", optional=True),
            "user": Column(("user", "user_id"), labels["user"].parse, "a name or number", optional=True),
        },
    )
    wanted_ns = np.rint(columns["arrival"] * 1e9).astype(np.int64)
    sent_ns = np.rint(columns["send"] * 1e9).astype(np.int64) if "send" in columns else wanted_ns
    requests = Trace(
        sent_ns=sent_ns,
        wanted_ns=wanted_ns,
        prompt_tokens=columns["prompt"],
        output_tokens=columns["output"],
        class_ids=columns.get("class"),
        class_names=labels["class"].names,
        user_ids=columns.get("user"),
    )
    return measured_run(path, requests, ttft_s=_latency(path, columns, "ttft"), e2el_s=_latency(path, columns, "e2el"))


def _latency(path: Path, columns: dict[str, Floats], name: str) -> Floats | None:
    """Returns a latency in seconds from the one column that has it."""
    given = [unit for unit in _PER_UNIT if f"{name}_{unit}" in columns]
    if len(given) > 1:
        raise UserError(f"{path}:1:1: both {name}_s and {name}_ms are given; keep one")
    if not given:
        return None
    values = columns[f"{name}_{given[0]}"] * _PER_UNIT[given[0]]
    return None if np.isnan(values).all() else values
