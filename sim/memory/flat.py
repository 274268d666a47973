"""Sizes a pool of which only numbers are known: KV bytes per token, and either its GiB or the parts of the budget."""

from __future__ import annotations

from sim.errors import UserError
from sim.memory import version as since
from sim.memory.budget import KvPool, blocks_in, kv_pool
from sim.memory.flags import ServerSpec
from sim.memory.kv_layout import flat_layout
from sim.memory.version import parse_version


def flat_pool(
    server: ServerSpec, total_gib: float | None = None, *, sliding_window: int | None = None
) -> tuple[float, KvPool]:
    """Returns the GiB of the KV cache and what it holds, for a model that is in no table.

    Args:
        server: its memory must give kv_bytes_per_token, and kv_cache_gib or all of weights_gib, activation_gib and
            non_torch_gib (and graphs_gib where the release deducts it; else it counts as 0); its flags
            max_model_len, and the utilization and block size where they are not the defaults.
        total_gib: the GPU's memory; needed when the pool is to be computed from its parts.
        sliding_window: the window, where every layer has one.

    Raises:
        UserError: something needed is missing.
    """
    memory, flags = server.memory, server.flags
    release = parse_version(server.version)
    if memory.kv_bytes_per_token is None or memory.kv_bytes_per_token <= 0:
        raise UserError("kv_bytes_per_token: needed when there is no model; 2 x layers x KV heads x head size x bytes")
    if flags.max_model_len is None or flags.max_model_len < 1:
        raise UserError("max_model_len: needed when there is no model to take it from")
    layout = flat_layout(memory.kv_bytes_per_token, flags.block_size or 16, release, sliding_window)
    kv_cache_gib = memory.kv_cache_gib
    if flags.kv_cache_memory_bytes is not None:
        kv_cache_gib = flags.kv_cache_memory_bytes / 2**30
    if kv_cache_gib is None:
        kv_cache_gib = _from_parts(server, total_gib)
    num_blocks = flags.num_gpu_blocks_override or blocks_in(kv_cache_gib, layout)
    return kv_cache_gib, kv_pool(layout, num_blocks, flags.max_model_len, release)


def _from_parts(server: ServerSpec, total_gib: float | None) -> float:
    memory = server.memory
    utilization = server.flags.gpu_memory_utilization
    if utilization is None:
        utilization = 0.92 if parse_version(server.version) >= since.UTILIZATION_092 else 0.9
    parts = {
        "the GPU's memory": total_gib,
        "weights_gib": memory.weights_gib,
        "activation_gib": memory.activation_gib,
        "non_torch_gib": memory.non_torch_gib,
    }
    missing = [name for name, value in parts.items() if value is None]
    if missing:
        raise UserError(
            f"kv_cache_gib: without it, and without a model to estimate from, {', '.join(missing)} must be given"
        )
    total, *used = (value for value in parts.values() if value is not None)
    return total * utilization - sum(used) - (memory.graphs_gib or 0.0)
