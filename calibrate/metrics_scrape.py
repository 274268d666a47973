"""What a vLLM server's `/metrics` page counts: preemptions, prefix hits, tokens, and how its KV cache is cut."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_COUNTERS = {
    "num_preemptions": "vllm:num_preemptions_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "output_tokens": "vllm:generation_tokens_total",
    "num_finished": "vllm:request_success_total",
}
_OLDER = {
    "vllm:prefix_cache_queries_total": "vllm:gpu_prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total": "vllm:gpu_prefix_cache_hits_total",
}


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """One reading; counters are summed over engines.

    Attributes:
        counters: by their short names (num_preemptions, prefix_queries, prefix_hits, prompt_tokens, output_tokens,
            num_finished); only those the server has.
        num_running: requests running now, None where unknown.
        num_waiting: requests waiting now.
        num_gpu_blocks: KV blocks of one engine.
        block_size: tokens a block.
        enable_prefix_caching: whether prefixes are reused.
        num_engines: engines that report.
    """

    counters: dict[str, float]
    num_running: int | None = None
    num_waiting: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    num_engines: int = 1

    @property
    def is_idle(self) -> bool | None:
        """Whether nothing runs or waits; None where unknown."""
        if self.num_running is None or self.num_waiting is None:
            return None
        return self.num_running + self.num_waiting == 0

    def since(self, earlier: ServerMetrics) -> dict[str, float]:
        """Returns how much each counter has grown since an earlier reading."""
        return {
            name: value - earlier.counters[name] for name, value in self.counters.items() if name in earlier.counters
        }


def parse_metrics(text: str) -> ServerMetrics:
    """Reads a page in the Prometheus text format; lines that are none are passed over."""
    sums: dict[str, float] = {}
    engines: set[str] = set()
    cache: dict[str, str] = {}
    for name, labels, value in _SAMPLE.findall(text):
        found = dict(_LABEL.findall(labels))
        try:
            number = float(value)
        except ValueError:
            continue
        sums[name] = sums.get(name, 0.0) + number
        if name == "vllm:num_requests_running":
            engines.add(found.get("engine", "0"))
        if name == "vllm:cache_config_info":
            cache = found
    counters = {}
    for short, name in _COUNTERS.items():
        known = name if name in sums else _OLDER.get(name, name)
        if known in sums:
            counters[short] = sums[known]
    return ServerMetrics(
        counters=counters,
        num_running=_count(sums.get("vllm:num_requests_running")),
        num_waiting=_count(sums.get("vllm:num_requests_waiting")),
        num_gpu_blocks=_whole(cache.get("num_gpu_blocks")),
        block_size=_whole(cache.get("block_size")),
        enable_prefix_caching={"True": True, "False": False}.get(cache.get("enable_prefix_caching", "")),
        num_engines=max(1, len(engines)),
    )


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
