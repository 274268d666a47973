"""KV blocks for the fast path: `KVCacheManager` over a `FastBlockPool`, all groups in one place.

For one full-attention group, alone or beside sliding-window groups that keep only the tails of prompts in the cache
(`prefix_cache_retention_interval` 0). All groups of a request cover the same places, so most counts are taken once and
multiplied. A hit is a list of runs for each group, `Hits`, which only this file and the pool look into.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.core.block_runs import BlockRun
from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.content_tree import ContentPath, ContentTree
from sim.core.fast_block_pool import FastBlockPool
from sim.core.kv_cache_coordinator import Blocks
from sim.core.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from sim.core.request import Request

Hits = tuple[Sequence[BlockRun], ...]


class BlockTable:
    """A request's blocks in one group, by place; those before `num_skipped`, outside the window, are given back.

    Attributes:
        runs: hit, cached, or passed over by the cache. One that was split stands here with its first part alone.
        open_place: where the open blocks begin, and everything before them ends.
        num_open: the last blocks, which grow and are this request's alone; behind while it decodes in the pool.
        open_ids: theirs, where they are kept.
        num_cached: places whose blocks are cached, or will never be.
        num_skipped: places given back.
    """

    __slots__ = ("num_cached", "num_open", "num_skipped", "open_ids", "open_place", "runs")

    def __init__(self, runs: Sequence[BlockRun], num_skipped: int) -> None:
        self.runs = list(runs)
        self.num_skipped = num_skipped
        self.num_cached = self.open_place = runs[-1].end if runs else num_skipped
        self.num_open = 0
        self.open_ids: list[int] = []

    @property
    def end(self) -> int:
        """The place after the last block."""
        return self.open_place + self.num_open

    def pieces(self) -> list[BlockRun]:
        """Returns all runs in order of place, those that were split part by part, the open blocks as a run."""
        runs, pieces = self.runs, []
        for index, run in enumerate(runs, 1):
            end = runs[index].place if index < len(runs) else self.open_place
            pieces.append(run)
            while run.end < end:
                assert run.tail is not None
                run = run.tail  # noqa: PLW2901  # on to the next part
                pieces.append(run)
        if self.num_open:
            pieces.append(BlockRun(self.open_place, self.num_open, self.open_ids))
        return pieces

    def close(self, place: int) -> list[int]:
        """Takes the open blocks before a place out of the table; returns their ids, where they are kept."""
        num_closed = place - self.open_place
        closed = self.open_ids
        self.open_ids = closed[num_closed:]
        del closed[num_closed:]
        self.num_open -= num_closed
        self.open_place = place
        return closed

    def take_before(self, place: int) -> list[BlockRun]:
        """Takes the runs before a place out of the table, and returns them."""
        taken: list[BlockRun] = []
        if self.runs:
            num_open, self.num_open = self.num_open, 0
            pieces = self.pieces()
            self.num_open = num_open
            while pieces and pieces[0].place < place:
                run = pieces.pop(0)
                if run.end > place:
                    pieces.insert(0, run.split(place))
                taken.append(run)
            self.runs = pieces
        if self.open_place < place:
            first = self.open_place
            taken.append(BlockRun(first, place - first, self.close(place)))
        return taken


class FastKVCacheManager:
    """What the scheduler asks for slots; see `KVCacheManager` for each method.

    Args:
        cache_config: the blocks.
        scheduler_config: what bounds a request.
        keeps_ids: know each block's id, which no decision needs. Without, the blocks that methods return have none.

    Attributes:
        num_groups: KV cache groups: a request takes so many blocks for each block of tokens.
        sliding_window: of the sliding groups; 0 where there are none.
    """

    def __init__(self, cache_config: CacheConfig, scheduler_config: SchedulerConfig, *, keeps_ids: bool) -> None:
        assert self.is_applicable(cache_config)
        self.block_size = cache_config.block_size
        self.max_model_len = scheduler_config.max_model_len
        self.enable_caching = cache_config.enable_prefix_caching
        self.block_pool = FastBlockPool(cache_config.num_gpu_blocks, keeps_ids=keeps_ids)
        self.keeps_ids = keeps_ids
        self.watermark_blocks = int(scheduler_config.watermark * cache_config.num_gpu_blocks)
        groups = cache_config.kv_cache_groups
        self.num_groups = len(groups)
        self.sliding_window = 0
        self._full_group = groups.index(FullAttentionSpec())
        self._sliding_groups = [i for i in range(self.num_groups) if i != self._full_group]
        self._contents = ContentTree(self.block_size, len(groups))
        self._tables: dict[Request, list[BlockTable]] = {}
        self._no_hits: Hits = tuple(() for _ in groups)
        self._no_blocks: Blocks = tuple(() for _ in groups)
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

    def get_computed_blocks(self, request: Request) -> tuple[Hits, int]:
        """Returns the cached blocks of the longest prefix (of a sliding group: its tail), and the tokens it holds."""
        if not self.enable_caching:
            return self._no_hits, 0
        path, full = self._contents.path_of(request), self._full_group
        num_blocks = path.find_end(full, (request.num_tokens - 1) // self.block_size)
        if self._sliding_groups:
            num_cached, num_blocks = num_blocks, self._find_longest_tail(path, num_blocks)
            request.shared_prefix_boundary = num_cached * self.block_size if num_cached > num_blocks else 0
        if not num_blocks:
            return self._no_hits, 0
        tail = max(0, num_blocks - self._tail_blocks)
        hits = [path.runs_between(g, 0 if g == full else tail, num_blocks) for g in range(self.num_groups)]
        return tuple(hits), num_blocks * self.block_size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Hits | None = None,
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
            num_new_places = max(0, num_places - tables[0].end)
            if num_new_places * self.num_groups > pool.get_num_free_blocks():
                return None
        new_blocks = self._no_blocks
        if num_new_places:
            new_blocks = self._take_places(tables, num_new_places)
        self._cache(request, tables, min(num_computed_tokens + num_new_tokens, request.num_tokens))
        return new_blocks

    def remove_skipped_blocks(self, request: Request, num_processed_tokens: int) -> None:
        """Gives back blocks that lie outside sliding windows."""
        self._remove_skipped_blocks(self._tables[request], num_processed_tokens)

    def allocate_places(self, requests: Sequence[Request]) -> None:
        """Gives each request, in turn, its next block in every group; there must be enough free ones.

        Without ids and windows their tables need not know it yet: `catch_up` tells them.
        """
        if self.keeps_ids or self.sliding_window:
            for request in requests:
                self._take_places(self._tables[request], 1)
        else:
            self.block_pool.get_new_blocks(len(requests))

    def catch_up(self, request: Request) -> None:
        """Counts the blocks that `allocate_places` gave a request: it has one for each computed token's place."""
        num_places = -(-request.num_computed_tokens // self.block_size)
        for table in self._tables[request]:
            table.num_open = num_places - table.open_place

    def latest_blocks(self, request: Request) -> Blocks:
        """Returns the last block of the request in each group."""
        return tuple(tuple(table.open_ids[-1:]) for table in self._tables[request])

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Remembers the content of the request's full blocks."""
        self._cache(request, self._tables[request], num_computed_tokens)

    def free(self, request: Request) -> None:
        """Gives up all blocks of the request, group by group."""
        for table in self._tables.pop(request, ()):
            self.block_pool.free_runs(table.pieces())
        self._contents.forget(request)

    def get_blocks(self, request: Request) -> Blocks:
        """Returns a copy of the request's block table in each group."""
        tables = self._tables.get(request)
        if tables is None:
            return self._no_blocks
        return tuple([0] * table.num_skipped + [b for run in table.pieces() for b in run.ids] for table in tables)

    def reference_counts(self) -> list[int]:
        """Returns how many requests hold each block."""
        counts = [0] * self.block_pool.num_gpu_blocks
        for tables in self._tables.values():
            for table in tables:
                for run in table.pieces():
                    for block in run.ids:
                        counts[block] += 1
        return counts

    def _find_longest_tail(self, path: ContentPath, max_num_blocks: int) -> int:
        """Finds where the sliding groups can resume: the end of a prefix whose last blocks are cached in all of them.

        Returns:
            The length of that prefix in blocks.
        """
        common = (1 << 8 * max_num_blocks) - 1
        for group in self._sliding_groups:
            common &= int.from_bytes(path.present(group, max_num_blocks), "little")
        present = common.to_bytes(max_num_blocks, "little")
        tail = present.rfind(b"\1" * self._tail_blocks)
        if tail >= 0:
            return tail + self._tail_blocks
        # A window that reaches back to the first token needs no more than what there is.
        first_missing = present.find(0)
        return first_missing if first_missing >= 0 else max_num_blocks

    def _num_blocks_to_admit(self, request: Request, num_hit_places: int) -> int:
        """Returns the blocks that the whole request would take, a sliding group never more than its cap."""
        num_places = -(-min(request.num_tokens, self.max_model_len) // self.block_size)
        num_blocks = max(0, num_places - num_hit_places)
        if self._sliding_groups:
            capped = max(0, min(num_places, self._admission_cap) - num_hit_places)
            num_blocks += capped * len(self._sliding_groups)
        return num_blocks

    def _take_places(self, tables: list[BlockTable], num_places: int) -> Blocks:
        """Lengthens the tables by new blocks; returns the ids, where they are kept."""
        taken = []
        for table in tables:
            ids = self.block_pool.get_new_blocks(num_places)
            table.num_open += num_places
            table.open_ids += ids
            taken.append(ids)
        return tuple(taken)

    def _create_tables(self, hits: Hits, num_hit_places: int) -> list[BlockTable]:
        tables = []
        for runs in hits:
            self.block_pool.touch(runs)
            tables.append(BlockTable(runs, runs[0].place if runs else num_hit_places))
        return tables

    def _remove_skipped_blocks(self, tables: list[BlockTable], num_processed_tokens: int) -> None:
        num_skipped_tokens = num_processed_tokens - self.sliding_window + 1
        if not self.sliding_window or num_skipped_tokens < self.block_size:
            return
        for group in self._sliding_groups:
            table = tables[group]
            num_skipped = min(num_skipped_tokens // self.block_size, table.end)
            if num_skipped > table.num_skipped:
                self.block_pool.free_runs(table.take_before(num_skipped))
                table.num_skipped = num_skipped

    def _cache(self, request: Request, tables: list[BlockTable], num_tokens: int) -> None:
        num_full = num_tokens // self.block_size
        if num_full <= tables[0].num_cached or not self.enable_caching:
            return
        path = self._contents.path_of(request)
        for group, table in enumerate(tables):
            first, table.num_cached = table.num_cached, num_full
            if group == self._full_group:
                self._shelve(path, group, table, num_full)
                continue
            for start, end in self._tail_ranges(request, max(first, table.num_skipped), num_full):
                if start > table.open_place:
                    place = table.open_place
                    table.runs.append(BlockRun(place, start - place, table.close(start)))
                self._shelve(path, group, table, end)

    def _shelve(self, path: ContentPath, group: int, table: BlockTable, end: int) -> None:
        """Caches the open blocks of a table before a place, run by run: a run has one content node."""
        while (place := table.open_place) < end:
            node, node_end = path.node_at(place)
            stop = min(end, node_end)
            last = table.runs[-1] if table.runs else None
            run = node.shelves[group].add(place, stop, table.close(stop), last)
            if run is not None:
                table.runs.append(run)

    def _tail_ranges(self, request: Request, first: int, num_full: int) -> list[tuple[int, int]]:
        """Returns the places of a sliding group that can serve a hit; see `SlidingWindowManager.reachable_blocks`."""
        ranges: list[tuple[int, int]] = []
        for boundary in sorted((request.num_prompt_tokens - 1, request.shared_prefix_boundary)):
            end = boundary // self.block_size
            start = max(first, end - self._tail_blocks, ranges[-1][1] if ranges else 0)
            if start < min(num_full, end):
                ranges.append((start, min(num_full, end)))
        return ranges
