"""Snapshots of a real server's `/metrics`: parsed, and the difference between the first and the last.

vLLM's counters and histograms only grow, so two snapshots say what happened between them. Percentiles come from the
buckets, interpolated as PromQL's `histogram_quantile` does: they are as sharp as the buckets are fine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.errors import UserError

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(\S+))?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Buckets = tuple[tuple[float, float], ...]
"""(upper bound, cumulative count), in order; the last bound is infinite."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one snapshot, or the difference of two, says. Engines and models are summed.

    Attributes:
        values: gauges and counters by name, counters without `_total`.
        buckets: histograms by name.
        sums: their sums.
    """

    values: Mapping[str, float]
    buckets: Mapping[str, Buckets]
    sums: Mapping[str, float]

    def count(self, name: str) -> float:
        """Returns how many values a histogram has."""
        return self.buckets[name][-1][1] if self.buckets.get(name) else 0.0

    def mean(self, name: str) -> float | None:
        """Returns the mean of a histogram; None without values."""
        count = self.count(name)
        return self.sums[name] / count if count else None

    def quantile(self, name: str, q: float) -> float | None:
        """Returns a quantile (0 to 1) of a histogram as `histogram_quantile` does; None without values."""
        count = self.count(name)
        if not count:
            return None
        lower, below = 0.0, 0.0
        for bound, cumulative in self.buckets[name]:
            if cumulative >= q * count:
                if math.isinf(bound):
                    return lower
                share = (q * count - below) / (cumulative - below) if cumulative > below else 1.0
                return lower + share * (bound - lower)
            lower, below = bound, cumulative
        return lower


def read_snapshots(paths: Sequence[Path]) -> Metrics:
    """Reads snapshots in order of time and returns what happened from the first to the last; one alone counts in full.

    Raises:
        UserError: a file is missing, holds no vLLM metrics, or the server was restarted in between.
    """
    parsed = [(path, parse_metrics(_read(path), str(path))) for path in paths]
    if len(parsed) == 1:
        return parsed[0][1]
    (_, first), (last_path, last) = parsed[0], parsed[-1]
    values = {name: value - first.values.get(name, 0.0) for name, value in last.values.items()}
    if any(value < 0 and name.startswith("vllm:") and name in _COUNTERS for name, value in values.items()):
        raise UserError(
            f"{last_path}: a counter is lower than in {paths[0]}: in order of time, and of one server's life?"
        )
    buckets = {name: _less(found, first.buckets.get(name, ())) for name, found in last.buckets.items()}
    sums = {name: value - first.sums.get(name, 0.0) for name, value in last.sums.items()}
    return Metrics(values, buckets, sums)


def parse_metrics(text: str, file: str = "metrics") -> Metrics:
    """Parses Prometheus' text format; what is not vLLM's is left out.

    Raises:
        UserError: a line is not a sample, or there is no vLLM metric.
    """
    values: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    sums: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.match(line.strip())
        if match is None or not _is_number(match[3]):
            raise UserError(f"{file}:{number}:1: not a line of Prometheus' text format: {line[:60]!r}")
        name, labels, value = match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])
        if not name.startswith("vllm:"):
            continue
        if name.endswith("_bucket") and "le" in labels:
            own = buckets.setdefault(name.removesuffix("_bucket"), {})
            own[float(labels["le"])] = own.get(float(labels["le"]), 0.0) + value
        elif name.endswith("_sum"):
            sums[name.removesuffix("_sum")] = sums.get(name.removesuffix("_sum"), 0.0) + value
        elif not name.endswith(("_count", "_created")):
            short = name.removesuffix("_total")
            values[short] = values.get(short, 0.0) + value
    if not values and not buckets:
        raise UserError(f"{file}: no vllm: metric in it: a snapshot of http://SERVER/metrics is expected")
    return Metrics(values, {name: tuple(sorted(found.items())) for name, found in buckets.items()}, sums)


_COUNTERS = {
    "vllm:num_preemptions", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:prompt_tokens",
    "vllm:generation_tokens", "vllm:request_success",
}  # fmt: skip


def _less(last: Buckets, first: Buckets) -> Buckets:
    before = dict(first)
    return tuple((bound, value - before.get(bound, 0.0)) for bound, value in last)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not text: a snapshot of http://SERVER/metrics is expected") from None
