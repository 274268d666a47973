"""Fits an Ollama profile to the timing fields of its responses: what a batch, a load and the way there cost.

Every response of /api/generate and /api/chat ends with total_duration, load_duration, prompt_eval_count,
prompt_eval_duration, eval_count and eval_duration (nanoseconds). With one request at a time they are

    prompt_eval_duration = sum over batches of q tokens: max(floor, token·q) + pair·(q·ctx + q·(q + 1)/2) + request
    eval_duration        = (eval_count - 1)·(max(floor, token) + request) + context·(sum of contexts)

because the first token comes with the prompt's last batch. Five numbers, none negative, fitted to relative errors with
a loss that forgives outliers. Every fifth response is left out and predicted.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.engine.ollama.profile import LoadCost, MeasuredOllama, OllamaProfile
from sim.engine.profile import ClientSide, ErrorTable, MeasuredError
from sim.engine.profile_terms import Estimate, FittedStepTime
from sim.errors import UserError

Array = npt.NDArray[np.float64]

_FIELDS = (
    "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"
)  # fmt: skip
_LOADED_NS = 500_000_000  # a load_duration above this was a load; below, the way to a loaded model
_LEFT_OUT = 5  # every so many responses one is not fitted
_LEAST = 6
_NUM_BATCH = 512


@dataclass(frozen=True, slots=True)
class Timings:
    """The timing fields of one response, in nanoseconds and tokens.

    Attributes:
        total: total_duration.
        load: load_duration.
        prompt_tokens: prompt_eval_count.
        cached_tokens: prompt_eval_cached_count; 0 where the release does not tell it.
        prompt: prompt_eval_duration.
        output_tokens: eval_count.
        eval: eval_duration.
    """

    total: int
    load: int
    prompt_tokens: int
    cached_tokens: int
    prompt: int
    output_tokens: int
    eval: int

    @property
    def rest(self) -> int:
        """What the fields leave of the total: the wait for a slot, and the server's own work."""
        return max(0, self.total - self.load - self.prompt - self.eval)


def read_responses(path: Path) -> list[Timings]:
    """Reads responses, one JSON object a line; lines without timing fields (pieces of a stream) are passed over.

    Raises:
        UserError: the file cannot be read, a line is no JSON object, or nothing has the fields.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    found = [timings for number, line in enumerate(lines, 1) if (timings := _timings(path, number, line)) is not None]
    if not found:
        raise UserError(f"{path}: no line has the timing fields of a response: {', '.join(_FIELDS)}")
    return found


def _timings(path: Path, number: int, line: str) -> Timings | None:
    if not line.strip():
        return None
    try:
        data: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{number}:{error.colno}: not JSON: {error.msg}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}:{number}:1: expected a JSON object, the last of a response; got {line[:40]!r}")
    if "eval_duration" not in data or "total_duration" not in data:
        return None
    values = []
    for field in (*_FIELDS, "prompt_eval_cached_count"):
        value = data.get(field) or 0  # Ollama leaves out what is 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(f"{path}:{number}:1: {field}: a number of nanoseconds or tokens; got {value!r}")
        values.append(value)
    total, load, prompt_tokens, prompt, output_tokens, eval_ns, cached = values
    return Timings(total, load, prompt_tokens, cached, prompt, output_tokens, eval_ns)


def fit_ollama(
    responses: Sequence[Timings], server: MeasuredOllama, *, name: str, source: str, num_batch: int = _NUM_BATCH
) -> OllamaProfile:
    """Fits a profile.

    Args:
        responses: of requests that were sent one at a time.
        server: what was measured.
        name: of the profile.
        source: where the responses come from.
        num_batch: tokens of a batch of the measured server.

    Raises:
        UserError: too few responses, or none that generates more than one token.
    """
    usable = [each for each in responses if each.output_tokens > 1 and each.prompt and each.eval]
    if len(usable) < _LEAST:
        raise UserError(
            f"{len(usable)} of {len(responses)} responses have a prompt and two output tokens or more; a fit needs "
            f"{_LEAST} at least, with prompts and answers of different lengths"
        )
    fitted = [each for index, each in enumerate(usable) if index % _LEFT_OUT != _LEFT_OUT - 1]
    left_out = [each for index, each in enumerate(usable) if index % _LEFT_OUT == _LEFT_OUT - 1]
    numbers, remarks = _fit(fitted, num_batch)
    way = [each.load + each.rest for each in usable if each.load < _LOADED_NS]
    loads = [each.load for each in responses if each.load >= _LOADED_NS]
    tables = (("the responses of the fit", False, fitted), ("every fifth response", True, left_out))
    way_ms = float(np.percentile(way, 25)) / 1e6 if way else 0.0
    return OllamaProfile(
        format=1,
        kind="ollama",
        name=name,
        calibrated=True,
        date=datetime.date.today(),
        source=source,
        data=(f"{len(usable)} responses, sent one at a time", f"{len(left_out)} of them left out of the fit"),
        server=server,
        step_time=FittedStepTime.model_validate({"kind": "fitted", **_estimates(numbers, remarks)}),
        load=LoadCost(load_ms=Estimate(value=_round(median(loads) / 1e6))) if loads else None,
        client_latency=ClientSide(request_ms=Estimate(value=_round(way_ms))),
        errors=tuple(_errors(run, held_out, each, numbers, num_batch) for run, held_out, each in tables if each),
        notes=tuple(_notes(usable, loads)),
    )


def _estimates(numbers: dict[str, float], remarks: dict[str, str]) -> dict[str, Estimate]:
    return {key: Estimate(value=_round(number), remark=remarks.get(key)) for key, number in numbers.items()}


def _fit(responses: Sequence[Timings], num_batch: int) -> tuple[dict[str, float], dict[str, str]]:
    """Returns the five numbers by their names in a profile, and what is to be said of some."""
    from scipy.optimize import least_squares

    step_us = median(each.eval / (each.output_tokens - 1) for each in responses) / 1e3
    token_us = min(each.prompt / max(1, each.prompt_tokens - each.cached_tokens) for each in responses) / 1e3
    start = np.array([step_us, token_us, 0.01, 0.01, 0.01 * step_us])
    measured = np.array([*(each.prompt for each in responses), *(each.eval for each in responses)], dtype=float)

    def residuals(numbers: Array) -> Array:
        relative: Array = _predicted_ns(responses, numbers, num_batch) / measured - 1
        return relative

    found = least_squares(
        residuals, start, bounds=(0, np.inf), x_scale=np.maximum(start, 1e-3), loss="soft_l1", f_scale=0.05
    )  # fmt: skip
    names = (
        "floor_us", "per_token_us", "per_attention_pair_ns", "per_decode_context_token_ns", "per_request_us"
    )  # fmt: skip
    numbers = dict(zip(names, map(float, found.x), strict=True))
    # A column that hardly moves the prediction is not known from these responses.
    weak = np.linalg.norm(found.jac * np.maximum(np.abs(found.x), 1e-3), axis=0) < 1e-3
    return numbers, {name: "not identified by this data" for name, is_weak in zip(names, weak, strict=True) if is_weak}


def _predicted_ns(responses: Sequence[Timings], numbers: Array, num_batch: int) -> Array:
    """Returns the prompts' and then the answers' durations as the profile's model has them."""
    floor, token, pair, context, request = numbers * np.array([1e3, 1e3, 1.0, 1.0, 1e3])
    prompts, answers = [], []
    for each in responses:
        left, done, duration = max(1, each.prompt_tokens - each.cached_tokens), each.cached_tokens, 0.0
        while left:
            q = min(left, num_batch)
            duration += max(floor, token * q) + request
            duration += context * done if q == 1 else pair * (q * done + q * (q + 1) / 2)
            left, done = left - q, done + q
        prompts.append(duration)
        steps = each.output_tokens - 1
        contexts = steps * each.prompt_tokens + steps * (steps - 1) / 2
        answers.append(steps * (max(floor, token) + request) + context * contexts)
    return np.array([*prompts, *answers])


def _errors(
    run: str, held_out: bool, responses: Sequence[Timings], numbers: dict[str, float], num_batch: int
) -> ErrorTable:
    predicted = _predicted_ns(responses, np.array(list(numbers.values())), num_batch) / 1e6
    count = len(responses)
    tokens = np.array([each.output_tokens - 1 for each in responses])
    prompt, answer = (np.array([getattr(each, name) for each in responses]) / 1e6 for name in ("prompt", "eval"))
    pairs = {
        "ttft_ms": (prompt, predicted[:count]),
        "tpot_ms": (answer / tokens, predicted[count:] / tokens),
        "e2el_ms": (prompt + answer, predicted[:count] + predicted[count:]),
    }
    rows = [
        MeasuredError.model_validate(
            {
                "metric": metric,
                "statistic": statistic,
                "measured": _round(_statistic(measured, statistic)),
                "predicted": _round(_statistic(was, statistic)),
            }
        )
        for metric, (measured, was) in pairs.items()
        for statistic in ("median", "p95")
    ]
    return ErrorTable(run=run, held_out=held_out, rows=tuple(rows))


def _statistic(values: Array, name: str) -> float:
    return float(np.percentile(values, 50 if name == "median" else 95))


def _notes(responses: Sequence[Timings], loads: Sequence[int]) -> Iterable[str]:
    yield "Times are those of the server's own fields: what the network adds is not in them."
    if not any(each.cached_tokens for each in responses):
        yield (
            "No response tells prompt tokens found in the cache (prompt_eval_cached_count, from 0.33.3): prompts with "
            "equal beginnings would make reading look faster than it is."
        )
    if not loads:
        yield "No response waited for a load: load times are those of the scenario (file size, disk speed)."


def _round(value: float) -> float:
    return float(f"{value:.6g}")
