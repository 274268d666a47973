"""The block pool of the fast path: the same blocks in the same order as `BlockPool`, for less work a block.

The free queue holds runs, not blocks. What one request gave back at once is an entry: runs in the order of its block
table, given away from the end, since vLLM frees a table from its last block. A free run that is hit leaves its entry,
wherever that stands in the queue.

    front of the queue                                              end of the queue
    [ table of X: run 0-9, run 10-31 ]  [ table of Y: run 0-127 ]   ...
                                  ^ given away first
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from sim.core.block_runs import BlockRun


class FastBlockPool:
    """The free blocks of all KV cache groups, in eviction order.

    Args:
        num_gpu_blocks: all blocks, the null block included.
        keeps_ids: know each block's id; else only how many there are.

    Attributes:
        num_frees: how often blocks were given back; until it changes, there is no more room than before.
    """

    __slots__ = ("_num_empty", "_num_free", "_queue", "num_frees", "num_gpu_blocks")

    def __init__(self, num_gpu_blocks: int, *, keeps_ids: bool) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self._num_free = num_gpu_blocks - 1  # block 0 is the null block
        self.num_frees = 0
        unused = BlockRun(0, self._num_free, list(range(self._num_free, 0, -1)) if keeps_ids else [])
        unused.refs = 0
        self._queue: deque[list[BlockRun]] = deque([[unused]])
        self._num_empty = 0  # entries whose runs were all hit, at most

    def get_num_free_blocks(self) -> int:
        """Returns how many blocks can be taken now, cached ones included."""
        return self._num_free

    def get_all_free_blocks(self) -> list[int]:
        """Returns the ids of the free blocks in eviction order, where they are kept."""
        return [block for entry in self._queue for run in reversed(entry) for block in reversed(run.ids)]

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Takes blocks from the front of the free queue, forgetting what they held.

        Returns:
            Their ids, where they are kept.
        """
        assert num_blocks <= self._num_free, f"{num_blocks} blocks asked, {self._num_free} free"
        self._num_free -= num_blocks
        queue = self._queue
        taken: list[int] = []
        while num_blocks:
            entry = queue[0]
            if not entry:
                queue.popleft()
                continue
            run = entry[-1]
            count = run.num_blocks
            if num_blocks < count:
                count = num_blocks
            else:
                entry.pop()
            run.num_blocks -= count
            num_blocks -= count
            if run.ids:
                taken += run.ids[: -count - 1 : -1]
                del run.ids[-count:]
            if run.shelf is not None:
                run.shelf.forget_end(run, count)
        return taken

    def num_free_of(self, runs: Sequence[BlockRun]) -> int:
        """Returns how many blocks of the runs are free."""
        return sum(run.num_blocks for run in runs if not run.refs)

    def touch(self, runs: Iterable[BlockRun]) -> None:
        """Adds a reference to runs that were hit; those that were free leave the queue."""
        for run in runs:
            if not run.refs:
                entry = run.entry
                assert entry is not None
                entry.remove(run)
                run.entry = None
                self._num_free -= run.num_blocks
                if not entry:
                    self._num_empty += 1
            run.refs += 1
        if self._num_empty > 1000 and self._num_empty > len(self._queue) // 2:
            self._queue = deque(entry for entry in self._queue if entry)
            self._num_empty = 0

    def free_runs(self, runs: Iterable[BlockRun]) -> None:
        """Gives up a reference to each run of a table; those without content are the next to be given away."""
        self.num_frees += 1
        evict_first: list[BlockRun] = []
        evict_last: list[BlockRun] = []
        for run in runs:
            run.refs -= 1
            if not run.refs:
                entry = evict_last if run.shelf is not None else evict_first
                entry.append(run)
                run.entry = entry
                self._num_free += run.num_blocks
        if evict_first:
            self._queue.appendleft(evict_first)
        if evict_last:
            self._queue.append(evict_last)
