"""The block pool of the fast path: the same blocks in the same order as `BlockPool`, for less work a block.

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

from sim.core.request import Request


class CachedRun:
    """Blocks cached together and not hashed yet, with their places in a request's table."""

    __slots__ = ("blocks", "cache", "num_live", "order", "places", "request", "stream")

    def __init__(
        self, cache: GroupCache, request: Request, places: Sequence[int], blocks: Sequence[int], stream: int
    ) -> None:
        self.cache = cache
        self.request = request
        self.places = places
        self.blocks = blocks
        self.stream = stream
        self.num_live = len(blocks)  # not evicted
        self.order = 0  # when it was cached


class FastBlockPool:
    """Reference counts, contents and the free queue of all blocks, over all KV cache groups.

    A block's content is None, its hash, or the run in which it waits to be hashed.
    """

    __slots__ = ("_free", "_num_free", "_num_runs", "_stale", "caches", "contents", "num_gpu_blocks", "orders", "refs")

    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.refs = [0] * num_gpu_blocks
        self.contents: list[int | CachedRun | None] = [None] * num_gpu_blocks
        self.caches: list[GroupCache | None] = [None] * num_gpu_blocks  # of hashed blocks: where
        self.orders = [0] * num_gpu_blocks  # of hashed blocks: when their run was cached
        self._free = deque(range(1, num_gpu_blocks))  # block 0 is the null block
        self._stale = [0] * num_gpu_blocks  # entries of a block in the queue that are no longer meant
        self._num_free = num_gpu_blocks - 1
        self._num_runs = 0

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

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Takes blocks from the front of the free queue, forgetting what they held."""
        assert num_blocks <= self._num_free, f"{num_blocks} blocks asked, {self._num_free} free"
        stale, contents, refs, popleft = self._stale, self.contents, self.refs, self._free.popleft
        blocks = []
        for _ in range(num_blocks):
            block = popleft()
            while stale[block]:
                stale[block] -= 1
                block = popleft()
            content = contents[block]
            if content is not None:
                contents[block] = None
                if isinstance(content, CachedRun):
                    content.num_live -= 1
                    if not content.num_live:
                        content.cache.drop(content)
                else:
                    self._forget(block, content)
            refs[block] = 1
            blocks.append(block)
        self._num_free -= num_blocks
        return blocks

    def num_free_of(self, blocks: Sequence[int]) -> int:
        """Returns how many of the blocks are free."""
        return list(map(self.refs.__getitem__, blocks)).count(0)

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
        refs, contents = self.refs, self.contents
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

    def cache_run(self, run: CachedRun) -> None:
        """Remembers the content of a run of blocks, to be hashed when somebody asks."""
        self._num_runs += 1
        run.order = self._num_runs
        contents = self.contents
        for block in run.blocks:
            assert contents[block] is None, f"block {block} is cached twice"
            contents[block] = run
        run.cache.file(run)

    def _forget(self, block: int, block_hash: int) -> None:
        cache = self.caches[block]
        assert cache is not None
        cache.forget(block_hash, block)


class GroupCache:
    """Which content of one KV cache group is in which block."""

    __slots__ = ("_block_size", "_cached", "_pending", "_pool")

    def __init__(self, pool: FastBlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._cached: dict[int, int | list[int]] = {}  # by hash: the block, or blocks in the order of caching
        self._pending: dict[int, list[CachedRun]] = {}  # runs not hashed yet, by stream

    def get_one_block(self, block_hash: int) -> int | None:
        """Returns the block that has held that content longest, or None."""
        found = self._cached.get(block_hash)
        return found[0] if isinstance(found, list) else found

    def find_longest_prefix(self, request: Request, max_num_blocks: int) -> list[int]:
        """Returns the longest run of cached blocks from the start, hashing no more of the request than it takes."""
        get, hashes = self._cached.get, request.block_hashes
        hits: list[int] = []
        while len(hits) < max_num_blocks:
            first = len(hits)
            last = min(max_num_blocks, 2 * first + 1)
            if last > len(hashes):
                request.hash_blocks(last, self._block_size)
            for found in map(get, hashes[first:last]):
                if found is None:
                    return hits
                hits.append(found if isinstance(found, int) else found[0])
        return hits

    def hash_runs(self, request: Request) -> None:
        """Hashes the runs that the request could hit: those filed under its streams."""
        pending = self._pending
        if not pending:
            return
        for stream, _ in request.prompt:
            if stream in pending:
                self._hash_runs_of(stream)
        if request.num_output_tokens and request.output_stream in pending:
            self._hash_runs_of(request.output_stream)

    def file(self, run: CachedRun) -> None:
        """Keeps a run until somebody asks for it."""
        self._pending.setdefault(run.stream, []).append(run)

    def drop(self, run: CachedRun) -> None:
        """Forgets a run whose blocks are all evicted."""
        runs = self._pending.get(run.stream)
        if runs is not None and run in runs:
            runs.remove(run)
            if not runs:
                del self._pending[run.stream]

    def forget(self, block_hash: int, block: int) -> None:
        """Forgets that a block has that content."""
        found = self._cached.pop(block_hash)
        if isinstance(found, list):
            found.remove(block)
            self._cached[block_hash] = found if len(found) > 1 else found[0]

    def _hash_runs_of(self, stream: int) -> None:
        pool = self._pool
        contents = pool.contents
        for run in self._pending.pop(stream):
            hashes = run.request.hash_blocks(run.places[-1] + 1, self._block_size)
            for place, block in zip(run.places, run.blocks, strict=True):
                if contents[block] is run:
                    contents[block] = hashes[place]
                    pool.caches[block] = self
                    pool.orders[block] = run.order
                    self._insert(hashes[place], block)

    def _insert(self, block_hash: int, block: int) -> None:
        found = self._cached.setdefault(block_hash, block)
        if isinstance(found, list):
            insort(found, block, key=self._pool.orders.__getitem__)
        elif found != block:
            self._cached[block_hash] = sorted((found, block), key=self._pool.orders.__getitem__)
