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

    Attributes:
        num_frees: how often blocks were given back; until it changes, there is no more room than before.
    """

    __slots__ = ("_num_empty", "_num_free", "_queue", "num_frees", "num_gpu_blocks")

    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self._num_free = num_gpu_blocks - 1
        self.num_frees = 0
        unused = BlockRun(0, list(range(num_gpu_blocks - 1, 0, -1)))  # block 0 is the null block
        unused.refs = 0
        self._queue: deque[list[BlockRun]] = deque([[unused]])
        self._num_empty = 0  # entries whose runs were all hit, at most

    def get_num_free_blocks(self) -> int:
        """Returns how many blocks can be taken now, cached ones included."""
        return self._num_free

    def get_all_free_blocks(self) -> list[int]:
        """Returns the free blocks in eviction order."""
        return [block for entry in self._queue for run in reversed(entry) for block in reversed(run.blocks)]

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Takes blocks from the front of the free queue, forgetting what they held."""
        assert num_blocks <= self._num_free, f"{num_blocks} blocks asked, {self._num_free} free"
        self._num_free -= num_blocks
        entry = self._queue[0] if num_blocks else None
        if not entry or num_blocks >= len(entry[-1].blocks):
            return self._take_runs(num_blocks)
        return _take_end(entry[-1], num_blocks)

    def _take_runs(self, num_blocks: int) -> list[int]:
        """Takes blocks of more than one run, or all of one."""
        queue = self._queue
        taken: list[int] = []
        while num_blocks:
            entry = queue[0]
            if not entry:
                queue.popleft()
                continue
            run = entry[-1]
            blocks = run.blocks
            if num_blocks < len(blocks):
                return taken + _take_end(run, num_blocks)
            entry.pop()
            run.blocks = []
            blocks.reverse()
            taken = taken + blocks if taken else blocks
            num_blocks -= len(blocks)
            if run.shelf is not None:
                run.shelf.forget_end(run, len(blocks))
        return taken

    def num_free_of(self, runs: Sequence[BlockRun]) -> int:
        """Returns how many blocks of the runs are free."""
        return sum(len(run.blocks) for run in runs if not run.refs)

    def touch(self, runs: Iterable[BlockRun]) -> None:
        """Adds a reference to runs that were hit; those that were free leave the queue."""
        for run in runs:
            if not run.refs:
                entry = run.entry
                assert entry is not None
                entry.remove(run)
                run.entry = None
                self._num_free -= len(run.blocks)
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
                self._num_free += len(run.blocks)
        if evict_first:
            self._queue.appendleft(evict_first)
        if evict_last:
            self._queue.append(evict_last)


def _take_end(run: BlockRun, num_blocks: int) -> list[int]:
    """Takes the last blocks of a free run that has more, the very last first; their content is forgotten."""
    blocks = run.blocks
    taken = blocks[-num_blocks:]
    del blocks[-num_blocks:]
    taken.reverse()
    if run.shelf is not None:
        run.shelf.forget_end(run, num_blocks)
    return taken
