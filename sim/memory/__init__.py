"""What fits: weights, activations, CUDA graphs and the KV pool of a vLLM server, by release.

Start reading at `memory_budget`.
"""

from sim.memory.budget import (
    KvPool,
    MemoryBudget,
    blocks_in,
    kv_pool,
    lowest_utilization,
    memory_budget,
    request_never_fits,
)
from sim.memory.defaults import resolve_flags
from sim.memory.flags import EngineFlags, MemoryOverrides, ResolvedFlags, ServerSpec
from sim.memory.flat import flat_pool
from sim.memory.kv_layout import KvGroup, KvLayout, flat_layout, kv_layout
from sim.memory.version import parse_version

__all__ = [
    "EngineFlags",
    "KvGroup",
    "KvLayout",
    "KvPool",
    "MemoryBudget",
    "MemoryOverrides",
    "ResolvedFlags",
    "ServerSpec",
    "blocks_in",
    "flat_layout",
    "flat_pool",
    "kv_layout",
    "kv_pool",
    "lowest_utilization",
    "memory_budget",
    "parse_version",
    "request_never_fits",
    "resolve_flags",
]
