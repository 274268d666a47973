"""The memory budget of one server: what is left for the KV cache, and what that holds.

    total ─┬─ x (1 - utilization)                      never touched by vLLM
           └─ x utilization ─┬─ weights                measured while loading
                             ├─ activation peak        measured in the profile run
                             ├─ non-torch              "
                             ├─ CUDA graphs            estimated, since 0.21
                             └─ KV cache               the rest, in blocks

Start with `memory_budget`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sim.core.kv_cache_interface import KVCacheSpec
from sim.hardware import Gpu
from sim.memory import version as since
from sim.memory.defaults import resolve_flags
from sim.memory.flags import ResolvedFlags, ServerSpec
from sim.memory.kv_layout import KvGroup, KvLayout, flat_layout, kv_layout
from sim.memory.profile_run import GIB, activation_bytes, cuda_graph_bytes, non_torch_bytes
from sim.memory.refusals import Measures, startup_refusal
from sim.memory.version import Version, parse_version
from sim.memory.weights import check_parallel, weights_bytes
from sim.models import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """The memory of one GPU of a server (of the stage that has room for the fewest blocks), and the KV pool.

    Attributes:
        total_gib: the GPU's memory.
        utilization: the share vLLM may use.
        weights_gib, activation_gib, non_torch_gib, graphs_gib: what is deducted; `graphs_gib` is 0 where the release
            does not deduct it.
        used_gib: their sum, or what a measured pool leaves for them.
        kv_cache_gib: what remains, or what was given; negative when the model does not fit.
        kv_bytes_per_token: bytes one token takes on this GPU, windows not considered.
        block_size: tokens in the smallest block.
        num_gpu_blocks: blocks of the pool, the null block included.
        kv_tokens: tokens of the pool as the log prints them.
        max_concurrency: requests of max_model_len that fit at once.
        max_concurrency_line: that, as this release prints it.
        max_model_len: the longest request served.
        longest_context: the longest request that the pool could hold, up to the model's own limit.
        refusal: why vLLM would not start, in its words, and the flags to change; None: it starts.
        max_num_seqs_by_state_blocks: sequences that have a state block; None without state layers.
        layout: groups and blocks; the scheduler's own limits come from it.
        flags: every flag with its value.
        estimated: which of the parts are estimates, by field name.
        warnings: what the numbers above do not say.
    """

    total_gib: float
    utilization: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    graphs_gib: float
    used_gib: float
    kv_cache_gib: float
    kv_bytes_per_token: int
    block_size: int
    num_gpu_blocks: int
    kv_tokens: int
    max_concurrency: float
    max_concurrency_line: str
    max_model_len: int
    longest_context: int
    refusal: str | None
    max_num_seqs_by_state_blocks: int | None
    layout: KvLayout
    flags: ResolvedFlags
    estimated: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def kv_groups(self) -> tuple[KvGroup, ...]:
        """The KV cache groups: kind, window, layers, block size."""
        return self.layout.groups

    @property
    def kv_cache_groups(self) -> tuple[KVCacheSpec, ...]:
        """The groups as the scheduler's `CacheConfig` takes them; state groups, of fixed size, are not among them."""
        return tuple(group.spec for group in self.layout.groups if group.kind != "state")

    @property
    def max_num_seqs(self) -> int:
        """Sequences that can run at once: the flag, or the state blocks when there are fewer."""
        if self.max_num_seqs_by_state_blocks is None:
            return self.flags.max_num_seqs
        return min(self.flags.max_num_seqs, self.max_num_seqs_by_state_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """A KV pool of known size.

    Attributes:
        num_blocks: blocks, the null block included.
        tokens: tokens as the log prints them.
        max_concurrency: requests of max_model_len that fit at once.
        line: that, as this release prints it.
        longest: the longest request that fits, at most `at_most` tokens.
    """

    num_blocks: int
    tokens: int
    max_concurrency: float
    line: str
    longest: int


def memory_budget(model: ModelSpec, gpu: Gpu, server: ServerSpec) -> MemoryBudget:
    """Returns the memory budget of a server.

    Args:
        model: what is served.
        gpu: the GPU of every rank; replace its memory_gib where the log shows another total.
        server: version, flags, parallel sizes, measured values.

    Raises:
        UserError: flags or sizes that vLLM rejects before it loads anything. A model that does not fit is no error: the
            budget then carries the refusal.
    """
    check_parallel(model, server)
    release = parse_version(server.version)
    num_gpus = server.tensor_parallel_size * server.pipeline_parallel_size
    flags = resolve_flags(
        server.flags, server.version, gpu, model, num_gpus=num_gpus, num_stages=server.pipeline_parallel_size
    )
    stage = _tightest_stage(model, gpu, server, flags)
    if flags.auto_fit_max_model_len:
        fitting = stage.layout.longest(_usable(stage.num_blocks, release), flags.max_model_len)
        flags = replace(flags, max_model_len=max(fitting, 1))
    pool = kv_pool(stage.layout, stage.num_blocks, flags.max_model_len, release, at_most=model.max_position_embeddings)
    states = (server.memory.num_state_blocks or stage.num_blocks) if model.num_state_layers else None
    return MemoryBudget(
        total_gib=gpu.memory_gib,
        utilization=flags.gpu_memory_utilization,
        weights_gib=stage.weights_gib,
        activation_gib=stage.activation_gib,
        non_torch_gib=stage.non_torch_gib,
        graphs_gib=stage.graphs_gib,
        used_gib=stage.used_gib,
        kv_cache_gib=stage.kv_cache_gib,
        kv_bytes_per_token=stage.layout.bytes_per_token,
        block_size=stage.layout.block_size,
        num_gpu_blocks=stage.num_blocks,
        kv_tokens=pool.tokens,
        max_concurrency=pool.max_concurrency,
        max_concurrency_line=pool.line,
        max_model_len=flags.max_model_len,
        longest_context=pool.longest,
        refusal=startup_refusal(_measures(stage, gpu, flags, server, states), stage.layout, flags, release),
        max_num_seqs_by_state_blocks=states,
        layout=stage.layout,
        flags=flags,
        estimated=_estimated(server, flags),
        warnings=_warnings(model, gpu, server, stage.layout),
    )


def kv_pool(
    layout: KvLayout, num_blocks: int, max_model_len: int, release: Version, *, at_most: int | None = None
) -> KvPool:
    """Returns what a number of blocks holds.

    Args:
        layout: groups and blocks.
        num_blocks: blocks of the pool, the null block included.
        max_model_len: the length that the concurrency is for.
        release: decides how tokens and concurrency are counted and printed.
        at_most: the model's own limit for the longest context; None: the pool's.
    """
    concurrency = layout.concurrency(num_blocks, max_model_len)
    if release >= since.TOKENS_FROM_CONCURRENCY:
        tokens = int(concurrency * max_model_len)
    elif layout.counts_blocks:
        tokens = num_blocks // len(layout.groups) * layout.block_size
    else:
        tokens = num_blocks * layout.block_size
    if at_most is None:
        at_most = num_blocks * layout.block_size
    return KvPool(
        num_blocks=num_blocks,
        tokens=tokens,
        max_concurrency=concurrency,
        line=_concurrency_line(tokens, max_model_len, concurrency, release),
        longest=layout.longest(_usable(num_blocks, release), at_most),
    )


def blocks_in(kv_cache_gib: float, layout: KvLayout) -> int:
    """Returns the whole blocks in that many GiB."""
    return max(0, math.floor(kv_cache_gib * GIB / layout.bytes_per_block))


def request_never_fits(num_tokens: int, budget: MemoryBudget) -> bool:
    """Returns whether a request of that many tokens can never be admitted, not even by an empty server.

    vLLM keeps such a request waiting for ever, and in FCFS order everything behind it: a prompt below max_model_len but
    beyond the pool. One block of the pool is the null block.
    """
    return budget.layout.blocks_to_admit(num_tokens) > budget.num_gpu_blocks - 1


def lowest_utilization(budget: MemoryBudget) -> float:
    """Returns the gpu_memory_utilization at which the pool holds one request of max_model_len.

    Above 1 it fits at no setting of the flag.
    """
    needed = budget.layout.blocks_per_request(budget.max_model_len) * budget.layout.bytes_per_block
    return (budget.used_gib + needed / GIB) / budget.total_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """The parts of the budget on one GPU of a pipeline stage, and the blocks that fit there."""

    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    graphs_gib: float
    used_gib: float
    kv_cache_gib: float
    layout: KvLayout
    num_blocks: int


def _measures(stage: _Stage, gpu: Gpu, flags: ResolvedFlags, server: ServerSpec, states: int | None) -> Measures:
    # A pool that was measured proves that the weights were loaded, whatever their estimate says.
    loaded = server.memory.kv_cache_gib is not None and server.memory.weights_gib is None
    return Measures(
        total_gib=gpu.memory_gib,
        requested_gib=gpu.memory_gib * flags.gpu_memory_utilization,
        weights_gib=0.0 if loaded else stage.weights_gib,
        used_gib=stage.used_gib,
        pool_gib=stage.kv_cache_gib,
        num_blocks=stage.num_blocks,
        num_state_blocks=states,
        free_gib=server.memory.free_gib,
    )


def _tightest_stage(model: ModelSpec, gpu: Gpu, server: ServerSpec, flags: ResolvedFlags) -> _Stage:
    """Returns the pipeline stage with room for the fewest blocks: all stages get as many."""
    release = parse_version(server.version)
    measured = server.memory
    tp, pp = server.tensor_parallel_size, server.pipeline_parallel_size
    layout = kv_layout(model, flags, release, tp, pp)
    if measured.kv_bytes_per_token is not None:
        window = model.sliding_window if not model.num_full_layers else None
        layout = flat_layout(measured.kv_bytes_per_token, flags.block_size, release, window, num_stages=pp)
    non_torch = _given(measured.non_torch_gib, non_torch_bytes(gpu, release, tp))
    graphs = 0.0
    if _deducts_graphs(server, flags):
        graphs = _given(measured.graphs_gib, cuda_graph_bytes(model, flags, gpu))
    stages: list[_Stage] = []
    for index, weight in enumerate(weights_bytes(model, flags, server)):
        weights = _given(measured.weights_gib, weight)
        peak = activation_bytes(model, flags, release, tp, samples=index == pp - 1)
        activation = _given(measured.activation_gib, peak)
        requested = gpu.memory_gib * flags.gpu_memory_utilization
        left = _given(measured.kv_cache_gib, (requested - weights - activation - non_torch - graphs) * GIB)
        local = layout.at_stage(index)
        kv_cache, num_blocks = _pool_size(left, local, flags)
        stages.append(
            _Stage(
                weights_gib=weights,
                activation_gib=activation,
                non_torch_gib=non_torch,
                graphs_gib=graphs,
                used_gib=requested - left,
                kv_cache_gib=kv_cache,
                layout=local,
                num_blocks=num_blocks,
            )
        )
    return min(stages, key=lambda stage: (stage.num_blocks, stage.kv_cache_gib))


def _pool_size(left_gib: float, layout: KvLayout, flags: ResolvedFlags) -> tuple[float, int]:
    """Returns GiB and blocks of the pool: what is left, unless a flag sets the pool outright."""
    if flags.num_gpu_blocks_override is not None:
        return flags.num_gpu_blocks_override * layout.bytes_per_block / GIB, flags.num_gpu_blocks_override
    if flags.kv_cache_memory_bytes is not None:
        left_gib = flags.kv_cache_memory_bytes / GIB
    return left_gib, blocks_in(left_gib, layout)


def _deducts_graphs(server: ServerSpec, flags: ResolvedFlags) -> bool:
    if flags.enforce_eager:
        return False
    if server.estimate_cudagraphs is not None:
        return server.estimate_cudagraphs
    return parse_version(server.version) >= since.GRAPH_ESTIMATE


def _estimated(server: ServerSpec, flags: ResolvedFlags) -> tuple[str, ...]:
    measured = server.memory
    names = [name for name in ("weights_gib", "activation_gib", "non_torch_gib") if getattr(measured, name) is None]
    if _deducts_graphs(server, flags) and measured.graphs_gib is None:
        names.append("graphs_gib")
    outright = (measured.kv_cache_gib, flags.kv_cache_memory_bytes, flags.num_gpu_blocks_override)
    if names and all(value is None for value in outright):
        names.append("kv_cache_gib")
    return tuple(names)


def _usable(num_blocks: int, release: Version) -> int:
    """Returns the blocks that the start-up check counts on: since 0.26 not the null block."""
    return max(0, num_blocks - (1 if release >= since.NULL_BLOCK_CHECK else 0))


def _concurrency_line(tokens: int, max_model_len: int, concurrency: float, release: Version) -> str:
    if release < since.V1_ENGINE:
        return f"Maximum concurrency for {max_model_len} tokens per request: {concurrency:.2f}x"
    line = f"Maximum concurrency for {max_model_len:,} tokens per request: {concurrency:.2f}x"
    if release >= since.ONE_LINE_LOG:
        return f"GPU KV cache size: {tokens:,} tokens, {line}"
    return line


def _warnings(model: ModelSpec, gpu: Gpu, server: ServerSpec, layout: KvLayout) -> tuple[str, ...]:
    warnings = []
    release = parse_version(server.version)
    if len({group.kind for group in layout.groups}) > 1:
        warnings.append("layers of several kinds share the pool: its tokens hold for requests of max_model_len alone")
    if model.num_state_layers:
        warnings.append("every running sequence holds a state block: max_num_seqs is bounded by the blocks of the pool")
    if gpu.is_cpu:
        warnings.append("on a CPU the memory is that of the host: set it, or kv_cache_memory_bytes")
    if release[:2] > since.LATEST[:2]:
        warnings.append(f"vLLM {server.version} is newer than the rules that are known here: 0.32's are taken for its")
    if release < since.V1_ENGINE:
        warnings.append(f"vLLM {server.version} had the engine V0: memory follows its rules, scheduling is that of V1")
    if since.V1_ENGINE <= release < since.PYTORCH_SAMPLER and server.memory.activation_gib is None:
        warnings.append("0.8 to 0.10 sample with FlashInfer where it is installed: the activation peak lies between")
    return tuple(warnings)


def _given(measured_gib: float | None, estimated_bytes: float) -> float:
    return estimated_bytes / GIB if measured_gib is None else measured_gib
