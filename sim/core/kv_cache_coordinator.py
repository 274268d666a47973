"""Several KV cache groups as one: what a request needs, holds and hits over all of them."""

from __future__ import annotations

from collections.abc import Sequence

from sim.core.block_pool import BlockPool
from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from sim.core.request import Request
from sim.core.single_type_kv_cache_manager import (
    FullAttentionManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
    find_longest_full_attention_hit,
    find_longest_sliding_window_hit,
)

Blocks = tuple[Sequence[int], ...]
"""Block numbers, one sequence a group."""


class KVCacheCoordinator:
    """The block tables of all groups over one pool."""

    def __init__(self, cache_config: CacheConfig, scheduler_config: SchedulerConfig) -> None:
        groups = cache_config.kv_cache_groups
        self.block_size = cache_config.block_size
        self.enable_caching = cache_config.enable_prefix_caching
        self.block_pool = BlockPool(cache_config.num_gpu_blocks, self.enable_caching, len(groups))
        self.single_type_managers = tuple(
            _get_manager_for_kv_cache_spec(spec, i, self.block_pool, cache_config, scheduler_config)
            for i, spec in enumerate(groups)
        )
        groups_by_spec: dict[KVCacheSpec, list[int]] = {}
        for i, spec in enumerate(groups):
            groups_by_spec.setdefault(spec, []).append(i)
        self._full_groups = groups_by_spec.pop(FullAttentionSpec(), [])
        self._sliding_groups = [
            (group_ids, spec.contiguous_blocks_for_hit(self.block_size))
            for spec, group_ids in groups_by_spec.items()
            if isinstance(spec, SlidingWindowSpec)
        ]

    def get_num_blocks_to_allocate(
        self,
        request: Request,
        num_tokens: int,
        new_computed_blocks: Blocks,
        total_computed_tokens: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """Returns how many free blocks it takes, over all groups, to give the request `num_tokens` slots."""
        return sum(
            manager.get_num_blocks_to_allocate(
                request, num_tokens, new_computed_blocks[i], total_computed_tokens, apply_admission_cap
            )
            for i, manager in enumerate(self.single_type_managers)
        )

    def allocate_new_computed_blocks(
        self, request: Request, new_computed_blocks: Blocks, num_computed_tokens: int
    ) -> None:
        """Starts the request's block tables with the blocks its prefix hit."""
        for i, manager in enumerate(self.single_type_managers):
            manager.add_local_computed_blocks(request, new_computed_blocks[i], num_computed_tokens)

    def allocate_new_blocks(self, request: Request, num_tokens: int) -> Blocks:
        """Takes new blocks in every group until the request has `num_tokens` slots, and returns them."""
        return tuple(manager.allocate_new_blocks(request, num_tokens) for manager in self.single_type_managers)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Remembers the content of the request's full blocks."""
        if self.enable_caching:
            for manager in self.single_type_managers:
                manager.cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        """Gives up all blocks of the request, group by group."""
        for manager in self.single_type_managers:
            manager.free(request)

    def remove_skipped_blocks(self, request: Request, num_processed_tokens: int) -> None:
        """Gives back blocks that lie outside sliding windows."""
        for manager in self.single_type_managers:
            manager.remove_skipped_blocks(request, num_processed_tokens)

    def get_blocks(self, request: Request) -> Blocks:
        """Returns the request's block table in each group."""
        return tuple(manager.req_to_blocks.get(request, []) for manager in self.single_type_managers)

    def find_longest_cache_hit(self, block_hashes: Sequence[int], max_num_blocks: int) -> tuple[Blocks, int, int]:
        """Finds the longest cached prefix that suits every group.

        Returns:
            Its blocks in each group, its length in blocks, and the longest that any kind of group accepted on the way.

        Full attention sets the bound, since its prefixes are cached whole. Each sliding window accepts a length or
        lowers it. With several windows that is repeated until none lowers it any more: what one window accepts, it need
        not accept at the shorter length of another.
        """
        hits: list[Sequence[int]] = [[]] * len(self.single_type_managers)
        num_blocks = max_num_blocks
        longest = 0
        if self._full_groups:
            found = find_longest_full_attention_hit(block_hashes, num_blocks, self._full_groups, self.block_pool)
            num_blocks = longest = len(found[0])
            for group, blocks in zip(self._full_groups, found, strict=True):
                hits[group] = blocks
        is_settled = False
        while not is_settled:
            bound = num_blocks
            for groups, num_contiguous_blocks in self._sliding_groups:
                found = find_longest_sliding_window_hit(
                    block_hashes, num_blocks, groups, self.block_pool, num_contiguous_blocks
                )
                num_blocks = len(found[0])
                longest = max(longest, num_blocks)
                for group, blocks in zip(groups, found, strict=True):
                    hits[group] = blocks
            is_settled = num_blocks == bound or len(self._sliding_groups) <= 1
        for group in self._full_groups:
            hits[group] = hits[group][:num_blocks]
        return tuple(hits), num_blocks, longest


def _get_manager_for_kv_cache_spec(
    spec: KVCacheSpec, group: int, pool: BlockPool, cache_config: CacheConfig, scheduler_config: SchedulerConfig
) -> SingleTypeKVCacheManager:
    match spec:
        case FullAttentionSpec():
            return FullAttentionManager(pool, cache_config.block_size, group)
        case SlidingWindowSpec():
            return SlidingWindowManager(
                pool,
                cache_config.block_size,
                group,
                spec=spec,
                max_in_flight_tokens=scheduler_config.max_in_flight_tokens,
                max_model_len=scheduler_config.max_model_len,
                retention_interval=cache_config.prefix_cache_retention_interval,
            )
