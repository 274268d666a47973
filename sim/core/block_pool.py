"""The pool of KV blocks: who holds which block, which are free and in what order, and which content is cached where.

A block is its number; block 0 is the null block, which stands for places outside a sliding window and is never handed
out. Invariants, after every public method:

- a block other than the null block is free exactly when its reference count is 0;
- free blocks stand in the queue in eviction order: the front is taken (and its content forgotten) first;
- a block has a hash exactly when `cached_block_hash_to_block` of its group leads to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

NULL_BLOCK = 0


class FreeKVCacheBlockQueue:
    """Free blocks in eviction order; removal from the middle is O(1), for blocks that are hit while free."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: Iterable[int]) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict.fromkeys(blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def popleft(self) -> int:
        """Takes the block to be evicted first."""
        return self._blocks.popitem(last=False)[0]

    def remove(self, block: int) -> None:
        """Takes out a block wherever it stands."""
        del self._blocks[block]

    def append_n(self, blocks: Iterable[int]) -> None:
        """Puts blocks at the end, in order: to be evicted last."""
        queue = self._blocks
        for block in blocks:
            queue[block] = None

    def prepend_n(self, blocks: Sequence[int]) -> None:
        """Puts blocks at the front, the first of them foremost."""
        queue = self._blocks
        for block in reversed(blocks):
            queue[block] = None
            queue.move_to_end(block, last=False)

    def get_all_free_blocks(self) -> list[int]:
        """Returns the blocks in eviction order."""
        return list(self._blocks)


class BlockHashToBlockMap:
    """Leads from a content hash to the blocks that hold it, in the order in which they were cached.

    Several blocks may hold the same content (two requests computed it at the same time); evicting one keeps the others.
    """

    __slots__ = ("_cache",)

    def __init__(self) -> None:
        self._cache: dict[int, int | dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._cache)

    def get_one_block(self, block_hash: int) -> int | None:
        """Returns the first block with that content, or None."""
        found = self._cache.get(block_hash)
        if found is None or isinstance(found, int):
            return found
        return next(iter(found))

    def insert(self, block_hash: int, block: int) -> None:
        """Adds a block to those with that content."""
        found = self._cache.get(block_hash)
        if found is None:
            self._cache[block_hash] = block
        elif isinstance(found, int):
            self._cache[block_hash] = {found: None, block: None}
        else:
            found[block] = None

    def pop(self, block_hash: int, block: int) -> None:
        """Forgets that this block has that content."""
        found = self._cache.pop(block_hash)
        if isinstance(found, int):
            assert found == block, f"hash {block_hash} is in block {found}, not {block}"
            return
        del found[block]
        if found:
            self._cache[block_hash] = found


class BlockPool:
    """All KV blocks of an engine; every KV cache group draws from it.

    Args:
        num_gpu_blocks: blocks in all, the null block included.
        enable_caching: whether content is remembered for prefix hits.
        num_groups: KV cache groups; the same content of two groups is different data.
    """

    __slots__ = (
        "block_groups",
        "block_hashes",
        "cached_block_hash_to_block",
        "enable_caching",
        "free_block_queue",
        "num_gpu_blocks",
        "ref_counts",
    )

    def __init__(self, num_gpu_blocks: int, enable_caching: bool, num_groups: int = 1) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.ref_counts = [0] * num_gpu_blocks
        self.block_hashes: list[int | None] = [None] * num_gpu_blocks
        self.block_groups = bytearray(num_gpu_blocks)  # whose content a cached block holds
        self.free_block_queue = FreeKVCacheBlockQueue(range(1, num_gpu_blocks))
        self.cached_block_hash_to_block = [BlockHashToBlockMap() for _ in range(num_groups)]

    def get_num_free_blocks(self) -> int:
        """Returns how many blocks can be taken now, cached ones included."""
        return len(self.free_block_queue)

    def get_cached_block(self, block_hash: int, groups: Sequence[int]) -> list[int] | None:
        """Returns the block with that content in each of the groups, or None when one of them has none."""
        found = []
        for group in groups:
            block = self.cached_block_hash_to_block[group].get_one_block(block_hash)
            if block is None:
                return None
            found.append(block)
        return found

    def cache_full_blocks(
        self, blocks: Sequence[int], block_hashes: Sequence[int], places: Iterable[int], group: int
    ) -> None:
        """Remembers the content of a request's blocks at the given places of its table, null blocks excepted."""
        cached = self.cached_block_hash_to_block[group]
        for i in places:
            block = blocks[i]
            if block == NULL_BLOCK:
                continue
            assert self.block_hashes[block] is None, f"block {block} is cached twice"
            self.block_hashes[block] = block_hashes[i]
            self.block_groups[block] = group
            cached.insert(block_hashes[i], block)

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Takes blocks from the front of the free queue, forgetting what they held."""
        assert num_blocks <= len(self.free_block_queue), f"{num_blocks} blocks asked, {len(self.free_block_queue)} free"
        popleft = self.free_block_queue.popleft
        blocks = [popleft() for _ in range(num_blocks)]
        for block in blocks:
            if self.block_hashes[block] is not None:
                self._evict(block)
            self.ref_counts[block] = 1
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Adds a reference to blocks that were hit; those that were free leave the queue."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if self.ref_counts[block] == 0:
                self.free_block_queue.remove(block)
            self.ref_counts[block] += 1

    def free_blocks(self, ordered_blocks: Iterable[int]) -> None:
        """Gives up a reference to each block; those nobody holds any more go to the free queue.

        Blocks without cached content go to the front (reused first), cached ones to the end (evicted last).

        Args:
            ordered_blocks: in the order in which they are to be evicted.
        """
        evict_first: list[int] = []
        evict_last: list[int] = []
        for block in ordered_blocks:
            if block == NULL_BLOCK:
                continue
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                (evict_first if self.block_hashes[block] is None else evict_last).append(block)
        self.free_block_queue.prepend_n(evict_first)
        self.free_block_queue.append_n(evict_last)

    def _evict(self, block: int) -> None:
        block_hash = self.block_hashes[block]
        assert block_hash is not None
        self.cached_block_hash_to_block[self.block_groups[block]].pop(block_hash, block)
        self.block_hashes[block] = None
