"""Why vLLM would not start: its own words, and the flags to change."""

from __future__ import annotations

from dataclasses import dataclass

from sim.memory import version as since
from sim.memory.flags import ResolvedFlags
from sim.memory.kv_layout import KvLayout
from sim.memory.version import Version

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The sizes a refusal is decided by: of one GPU, in GiB, and the blocks of its pool.

    Attributes:
        total_gib: the GPU's memory. requested_gib: what vLLM may use of it.
        weights_gib: the weights. used_gib: all but the pool.
        pool_gib: the pool. num_blocks: its blocks, the null block included.
        num_state_blocks: state blocks of a hybrid model; None: no state layers.
        free_gib: free memory before the start; None: not known.
    """

    total_gib: float
    requested_gib: float
    weights_gib: float
    used_gib: float
    pool_gib: float
    num_blocks: int
    num_state_blocks: int | None
    free_gib: float | None


def startup_refusal(memory: Measures, layout: KvLayout, flags: ResolvedFlags, release: Version) -> str | None:
    """Returns the error that ends the start, in the order in which vLLM meets them; None: it starts.

    Args:
        memory: the sizes.
        layout: blocks of one request.
        flags: max_model_len and max_num_seqs.
        release: decides the words and whether the null block counts.
    """
    states = memory.num_state_blocks
    null_blocks = 1 if release >= since.NULL_BLOCK_CHECK else 0
    usable = memory.num_blocks - null_blocks
    if memory.free_gib is not None and memory.free_gib < memory.requested_gib:
        return _too_little_free(memory, flags, memory.free_gib)
    if memory.weights_gib >= memory.total_gib:
        return (
            f"CUDA out of memory while the weights are loaded: they take {_gib(memory.weights_gib)} GiB of a GPU of "
            f"{_gib(memory.total_gib)} GiB. Here: more GPUs (--tensor-parallel-size) or a quantized checkpoint."
        )
    if memory.pool_gib <= null_blocks * layout.bytes_per_block / GIB:
        return _no_memory(memory, layout, flags, null_blocks)
    if layout.blocks_per_request(flags.max_model_len) > usable:
        return _too_long(memory, layout, usable, flags, release)
    if states is not None and flags.max_num_seqs > states and release >= since.STATE_BLOCKS_CHECK:
        return (
            f"max_num_seqs ({flags.max_num_seqs}) exceeds available Mamba cache blocks ({states}). Each decode "
            "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs "
            f"to at most {states} or increase gpu_memory_utilization."
        )
    return None


def _too_little_free(memory: Measures, flags: ResolvedFlags, free_gib: float) -> str:
    return (
        f"Free memory on device cuda:0 ({_gib(free_gib)}/{_gib(memory.total_gib)} GiB) on startup is less than desired "
        f"GPU memory utilization ({flags.gpu_memory_utilization}, {_gib(memory.requested_gib)} GiB). Decrease GPU "
        "memory utilization or reduce GPU memory used by other processes. Here: --gpu-memory-utilization "
        f"{_down(free_gib / memory.total_gib)} or less."
    )


def _no_memory(memory: Measures, layout: KvLayout, flags: ResolvedFlags, null_blocks: int) -> str:
    cure = _larger_pool(memory, layout, flags, null_blocks)
    would = (
        f"{cure} would hold one request of {flags.max_model_len} tokens"
        if cure
        else "no utilization suffices: lower --max-num-batched-tokens, --max-num-seqs or --max-model-len, add GPUs or "
        "quantize"
    )
    return (
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
        f"engine. Here: {would}."
    )


def _too_long(memory: Measures, layout: KvLayout, usable: int, flags: ResolvedFlags, release: Version) -> str:
    longest = layout.longest(usable, flags.max_model_len)
    if release < since.V1_ENGINE:
        return (
            f"The model's max seq len ({flags.max_model_len}) is larger than the maximum number of tokens that can be "
            f"stored in KV cache ({usable * layout.block_size}). Try increasing `gpu_memory_utilization` or decreasing "
            f"`max_model_len` when initializing the engine. Here: --max-model-len {longest} or less."
        )
    null_blocks = memory.num_blocks - usable
    available = memory.pool_gib - null_blocks * layout.bytes_per_block / GIB
    estimate = f"Based on the available memory, the estimated maximum model length is {longest}. " if longest else ""
    shorter = f"--max-model-len {longest} or less" if longest else ""
    larger = _larger_pool(memory, layout, flags, null_blocks)
    cures = " or ".join(each for each in (shorter, f"{larger} or more" if larger else "") if each)
    return (
        f"To serve at least one request with the model's max seq len ({flags.max_model_len}), "
        f"({_gib(_request_gib(layout, flags))} GiB KV cache is needed, which is larger than the available KV cache "
        f"memory ({_gib(available)} GiB). {estimate}Try increasing `gpu_memory_utilization` or decreasing "
        f"`max_model_len` when initializing the engine. Here: {cures or 'a GPU with more memory'}."
    )


def _larger_pool(memory: Measures, layout: KvLayout, flags: ResolvedFlags, null_blocks: int) -> str:
    """Returns the flag that decides the pool with the least value that holds one request; empty: none is enough."""
    num_blocks = layout.blocks_per_request(flags.max_model_len) + null_blocks
    if flags.num_gpu_blocks_override is not None:
        return f"--num-gpu-blocks-override {num_blocks}"
    if flags.kv_cache_memory_bytes is not None:
        return f"--kv-cache-memory-bytes {num_blocks * layout.bytes_per_block}"
    share = (memory.used_gib + num_blocks * layout.bytes_per_block / GIB) / memory.total_gib
    return f"--gpu-memory-utilization {_up(share)}" if share <= 1 else ""


def _request_gib(layout: KvLayout, flags: ResolvedFlags) -> float:
    return layout.blocks_per_request(flags.max_model_len) * layout.bytes_per_block / GIB


def _gib(size: float) -> str:
    """Returns a size as vLLM prints it: 4.5, not 4.50 (`format_gib`)."""
    return f"{round(size, 2)}"


def _up(share: float) -> str:
    return f"{-(-share * 100 // 1) / 100:.2f}"


def _down(share: float) -> str:
    return f"{share * 100 // 1 / 100:.2f}"
