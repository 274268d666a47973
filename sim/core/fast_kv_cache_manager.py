"""KV blocks for the fast path: `KVCacheManager` over a `FastBlockPool`, all groups in one place.

For one full-attention group, alone or beside sliding-window groups that keep only the tails of prompts in the cache
(`prefix_cache_retention_interval` 0). All groups of a request cover the same places, so most counts are taken once and
multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.fast_block_pool import CachedRun, FastBlockPool, GroupCache
from sim.core.kv_cache_coordinator import Blocks
from sim.core.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from sim.core.request import Request


class BlockTable:
    """A request's blocks in one group: the first `num_skipped` places, outside the window, hold the null block."""

    __slots__ = ("blocks", "num_cached", "num_skipped")

    def __init__(self, blocks: list[int], num_skipped: int) -> None:
        self.blocks = blocks
        self.num_skipped = num_skipped
        self.num_cached = num_skipped + len(blocks)


class FastKVCacheManager:
    """What the scheduler asks for slots; see `KVCacheManager` for each method.

    Attributes:
        num_groups: KV cache groups: a request takes so many blocks for each block of tokens.
        sliding_window: of the sliding groups; 0 where there are none.
    """

    def __init__(self, cache_config: CacheConfig, scheduler_config: SchedulerConfig) -> None:
        assert self.is_applicable(cache_config)
        self.block_size = cache_config.block_size
        self.max_model_len = scheduler_config.max_model_len
        self.enable_caching = cache_config.enable_prefix_caching
        self.block_pool = FastBlockPool(cache_config.num_gpu_blocks)
        self.watermark_blocks = int(scheduler_config.watermark * cache_config.num_gpu_blocks)
        groups = cache_config.kv_cache_groups
        self.num_groups = len(groups)
        self.sliding_window = 0
        self._full_group = groups.index(FullAttentionSpec())
        self._sliding_groups = [i for i in range(self.num_groups) if i != self._full_group]
        self._caches = [GroupCache(self.block_pool, self.block_size) for _ in groups]
        self._tables: dict[Request, list[BlockTable]] = {}
        self._no_hits: Blocks = tuple(() for _ in groups)
        self._tail_blocks = 0  # cached blocks in a row that a hit needs at its end
        self._admission_cap = 0
        for spec in groups:
            if isinstance(spec, SlidingWindowSpec):
                self.sliding_window = spec.sliding_window
                self._tail_blocks = spec.contiguous_blocks_for_hit(self.block_size)
                self._admission_cap = spec.max_admission_blocks_per_request(
                    scheduler_config.max_in_flight_tokens, self.max_model_len, self.block_size
                )

    @staticmethod
    def is_applicable(cache_config: CacheConfig) -> bool:
        """Returns whether these KV cache groups are of the kind this manager knows."""
        groups = cache_config.kv_cache_groups
        windows = {spec.sliding_window for spec in groups if isinstance(spec, SlidingWindowSpec)}
        if groups.count(FullAttentionSpec()) != 1 or len(windows) > 1:
            return False
        return not windows or (cache_config.prefix_cache_retention_interval == 0 and min(windows) > 1)

    def get_computed_blocks(self, request: Request) -> tuple[Blocks, int]:
        """Returns the cached blocks of the longest prefix (of a sliding group: its tail), and the tokens it holds."""
        if not self.enable_caching:
            return self._no_hits, 0
        max_num_blocks = (request.num_tokens - 1) // self.block_size
        self._caches[self._full_group].hash_runs(request)
        prefix = self._caches[self._full_group].find_longest_prefix(request, max_num_blocks)
        if not self._sliding_groups:
            return (prefix,), len(prefix) * self.block_size
        for group in self._sliding_groups:
            self._caches[group].hash_runs(request)
        tails, num_blocks = self._find_longest_tail(request.block_hashes, len(prefix))
        request.shared_prefix_boundary = len(prefix) * self.block_size if len(prefix) > num_blocks else 0
        tails.insert(self._full_group, prefix[:num_blocks])
        return tuple(tails), num_blocks * self.block_size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Blocks | None = None,
        *,
        admission: bool = False,
        full_sequence_must_fit: bool = False,
        has_scheduled_reqs: bool = True,
    ) -> Blocks | None:
        """Gives the request slots for `num_new_tokens` more tokens, or returns None."""
        pool, block_size = self.block_pool, self.block_size
        num_computed_tokens = request.num_computed_tokens + num_new_computed_tokens
        num_places = -(-min(num_computed_tokens + num_new_tokens, self.max_model_len) // block_size)
        if admission:
            hits = self._no_hits if new_computed_blocks is None else new_computed_blocks
            num_hit_places = num_new_computed_tokens // block_size
            reserve = sum(map(pool.num_free_of, hits))  # they leave the queue
            reserve += self.watermark_blocks if has_scheduled_reqs else 0
            num_free = pool.get_num_free_blocks()
            if full_sequence_must_fit and self._num_blocks_to_admit(request, num_hit_places) + reserve > num_free:
                return None
            num_new_places = max(0, num_places - num_hit_places)
            if num_new_places * self.num_groups + reserve > num_free:
                return None
            tables = self._tables[request] = self._create_tables(hits, num_hit_places)
        else:
            tables = self._tables[request]
            self._remove_skipped_blocks(tables, num_computed_tokens - request.num_in_flight_tokens)
            num_new_places = max(0, num_places - tables[0].num_skipped - len(tables[0].blocks))
            if num_new_places * self.num_groups > pool.get_num_free_blocks():
                return None
        new_blocks: Blocks = self._no_hits
        if num_new_places:
            new_blocks = tuple(pool.get_new_blocks(num_new_places) for _ in tables)
            for table, blocks in zip(tables, new_blocks, strict=True):
                table.blocks += blocks
        self._cache(request, tables, min(num_computed_tokens + num_new_tokens, request.num_tokens))
        return new_blocks

    def remove_skipped_blocks(self, request: Request, num_processed_tokens: int) -> None:
        """Gives back blocks that lie outside sliding windows."""
        self._remove_skipped_blocks(self._tables[request], num_processed_tokens)

    def allocate_places(self, requests: Sequence[Request]) -> None:
        """Gives each request, in turn, its next block in every group; there must be enough free ones."""
        tables, num_groups = self._tables, self.num_groups
        blocks = self.block_pool.get_new_blocks(len(requests) * num_groups)
        if num_groups == 1:
            for request, block in zip(requests, blocks, strict=True):
                tables[request][0].blocks.append(block)
            return
        each = iter(blocks)
        for request in requests:
            for table in tables[request]:
                table.blocks.append(next(each))

    def latest_blocks(self, request: Request) -> Blocks:
        """Returns the last block of the request in each group."""
        return tuple((table.blocks[-1],) for table in self._tables[request])

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Remembers the content of the request's full blocks."""
        self._cache(request, self._tables[request], num_computed_tokens)

    def free(self, request: Request) -> None:
        """Gives up all blocks of the request, group by group."""
        for table in self._tables.pop(request, ()):
            self.block_pool.free_blocks(table.blocks)

    def get_blocks(self, request: Request) -> Blocks:
        """Returns the request's block table in each group; without windows the live one."""
        tables = self._tables.get(request)
        if tables is None:
            return self._no_hits
        return tuple([0] * table.num_skipped + table.blocks if table.num_skipped else table.blocks for table in tables)

    def _find_longest_tail(self, hashes: Sequence[int], max_num_blocks: int) -> tuple[list[Sequence[int]], int]:
        """Finds where the sliding groups can resume: the last blocks of a prefix, all cached in all of them.

        Returns:
            For each sliding group the blocks of that tail, and the length of the prefix in blocks.
        """
        caches = [self._caches[group] for group in self._sliding_groups]
        tails: list[list[int]] = [[] for _ in caches]
        num_blocks = max_num_blocks
        for place in range(max_num_blocks - 1, -1, -1):
            found = [cache.get_one_block(hashes[place]) for cache in caches]
            if None in found:
                num_blocks = place
                tails = [[] for _ in caches]
                continue
            for tail, block in zip(tails, found, strict=True):
                assert block is not None
                tail.append(block)
            if len(tails[0]) == self._tail_blocks:
                break
        for tail in tails:
            tail.reverse()
        return list(tails), num_blocks

    def _num_blocks_to_admit(self, request: Request, num_hit_places: int) -> int:
        """Returns the blocks that the whole request would take, a sliding group never more than its cap."""
        num_places = -(-min(request.num_tokens, self.max_model_len) // self.block_size)
        num_blocks = max(0, num_places - num_hit_places)
        if self._sliding_groups:
            capped = max(0, min(num_places, self._admission_cap) - num_hit_places)
            num_blocks += capped * len(self._sliding_groups)
        return num_blocks

    def _create_tables(self, hits: Blocks, num_hit_places: int) -> list[BlockTable]:
        tables = []
        for blocks in hits:
            if blocks:
                self.block_pool.touch(blocks)
            tables.append(BlockTable(list(blocks), num_hit_places - len(blocks)))
        return tables

    def _remove_skipped_blocks(self, tables: list[BlockTable], num_processed_tokens: int) -> None:
        num_skipped_tokens = num_processed_tokens - self.sliding_window + 1
        if not self.sliding_window or num_skipped_tokens < self.block_size:
            return
        for group in self._sliding_groups:
            table = tables[group]
            num_freed = min(num_skipped_tokens // self.block_size - table.num_skipped, len(table.blocks))
            if num_freed > 0:
                self.block_pool.free_blocks(table.blocks[:num_freed])
                del table.blocks[:num_freed]
                table.num_skipped += num_freed

    def _cache(self, request: Request, tables: list[BlockTable], num_tokens: int) -> None:
        num_full = num_tokens // self.block_size
        if num_full <= tables[0].num_cached or not self.enable_caching:
            return
        for group, table in enumerate(tables):
            first, table.num_cached = table.num_cached, num_full
            if group == self._full_group:
                places: Sequence[int] = range(first, num_full)
                blocks = table.blocks[first:num_full]
            else:
                skipped = table.num_skipped
                places = [place for place in self._tail_places(request, first, num_full) if place >= skipped]
                blocks = [table.blocks[place - skipped] for place in places]
            if places:
                stream = request.stream_at((places[0] + 1) * self.block_size - 1)
                self.block_pool.cache_run(CachedRun(self._caches[group], request, places, blocks, stream))

    def _tail_places(self, request: Request, first: int, num_full: int) -> Sequence[int]:
        """Returns the places of a sliding group that can serve a hit; see `SlidingWindowManager.reachable_blocks`."""
        places: set[int] = set()
        for boundary in (request.num_prompt_tokens - 1, request.shared_prefix_boundary):
            end = boundary // self.block_size
            places.update(range(max(first, end - self._tail_blocks), min(num_full, end)))
        return sorted(places)
