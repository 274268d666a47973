"""Traces in JSON: Mooncake's lines with prefix hashes, and the results of `vllm bench serve`."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from sim.errors import UserError
from sim.workload.csv_columns import LATEST_SECONDS
from sim.workload.text_files import open_lines
from sim.workload.trace import Int64s, Trace

_MOONCAKE_BLOCK_TOKENS = 512
_MOONCAKE_KEYS = "timestamp, input_length, output_length, hash_ids"
_TIME = "a number, from 0 to 9e9"
_MILLISECONDS = "a number, from 0 to 9e12"
_TOKENS = "a whole number of tokens, at least 1"


def read_mooncake(path: Path) -> Trace:
    """Reads a Mooncake trace (github.com/kvcache-ai/Mooncake, FAST25-release/traces): one JSON object a line.

    `timestamp` counts milliseconds from the start. `hash_ids` has one number for each 512 tokens of the prompt, equal
    where the prompts are equal up to there; the last, shorter block has a number of its own. Prompt tokens without a
    number are taken for text that no other prompt has.

    Raises:
        UserError: a line is not such an object, or there is none.
    """
    sent_ns, prompts, outputs, hashes, ends = (array("q") for _ in range(5))
    with open_lines(path) as lines:
        for line in lines:
            if line.isspace():
                continue
            entry = _MooncakeLine(path, line, lines.number)
            sent_ns.append(round(entry.get("timestamp", _is_milliseconds, _MILLISECONDS) * 1e6))
            prompts.append(entry.get("input_length", _is_count, _TOKENS))
            outputs.append(entry.get("output_length", _is_count, _TOKENS))
            hashes.extend(entry.hash_ids())
            ends.append(len(hashes))
    if not sent_ns:
        raise UserError(f"{path}:1:1: no requests; expected lines with {_MOONCAKE_KEYS}")
    return Trace(
        sent_ns=_array(sent_ns),
        prompt_tokens=_array(prompts),
        output_tokens=_array(outputs),
        block_hashes=_array(hashes),
        block_ends=_array(ends),
        block_tokens=_MOONCAKE_BLOCK_TOKENS,
    ).in_order()


def read_vllm_bench(path: Path) -> Trace:
    """Reads a result of `vllm bench serve --save-result --save-detailed`: start_times, input_lens, output_lens.

    With `queue_times` the trace also knows when the client wanted to send a request, before its semaphore. The times
    count from the first request. Failed requests are left out: nobody knows how long their answers would have been.

    Raises:
        UserError: it is not such a result, or has no details.
    """
    with open_lines(path) as lines:
        result = _BenchResult(path, lines.text.read())
    starts = np.array(result.column("start_times", _is_time, _TIME), dtype=np.float64)
    queued = np.zeros_like(starts)
    if result.has("queue_times"):
        queued = np.array(result.column("queue_times", _is_time, _TIME), dtype=np.float64)
    first = (starts - queued).min()
    num_failed = sum(result.failed)
    return Trace(
        sent_ns=np.rint((starts - first) * 1e9).astype(np.int64),
        wanted_ns=np.rint((starts - queued - first) * 1e9).astype(np.int64),
        prompt_tokens=np.array(result.column("input_lens", _is_count, _TOKENS), dtype=np.int64),
        output_tokens=np.array(result.column("output_lens", _is_count, _TOKENS), dtype=np.int64),
        warnings=(f"{path}: {num_failed} failed requests of the recording are left out",) if num_failed else (),
    ).in_order()


class _MooncakeLine:
    """One line of a Mooncake trace."""

    def __init__(self, path: Path, line: str, number: int) -> None:
        self._where = f"{path}:{number}"
        self._line = line
        try:
            self._entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{self._where}:{error.colno}: not JSON: {error.msg}") from None
        if not isinstance(self._entry, dict):
            raise UserError(f"{self._where}:1: expected an object with {_MOONCAKE_KEYS}")

    def get(self, key: str, is_valid: Callable[[Any], bool], expects: str) -> Any:
        value = self._entry.get(key)
        if not is_valid(value):
            got = f"got {json.dumps(value)}" if key in self._entry else "missing"
            self._fail(key, f"{got}; expected {expects}")
        return value

    def hash_ids(self) -> list[int]:
        """Returns the numbers of the prompt's blocks; none where the line has none."""
        hashes = self._entry.get("hash_ids")
        if hashes is None:
            return []
        if not isinstance(hashes, list) or not all(type(number) is int and 0 <= number < 2**62 for number in hashes):
            self._fail("hash_ids", "expected a list of whole numbers, at least 0")
        most = -(-self._entry["input_length"] // _MOONCAKE_BLOCK_TOKENS)
        if len(hashes) > most:
            blocks = f"{self._entry['input_length']} tokens have {most} blocks of {_MOONCAKE_BLOCK_TOKENS}"
            self._fail("hash_ids", f"got {len(hashes)} numbers, but {blocks}")
        return hashes

    def _fail(self, key: str, what: str) -> NoReturn:
        column = max(0, self._line.find(f'"{key}"')) + 1
        raise UserError(f"{self._where}:{column}: {key}: {what}")


class _BenchResult:
    """A result file of `vllm bench serve`; `failed` says of each request whether it failed."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text
        try:
            self._result = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
        if not isinstance(self._result, dict):
            raise UserError(f"{path}:1:1: expected the JSON object that `vllm bench serve --save-result` writes")
        self._num_requests = len(self._list("start_times"))
        errors = self._list("errors") if self.has("errors") else [""] * self._num_requests
        self.failed = [bool(error) for error in errors]
        if all(self.failed):
            self._fail("start_times", "no successful requests")

    def has(self, key: str) -> bool:
        return self._result.get(key) is not None

    def column(self, key: str, is_valid: Callable[[Any], bool], expects: str) -> list[Any]:
        """Returns the entries of the requests that did not fail."""
        values = [value for value, failed in zip(self._list(key), self.failed, strict=True) if not failed]
        for value in values:
            if not is_valid(value):
                self._fail(f"{key}", f"got {json.dumps(value)} at [{values.index(value)}]; expected {expects}")
        return values

    def _list(self, key: str) -> list[Any]:
        values = self._result.get(key)
        if not isinstance(values, list):
            self._fail(key, "missing; run `vllm bench serve` with --save-detailed")
        expected = len(values) if key == "start_times" else self._num_requests
        if len(values) != expected:
            self._fail(key, f"{len(values)} entries, but start_times has {expected}")
        return values

    def _fail(self, key: str, what: str) -> NoReturn:
        place = max(0, self._text.find(f'"{key}"'))
        line = self._text.count("\n", 0, place) + 1
        column = place - self._text.rfind("\n", 0, place)
        raise UserError(f"{self._path}:{line}:{column}: {key}: {what}")


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= LATEST_SECONDS


def _is_milliseconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1000 * LATEST_SECONDS


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**62


def _array(column: array[int]) -> Int64s:
    return np.array(column, dtype=np.int64)
