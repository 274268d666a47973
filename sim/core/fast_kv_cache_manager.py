"""KV blocks for the fast path: one full-attention group, the same blocks in the same order as the reference.

Two things make it cheap.

*Deferred hashing.* Most content is never asked for again, so a cached block gets its hash only when some prompt
mentions it. Blocks cached together are kept as a run, filed under the stream of the last token of its first block:
whoever could hit a block of the run must have that stream in its prompt, since hashes are chained. A lookup first
hashes the runs filed under its own streams. Where several blocks hold the same content, the one cached first is hit,
whenever it was hashed: each run carries the order in which it was cached.

*A free queue that forgets lazily.* A free block that is hit stays in the deque as a stale entry, counted and skipped
when it comes up. A hit block is cached, so it is always put back behind its stale entries.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence

from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.kv_cache_coordinator import Blocks
from sim.core.request import Request

_NO_HITS: Blocks = ((),)


class _CachedRun:
    """Blocks cached together and not hashed yet: places `first_place` and on of a request's table."""

    __slots__ = ("blocks", "first_place", "num_live", "order", "request", "stream")

    def __init__(self, request: Request, first_place: int, blocks: list[int], stream: int, order: int) -> None:
        self.request = request
        self.first_place = first_place
        self.blocks = blocks
        self.num_live = len(blocks)  # not evicted
        self.stream = stream
        self.order = order


class _BlockTable:
    """A request's blocks, and how many of them are cached."""

    __slots__ = ("blocks", "num_cached")

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = blocks
        self.num_cached = len(blocks)


class FastBlockPool:
    """All KV blocks: reference counts, contents, and the free queue.

    A block's content is None, its hash, or the run in which it waits to be hashed.
    """

    __slots__ = (
        "_cached",
        "_contents",
        "_free",
        "_num_free",
        "_orders",
        "_pending",
        "_stale",
        "num_gpu_blocks",
        "refs",
    )

    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.refs = [0] * num_gpu_blocks
        self._contents: list[int | _CachedRun | None] = [None] * num_gpu_blocks
        self._orders = [0] * num_gpu_blocks  # of hashed blocks: when their run was cached
        self._free = deque(range(1, num_gpu_blocks))  # block 0 is the null block
        self._stale = [0] * num_gpu_blocks  # entries of a block in the queue that are no longer meant
        self._num_free = num_gpu_blocks - 1
        self._cached: dict[int, int | list[int]] = {}  # by hash: the block, or blocks in the order of caching
        self._pending: dict[int, list[_CachedRun]] = {}  # by stream

    def get_num_free_blocks(self) -> int:
        """Returns how many blocks can be taken now, cached ones included."""
        return self._num_free

    def get_all_free_blocks(self) -> list[int]:
        """Returns the free blocks in eviction order."""
        stale, free = self._stale.copy(), []
        for block in self._free:
            if stale[block]:
                stale[block] -= 1
            else:
                free.append(block)
        return free

    def get_new_block(self) -> int:
        """Takes the block to be evicted first, forgetting what it held."""
        stale, popleft = self._stale, self._free.popleft
        block = popleft()
        while stale[block]:
            stale[block] -= 1
            block = popleft()
        self._num_free -= 1
        content = self._contents[block]
        if content is not None:
            self._evict(block, content)
        self.refs[block] = 1
        return block

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Takes blocks from the front of the free queue, forgetting what they held."""
        assert num_blocks <= self._num_free, f"{num_blocks} blocks asked, {self._num_free} free"
        stale, contents, refs, popleft = self._stale, self._contents, self.refs, self._free.popleft
        blocks = []
        for _ in range(num_blocks):
            block = popleft()
            while stale[block]:
                stale[block] -= 1
                block = popleft()
            content = contents[block]
            if content is not None:
                self._evict(block, content)
            refs[block] = 1
            blocks.append(block)
        self._num_free -= num_blocks
        return blocks

    def touch(self, blocks: Sequence[int]) -> None:
        """Adds a reference to blocks that were hit; those that were free leave the queue."""
        refs, stale = self.refs, self._stale
        for block in blocks:
            if refs[block] == 0:
                stale[block] += 1
                self._num_free -= 1
            refs[block] += 1

    def free_blocks(self, blocks: Sequence[int]) -> None:
        """Gives up a reference to each block of a table, the last first."""
        refs, contents = self.refs, self._contents
        evict_first: list[int] = []
        evict_last: list[int] = []
        for block in reversed(blocks):
            if refs[block] == 1:
                refs[block] = 0
                if contents[block] is None:
                    evict_first.append(block)
                else:
                    evict_last.append(block)
            else:
                refs[block] -= 1
        if evict_first:
            evict_first.reverse()
            self._free.extendleft(evict_first)
        self._free.extend(evict_last)
        self._num_free += len(evict_first) + len(evict_last)

    def cache_run(self, run: _CachedRun) -> None:
        """Remembers the content of a run of blocks, to be hashed when somebody asks."""
        contents = self._contents
        for block in run.blocks:
            assert contents[block] is None, f"block {block} is cached twice"
            contents[block] = run
        self._pending.setdefault(run.stream, []).append(run)

    def hash_runs(self, request: Request, block_size: int) -> None:
        """Hashes the runs that the request could hit: those filed under its streams."""
        pending = self._pending
        for stream, _ in request.prompt:
            if stream in pending:
                self._hash_runs_of(stream, block_size)
        if request.num_output_tokens and request.output_stream in pending:
            self._hash_runs_of(request.output_stream, block_size)

    def find_longest_cache_hit(self, request: Request, max_num_blocks: int, block_size: int) -> list[int]:
        """Returns the blocks of the longest cached prefix, hashing no more of the request than it takes."""
        get, hashes, hits = self._cached.get, request.block_hashes, []
        for i in range(max_num_blocks):
            if i >= len(hashes):
                request.hash_blocks(min(max_num_blocks, 2 * i + 1), block_size)
            found = get(hashes[i])
            if found is None:
                break
            hits.append(found if isinstance(found, int) else found[0])
        return hits

    def _hash_runs_of(self, stream: int, block_size: int) -> None:
        contents, orders = self._contents, self._orders
        for run in self._pending.pop(stream):
            hashes = run.request.hash_blocks(run.first_place + len(run.blocks), block_size)
            for place, block in enumerate(run.blocks, run.first_place):
                if contents[block] is run:
                    contents[block] = hashes[place]
                    orders[block] = run.order
                    self._insert(hashes[place], block)

    def _insert(self, block_hash: int, block: int) -> None:
        found = self._cached.setdefault(block_hash, block)
        if isinstance(found, list):
            insort(found, block, key=self._orders.__getitem__)
        elif found != block:
            self._cached[block_hash] = sorted((found, block), key=self._orders.__getitem__)

    def _evict(self, block: int, content: int | _CachedRun) -> None:
        self._contents[block] = None
        if isinstance(content, _CachedRun):
            content.num_live -= 1
            if not content.num_live:
                runs = self._pending[content.stream]
                if len(runs) == 1:
                    del self._pending[content.stream]
                else:
                    runs.remove(content)
            return
        found = self._cached.pop(content)
        if isinstance(found, list):
            found.remove(block)
            self._cached[content] = found if len(found) > 1 else found[0]


class FastKVCacheManager:
    """What the scheduler asks for slots, with one full-attention group; see `KVCacheManager` for each method."""

    def __init__(self, cache_config: CacheConfig, scheduler_config: SchedulerConfig) -> None:
        self.block_size = cache_config.block_size
        self.max_model_len = scheduler_config.max_model_len
        self.enable_caching = cache_config.enable_prefix_caching
        self.block_pool = FastBlockPool(cache_config.num_gpu_blocks)
        self.watermark_blocks = int(scheduler_config.watermark * cache_config.num_gpu_blocks)
        self._tables: dict[Request, _BlockTable] = {}
        self._num_runs = 0

    def get_computed_blocks(self, request: Request) -> tuple[Blocks, int]:
        """Returns the cached blocks of the longest prefix of the request, and the tokens they hold."""
        if not self.enable_caching:
            return _NO_HITS, 0
        self.block_pool.hash_runs(request, self.block_size)
        max_num_blocks = (request.num_tokens - 1) // self.block_size
        hits = self.block_pool.find_longest_cache_hit(request, max_num_blocks, self.block_size)
        return (hits,), len(hits) * self.block_size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Blocks = _NO_HITS,
        *,
        admission: bool = False,
        full_sequence_must_fit: bool = False,
        has_scheduled_reqs: bool = True,
    ) -> Blocks | None:
        """Gives the request slots for `num_new_tokens` more tokens, or returns None and changes nothing."""
        pool, block_size, hits = self.block_pool, self.block_size, new_computed_blocks[0]
        num_computed_tokens = request.num_computed_tokens + num_new_computed_tokens
        num_slots = min(num_computed_tokens + num_new_tokens, self.max_model_len)
        num_needed = -(-num_slots // block_size)
        table = self._tables.get(request)
        num_held = len(hits) if table is None else len(table.blocks)
        num_new_blocks = max(0, num_needed - num_held)
        reserve = 0
        if admission:
            refs = pool.refs
            num_all = -(-min(request.num_tokens, self.max_model_len) // block_size)
            reserve = sum(refs[block] == 0 for block in hits)  # hit blocks that are free leave the queue
            reserve += self.watermark_blocks if has_scheduled_reqs else 0
            if full_sequence_must_fit and max(0, num_all - num_held) + reserve > pool.get_num_free_blocks():
                return None
        if num_new_blocks + reserve > pool.get_num_free_blocks():
            return None
        if table is None:
            pool.touch(hits)
            table = self._tables[request] = _BlockTable(list(hits))
        new_blocks = pool.get_new_blocks(num_new_blocks) if num_new_blocks else []
        table.blocks += new_blocks
        if self.enable_caching:
            self._cache(request, table, min(num_computed_tokens + num_new_tokens, request.num_tokens))
        return (new_blocks,)

    def allocate_block(self, request: Request) -> Blocks:
        """Gives the request its next block; there must be a free one."""
        block = self.block_pool.get_new_block()
        self._tables[request].blocks.append(block)
        return ((block,),)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Remembers the content of the request's full blocks."""
        if self.enable_caching:
            self._cache(request, self._tables[request], num_computed_tokens)

    def free(self, request: Request) -> None:
        """Gives up all blocks of the request."""
        table = self._tables.pop(request, None)
        if table is not None:
            self.block_pool.free_blocks(table.blocks)

    def get_blocks(self, request: Request) -> Blocks:
        """Returns the request's block table."""
        table = self._tables.get(request)
        return ((),) if table is None else (table.blocks,)

    def _cache(self, request: Request, table: _BlockTable, num_tokens: int) -> None:
        num_full = num_tokens // self.block_size
        first = table.num_cached
        if first >= num_full:
            return
        table.num_cached = num_full
        self._num_runs += 1
        stream = request.stream_at((first + 1) * self.block_size - 1)
        run = _CachedRun(request, first, table.blocks[first:num_full], stream, self._num_runs)
        self.block_pool.cache_run(run)
