"""How the KV cache is cut into groups and blocks, and how many blocks a request takes (vLLM: `kv_cache_utils.py`).

Layers of one kind are cut into groups of equal size; every group has its own block table and all draw from one pool. A
block of the pool is as large as one group's page times its layers, whichever group takes it:

    gpt-oss-20b, 12 full and 12 sliding layers        gemma-3-4b, 5 full and 29 sliding layers
    group 0  full     12 layers                       group 0    full     5 layers
    group 1  sliding  12 layers                       group 1-6  sliding  5 layers (the last has 4, and one is padding)

Where the kinds differ in bytes per token, the block of the smaller one holds more tokens, so that the pages are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sim.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from sim.memory import version as since
from sim.memory.flags import ResolvedFlags
from sim.memory.version import Version
from sim.models import ModelSpec
from sim.models.spec import LayerKind


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table.

    Attributes:
        kind: `full`, `sliding` or `state` (one state a sequence, whatever its length).
        window: of a sliding group, in tokens.
        num_layers: layers of the whole model in it, padding not counted.
        block_size: tokens in one of its blocks.
        max_blocks: blocks one request holds at most, at any length; None: no such bound.
    """

    kind: LayerKind
    window: int | None
    num_layers: int
    block_size: int
    max_blocks: int | None

    @property
    def spec(self) -> KVCacheSpec:
        """The group as the scheduler knows it."""
        return SlidingWindowSpec(self.window) if self.kind == "sliding" and self.window else FullAttentionSpec()


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The groups of a model on one server.

    Attributes:
        groups: one entry a group, kinds in order of their first layer.
        bytes_per_block: of the pool on one GPU. Pipeline stages can differ: this is the stage with most layers, unless
            the layout comes from `at_stage`.
        bytes_per_token: bytes one token takes in all layers of that GPU, windows not considered.
        stages: both sizes for every pipeline stage.
        admission_by_window: whether admission counts a sliding group by its window, or (0.19.1 and 0.20) by the whole
            prompt.
        counts_blocks: whether concurrency is blocks per request (since 0.9.1) or tokens.
    """

    groups: tuple[KvGroup, ...]
    bytes_per_block: int
    bytes_per_token: int
    stages: tuple[tuple[int, int], ...]
    admission_by_window: bool
    counts_blocks: bool

    def at_stage(self, stage: int) -> KvLayout:
        """Returns the layout with the sizes of that pipeline stage."""
        per_block, per_token = self.stages[stage]
        return replace(self, bytes_per_block=per_block, bytes_per_token=per_token)

    @property
    def block_size(self) -> int:
        """The smallest block size of any group that grows with the request."""
        return min((g.block_size for g in self.groups if g.kind != "state"), default=self.groups[0].block_size)

    def blocks_per_request(self, num_tokens: int) -> int:
        """Returns the blocks that start-up reckons one request of that length to hold (`max_memory_usage_bytes`).

        A sliding group holds its window and what is in flight, and one block more, as a window need not begin at a
        block's first token: vLLM adds that block at any length.
        """
        return sum(_group_blocks(group, num_tokens) for group in self.groups)

    def blocks_to_admit(self, num_tokens: int) -> int:
        """Returns the free blocks that the scheduler asks for before it admits a request of that length."""
        if self.admission_by_window:
            return sum(min(_ceil(num_tokens, g.block_size), g.max_blocks or num_tokens) for g in self.groups)
        return sum(g.max_blocks or 1 if g.kind == "state" else _ceil(num_tokens, g.block_size) for g in self.groups)

    def concurrency(self, num_blocks: int, max_model_len: int) -> float:
        """Returns how many requests of max_model_len fit at once, as the log says."""
        if not self.counts_blocks:
            return num_blocks * self.block_size / max_model_len
        return num_blocks / self.blocks_per_request(max_model_len)

    def longest(self, num_blocks: int, at_most: int) -> int:
        """Returns the longest request, up to `at_most` tokens, that takes at most `num_blocks`; 0: not even a token."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_per_request(middle) <= num_blocks:
                low = middle
            else:
                high = middle - 1
        return low


def kv_layout(
    model: ModelSpec, flags: ResolvedFlags, release: Version, tensor_parallel_size: int, pipeline_parallel_size: int
) -> KvLayout:
    """Returns the groups and blocks of a model's KV cache under these flags.

    Args:
        model: gives layers and heads.
        flags: block size, KV type, and the token budget that sliding groups reserve for.
        release: the vLLM release; before 0.9.1 a model's mixed layers all count as full.
        tensor_parallel_size: splits key-value heads, which are replicated when there are fewer of them.
        pipeline_parallel_size: splits layers.
    """
    kinds = _effective_kinds(model, release)
    per_token = {kind: token_bytes(model, kind, flags, tensor_parallel_size) for kind in set(kinds)}
    state = model.state_space.state_bytes(tensor_parallel_size, flags.dtype_bytes) if model.state_space else 0
    sizes, page = _block_sizes(per_token, state, flags.block_size)
    # vLLM deals the layers of a kind out to its groups in turn, so that every pipeline stage has some of each.
    groups: list[KvGroup] = []
    members: list[tuple[int, ...]] = []
    for kind, layers in _cut(kinds):
        window = model.sliding_window if kind == "sliding" else None
        cap = _max_blocks(kind, window, sizes[kind], flags=flags, release=release, stages=pipeline_parallel_size)
        groups.append(KvGroup(kind, window, len(layers), sizes[kind], cap))
        members.append(layers)
    stages = tuple(
        (
            page * max(sum(layer in stage for layer in layers) for layers in members),
            sum(per_token[kinds[layer]] for layer in stage),
        )
        for stage in pipeline_stages(model.num_layers, pipeline_parallel_size)
    )
    per_block, per_stage_token = max(stages)
    return KvLayout(
        groups=tuple(groups),
        bytes_per_block=per_block,
        bytes_per_token=per_stage_token,
        stages=stages,
        admission_by_window=release >= since.SLIDING_ADMISSION_CAP or not flags.scheduler_reserve_full_isl,
        counts_blocks=release >= since.HYBRID_GROUPS,
    )


def flat_layout(
    bytes_per_token: float, block_size: int, release: Version, window: int | None = None, *, num_stages: int = 1
) -> KvLayout:
    """Returns the layout of a model of which only the KV bytes per token and GPU are known: one group.

    Args:
        bytes_per_token: bytes one token takes on one GPU.
        block_size: tokens in a block.
        release: the vLLM release.
        window: the sliding window of all layers, if they have one; at most max_model_len is then held anyway.
        num_stages: pipeline stages, taken to be alike.
    """
    group = KvGroup("sliding" if window else "full", window, 1, block_size, None)
    return KvLayout(
        groups=(group,),
        bytes_per_block=round(bytes_per_token * block_size),
        bytes_per_token=round(bytes_per_token),
        stages=((round(bytes_per_token * block_size), round(bytes_per_token)),) * num_stages,
        admission_by_window=True,
        counts_blocks=release >= since.HYBRID_GROUPS,
    )


def token_bytes(model: ModelSpec, kind: LayerKind, flags: ResolvedFlags, tensor_parallel_size: int) -> int:
    """Returns the bytes one token takes in one layer of this kind on one GPU.

    Keys and values of each key-value head; latent attention keeps one vector for all heads, on every GPU; a state layer
    keeps nothing per token.
    """
    if kind == "state":
        return 0
    if model.is_mla:
        return (model.kv_lora_rank + model.qk_rope_head_dim) * flags.kv_dtype_bytes
    heads = max(1, _ceil(model.kv_heads(kind), tensor_parallel_size))
    return 2 * heads * model.head_size(kind) * flags.kv_dtype_bytes


def pipeline_stages(num_layers: int, pipeline_parallel_size: int) -> tuple[range, ...]:
    """Returns the layers of each pipeline stage (vLLM: `get_pp_indices`).

    Left-over layers go to the later stages, the last excepted, as it also has the output head.
    """
    sizes = [num_layers // pipeline_parallel_size] * pipeline_parallel_size
    for extra in range(num_layers % pipeline_parallel_size):
        sizes[-extra - 2] += 1
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return tuple(range(starts[i], starts[i + 1]) for i in range(len(sizes)))


def _effective_kinds(model: ModelSpec, release: Version) -> tuple[LayerKind, ...]:
    mixed = len(set(model.kinds)) > 1
    if mixed and release < since.HYBRID_GROUPS and "state" not in model.kinds:
        every_layer: tuple[LayerKind, ...] = ("full",)
        return every_layer * model.num_layers
    return model.kinds


def _cut(kinds: tuple[LayerKind, ...]) -> list[tuple[LayerKind, tuple[int, ...]]]:
    """Returns the groups: the kind and the layers of each (`_get_kv_cache_groups_uniform_page_size`).

    The size is that of the rarest kind, or of the commonest when that is less than 1.5 times as common: few padding
    layers then waste less than many groups.
    """
    by_kind: dict[LayerKind, list[int]] = {}
    for layer, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(layer)
    fewest, most = min(map(len, by_kind.values())), max(map(len, by_kind.values()))
    size = most if most < 1.5 * fewest else fewest
    cut: list[tuple[LayerKind, tuple[int, ...]]] = []
    for kind, layers in by_kind.items():
        num_groups = _ceil(len(layers), size)
        cut.extend((kind, tuple(layers[i::num_groups])) for i in range(num_groups))
    return cut


def _block_sizes(
    per_token: dict[LayerKind, int], state_bytes: int, block_size: int
) -> tuple[dict[LayerKind, int], int]:
    """Returns the tokens in a block of each kind, and the bytes of a page, which is the same for all.

    With state layers the attention block grows until its page holds a state. Of two kinds of attention the one with
    fewer bytes per token gets a larger block when the ratio is whole, else a padded page.
    """
    largest = max(per_token.values())
    if state_bytes and largest:
        block_size = block_size * _ceil(state_bytes, block_size * largest)
    page = max(largest * block_size, state_bytes)
    sizes: dict[LayerKind, int] = {}
    for kind, size in per_token.items():
        whole = size and page % (size * block_size) == 0
        sizes[kind] = page // size if whole else block_size
    return sizes, page


def _max_blocks(
    kind: LayerKind, window: int | None, block_size: int, *, flags: ResolvedFlags, release: Version, stages: int
) -> int | None:
    """Returns the blocks that one request holds at most in a group of this kind, at any length."""
    if kind == "state":
        # With prefix caching the state at the last block boundary is kept beside the running one ("align" mode).
        return 2 if flags.enable_prefix_caching and release >= since.STATE_BLOCKS_CHECK else 1
    if window is None:
        return None
    batches = 1
    if release >= since.IN_FLIGHT_TOKENS:
        batches = stages + 1 if flags.async_scheduling else stages
    return _ceil(window - 1 + batches * flags.max_num_batched_tokens, block_size) + 1


def _group_blocks(group: KvGroup, num_tokens: int) -> int:
    if group.kind == "state":
        return group.max_blocks or 1
    blocks = _ceil(num_tokens, group.block_size)
    if group.kind == "sliding":
        blocks = min(blocks + 1, group.max_blocks or blocks + 1)
    return blocks


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
