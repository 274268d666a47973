"""What a vLLM log says of its server: version, flags, memory, KV cache; and the engine's own lines on its iterations.

The start-up lines of releases from 0.6 on are understood. A log of several starts describes the last of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.errors import UserError

_VERSION = re.compile(
    r"(?:LLM engine \(v|vLLM API server version |version )(\d+\.\d+(?:\.\d+)?\S*?)(?=\)|\s|$|,)", re.MULTILINE
)
_ARGS = re.compile(r"non-default args: (\{.*\})\s*$", re.MULTILINE)
_CONFIG = re.compile(r"Initializing an? (?:V1 )?LLM engine \(v[^)]*\) with config: (.*)$", re.MULTILINE)
_CONFIG_VALUE = re.compile(r"(?:^|, )(\w+)=('[^']*'|[^,\s(]+)")
_NUMBERS = {
    # Each with the units it comes in; the first group is the number.
    "weights_gib": r"(?:Model loading took|[Mm]odel weights take|Loading model weights took) ([\d.]+) ?(GiB|GB)",
    "available_kv_gib": r"Available KV cache memory: (-?[\d.]+) ?(GiB)",
    "explicit_kv_gib": r"Explicitly set \(([\d.]+)/[\d.]+\) ?(GiB) for KV cache",
    "graphs_taken_gib": r"Graph capturing finished in \d+ secs, took ([\d.]+) ?(GiB)",
    "kv_tokens": r"(?:GPU|CPU|XPU|TPU|HPU) KV cache size: ([\d,]+)( tokens)",
    "num_gpu_blocks": r"(?<!, )# (?:GPU|cuda|CPU|cpu) blocks: (\d+)()",
    "override_blocks": r"Overriding num_gpu_blocks=\d+ with num_gpu_blocks_override=(\d+)()",
    "max_num_batched_tokens": r"[Cc]hunked prefill is enabled with max_num_batched_tokens=(\d+)()",
    "concurrency_length": r"Maximum concurrency for ([\d,]+)( tokens)",
    "max_concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)(x)",
}
_ITERATION = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms( \(dummy\))?(?:, \S+ KV cache usage: ([\d.]+)%)?"
)


@dataclass(slots=True)
class ServerFacts:
    """What a log says of one server; None where it does not.

    Attributes:
        version: vLLM's release.
        args: the flags given on its command line, by their Python names.
        config: the engine's resolved configuration, as texts.
        weights_gib: the model's weights on one GPU.
        kv_cache_gib: the KV cache on one GPU.
        graphs_taken_gib: what CUDA graphs really took.
        kv_tokens: tokens the KV cache holds.
        num_gpu_blocks: KV blocks, where the log has them.
        max_num_batched_tokens: the token budget of a step.
        concurrency: (tokens per request, how many such requests fit), as the log has them.
        device: `cpu`, `cuda`, …
    """

    version: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    graphs_taken_gib: float | None = None
    kv_tokens: int | None = None
    num_gpu_blocks: int | None = None
    max_num_batched_tokens: int | None = None
    concurrency: tuple[int, float] | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Iteration:
    """One line of `--enable-logging-iteration-details`; a context request is one that has no output yet."""

    number: int
    num_context_requests: int
    num_context_tokens: int
    num_generation_requests: int
    num_generation_tokens: int
    elapsed_ms: float
    kv_usage: float | None


def read_server_log(path: Path) -> ServerFacts:
    """Reads the start of a server from its log.

    Raises:
        UserError: the file cannot be read, or has no line of a vLLM start.
    """
    text = _last_start(_read(path))
    numbers = {name: _last_number(pattern, text) for name, pattern in _NUMBERS.items()}
    args, config = _args(text), _config(text)
    versions = _VERSION.findall(text)
    if not versions and not config and numbers["kv_tokens"] is None:
        raise UserError(
            f"{path}: no line of a vLLM start was found; give the log from its beginning, with the version, the "
            "engine's config and 'KV cache size'"
        )
    length, times = numbers["concurrency_length"], numbers["max_concurrency"]
    explicit, available = numbers["explicit_kv_gib"], numbers["available_kv_gib"]
    blocks = numbers["override_blocks"] or numbers["num_gpu_blocks"]
    return ServerFacts(
        version=versions[-1] if versions else None,
        args=args,
        config=config,
        weights_gib=numbers["weights_gib"],
        kv_cache_gib=available if explicit is None else explicit,
        graphs_taken_gib=numbers["graphs_taken_gib"],
        kv_tokens=_whole(numbers["kv_tokens"]),
        num_gpu_blocks=_whole(blocks),
        max_num_batched_tokens=_whole(numbers["max_num_batched_tokens"]),
        concurrency=None if length is None or times is None else (int(length), times),
        device=config.get("device_config") or ("cpu" if " CPU KV cache size" in text else None),
    )


def read_iterations(path: Path) -> list[Iteration]:
    """Reads the engine's lines on its iterations, in order; those of data-parallel dummy runs are left out.

    Raises:
        UserError: the file cannot be read, or the log has no such lines.
    """
    found = [_iteration(match) for match in _ITERATION.finditer(_read(path)) if match[7] is None]
    if not found:
        raise UserError(f"{path}: no iteration lines; start the server with --enable-logging-iteration-details")
    return found


def _iteration(match: re.Match[str]) -> Iteration:
    number, context_requests, context_tokens, generation_requests, generation_tokens = map(int, match.groups()[:5])
    usage = float(match[8]) / 100 if match[8] else None
    return Iteration(
        number,
        context_requests,
        context_tokens,
        generation_requests,
        generation_tokens,
        float(match[6]),
        usage,
    )


def iterations_csv(iterations: list[Iteration]) -> Iterator[str]:
    """Yields the lines of a table of iterations, a header first."""
    yield "iteration,context_requests,context_tokens,generation_requests,generation_tokens,elapsed_ms,kv_usage_pct"
    for it in iterations:
        usage = "" if it.kv_usage is None else f"{100 * it.kv_usage:g}"
        yield (
            f"{it.number},{it.num_context_requests},{it.num_context_tokens},{it.num_generation_requests},"
            f"{it.num_generation_tokens},{it.elapsed_ms:g},{usage}"
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def _last_start(text: str) -> str:
    """Returns the log from the last start of a server on."""
    # The arguments come once a start, on one line; an engine of its own has no such line.
    starts = [match.start() for match in _ARGS.finditer(text)] or [match.start() for match in _CONFIG.finditer(text)]
    if not starts:
        return text
    line = text.rfind("\n", 0, starts[-1]) + 1
    banner = text.rfind("version ", max(0, line - 2_000), line)  # the version stands just above the arguments
    return text[banner if banner >= 0 else line :]


def _last_number(pattern: str, text: str) -> float | None:
    found = re.findall(pattern, text)
    if not found:
        return None
    number, unit = found[-1]
    value = float(number.replace(",", ""))
    return value * 1e9 / 2**30 if unit == "GB" else value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _args(text: str) -> dict[str, Any]:
    """Returns the flags of the command line; values that are no plain Python are left out."""
    found = _ARGS.findall(text)
    if not found:
        return {}
    try:
        value = ast.literal_eval(found[-1])
        return value if isinstance(value, dict) else {}
    except (ValueError, SyntaxError):
        pairs = re.findall(r"'(\w+)': ('[^']*'|-?[\d.]+|True|False|None)(?=[,}])", found[-1])
        return {name: ast.literal_eval(value) for name, value in pairs}


def _config(text: str) -> dict[str, str]:
    found = _CONFIG.findall(text)
    if not found:
        return {}
    values: dict[str, str] = {}
    for name, value in _CONFIG_VALUE.findall(found[-1]):
        values.setdefault(name, value.strip("'"))
    return values
