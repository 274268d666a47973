"""Runs of the real vLLM published with LLMServingSim (github.com/casys-kaist/LLMServingSim): JSON lines.

`requests.jsonl` has the engine's own times of each request: arrival_time (seconds since 1970, in the client),
queued_ts, first_token_ts and last_token_ts (seconds of the engine's clock), input_toks and output_toks. The engine
takes new requests between steps, so a request is queued up to a step after it arrives; TTFT and E2E count from
queued_ts, as its publishers count them.

The data set that was sent has the token ids; equal blocks of 16 at the head of two prompts are then cached.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.readers.json_file import is_count, is_number
from calibrate.readers.measured import MeasuredRun, measured_run
from sim.errors import UserError
from sim.workload.text_files import open_lines
from sim.workload.trace import Int64s, Trace

_TIMES = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
_COUNTS = ("input_toks", "output_toks")
_BLOCK_TOKENS = 16


def read_llmservingsim(path: Path, prompts: Path | None = None) -> MeasuredRun:
    """Reads a run, and the prompts' shared blocks where the data set is given.

    Raises:
        UserError: a line is no such request, or the data set is of other requests.
    """
    rows = _lines(path, (*_TIMES, *_COUNTS))
    times = {key: np.array([row[key] for row in rows], dtype=np.float64) for key in _TIMES}
    counts = {key: np.array([row[key] for row in rows], dtype=np.int64) for key in _COUNTS}
    sent = times["arrival_time"] - times["arrival_time"].min()
    hashes, ends = (None, None) if prompts is None else _blocks(prompts, path, counts["input_toks"])
    requests = Trace(
        sent_ns=np.rint(sent * 1e9).astype(np.int64),
        prompt_tokens=counts["input_toks"],
        output_tokens=counts["output_toks"],
        block_hashes=hashes,
        block_ends=ends,
        block_tokens=_BLOCK_TOKENS,
    )
    warning = f"{path}: the prompts' content is not in this file, so nothing is cached; give it with --prompts"
    return measured_run(
        path,
        requests,
        ttft_s=times["first_token_ts"] - times["queued_ts"],
        e2el_s=times["last_token_ts"] - times["queued_ts"],
        warnings=(warning,) if prompts is None else (),
    )


def _lines(path: Path, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    with open_lines(path) as lines:
        rows = [_line(f"{path}:{lines.number}", line, keys) for line in lines if not line.isspace()]
    if not rows:
        raise UserError(f"{path}:1:1: no requests; expected lines with {', '.join(keys)}")
    return rows


def _line(where: str, line: str, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}:{error.colno}: not JSON: {error.msg}; is the file complete?") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}:1: got {line[:40]!r}; expected an object with {', '.join(keys)}")
    for key in keys:
        valid = is_count(row.get(key)) if key in _COUNTS else is_number(row.get(key))
        if not valid:
            column = max(0, line.find(f'"{key}"')) + 1
            expected = "a whole number, at least 1" if key in _COUNTS else "a number of seconds, at least 0"
            raise UserError(f"{where}:{column}: {key}: got {row.get(key)!r}; expected {expected}")
    return row


def _blocks(prompts: Path, run: Path, input_tokens: Int64s) -> tuple[Int64s, Int64s]:
    """Numbers the full blocks of the prompts, equal where the prompts are equal up to the block's end."""
    rows = _lines(prompts, ("input_toks", "output_toks"))
    if [row["input_toks"] for row in rows] != input_tokens.tolist():
        raise UserError(f"{prompts}: these are not the requests of {run}: numbers or lengths of prompts differ")
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    hashes, ends = [], []
    for index, row in enumerate(rows):
        ids = row.get("input_tok_ids")
        if not isinstance(ids, list) or len(ids) != row["input_toks"]:
            raise UserError(f"{prompts}:{index + 1}:1: input_tok_ids: expected {row['input_toks']} token ids")
        parent = -1
        for start in range(0, len(ids) - _BLOCK_TOKENS + 1, _BLOCK_TOKENS):
            key = (parent, tuple(ids[start : start + _BLOCK_TOKENS]))
            parent = numbers.setdefault(key, len(numbers))
            hashes.append(parent)
        ends.append(len(hashes))
    return np.array(hashes, dtype=np.int64), np.array(ends, dtype=np.int64)
