"""Runs of KV blocks: neighbours in a block table that are held, cached, freed and evicted together.

A long context is a handful of runs, however many blocks it has. A run is split when a part of it meets another fate:
a prompt hits its first half, the free queue gives away its end.

    held by A and B          | run: places 0-99, refs 2 |
    C hits 60 blocks         | run: 0-59, refs 3 |-> tail: 60-99, refs 2 |

Whoever held the run before the split holds its `tail` too; a block table knows from its own places how far to follow.

What happens depends on how many blocks a run has, never on which: their ids ride along where somebody wants to see
them, and elsewhere `ids` stays empty.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.core.content_tree import ContentNode


class BlockRun:
    """Blocks at consecutive places of a block table.

    Attributes:
        place: of the first block.
        num_blocks: how many.
        ids: theirs, in order of place; empty where nobody asked for them.
        refs: how many requests hold them; 0 while they stand in the free queue.
        shelf: where their content is cached; None: it is not.
        is_primary: they are the ones to hit; of blocks with the same content, the one cached first.
        entry: the part of the free queue they stand in, while they are free.
        tail: the rest of the run, if it was split.
    """

    __slots__ = ("entry", "ids", "is_primary", "num_blocks", "place", "refs", "shelf", "tail")

    def __init__(self, place: int, num_blocks: int, ids: list[int]) -> None:
        self.place = place
        self.num_blocks = num_blocks
        self.ids = ids
        self.refs = 1
        self.shelf: RunShelf | None = None
        self.is_primary = False
        self.entry: list[BlockRun] | None = None
        self.tail: BlockRun | None = None

    @property
    def end(self) -> int:
        """The place after the last block."""
        return self.place + self.num_blocks

    def split(self, place: int) -> BlockRun:
        """Cuts the run before a place inside it; returns the rest, to which everything said of the run applies too."""
        num_kept = place - self.place
        rest = BlockRun(place, self.num_blocks - num_kept, self.ids[num_kept:])
        self.num_blocks = num_kept
        del self.ids[num_kept:]
        rest.refs, rest.is_primary = self.refs, self.is_primary
        rest.tail, self.tail = self.tail, rest
        if self.shelf is not None:
            self.shelf.insert_rest(self, rest)
        if self.entry is not None:
            rest.entry = self.entry
            self.entry.insert(self.entry.index(self) + 1, rest)
        return rest


def _place(run: BlockRun) -> int:
    return run.place


class RunShelf:
    """The cached blocks of one content node in one KV cache group.

    Nearly always they are neighbours, from the first place on: then the primary runs say it all. `_present` is there
    from the first gap or second copy of a block on, until the shelf is empty again.

    Attributes:
        first_place: the first place whose block can belong to the node.
        node: the content node.
    """

    __slots__ = ("_duplicates", "_present", "_runs", "first_place", "node")

    def __init__(self, node: ContentNode, first_place: int) -> None:
        self.node = node
        self.first_place = first_place
        self._runs: list[BlockRun] = []  # the primary ones, by place
        self._present: bytearray | None = None  # for each place from the first on, 1 where a block is cached
        self._duplicates: list[BlockRun] | None = None  # in the order of caching

    def find_end(self, end: int) -> int:
        """Returns the place, `end` at most, up to which all blocks from the first on are cached."""
        if self._present is None:
            return min(end, self._end())
        self._trim(self._present)
        found = self._present.find(0, 0, end - self.first_place)
        if found < 0:
            return min(end, self.first_place + len(self._present))
        return self.first_place + found

    def runs_between(self, place: int, end: int) -> list[BlockRun]:
        """Returns the primary runs that cover these places, all cached, cutting those that reach beyond."""
        runs = self._runs
        index = 0 if place == self.first_place else bisect_right(runs, place, key=_place) - 1
        if runs[index].place < place:
            runs[index].split(place)
            index += 1
        first = index
        while runs[index].end < end:
            index += 1
        if runs[index].end > end:
            runs[index].split(end)
        return runs[first : index + 1]

    def add(self, place: int, end: int, ids: list[int], last: BlockRun | None) -> BlockRun | None:
        """Caches the content of a request's own blocks.

        Args:
            place: of the first block.
            end: the place after the last one.
            ids: theirs, where they are kept.
            last: the run before it in the request's block table, to be lengthened where it can be.

        Returns:
            The run they are now, where it was split with its rests as `tail`; None: `last` has taken them over.
        """
        if self._present is not None or place != self._end():
            present = self._look_closely()
            start = place - self.first_place
            if start < len(present):
                run = BlockRun(place, end - place, ids)
                self._add_beside_others(run, present)
                return run
            present.extend(bytes(start - len(present)))
            present += b"\1" * (end - place)
        if last is not None and last.shelf is self and last.is_primary and last.refs == 1 and last.end == place:
            last.num_blocks += end - place
            last.ids += ids
            return None
        run = BlockRun(place, end - place, ids)
        run.shelf, run.is_primary = self, True
        self._runs.append(run)
        self.node.num_users += 1
        return run

    def forget_end(self, run: BlockRun, num_blocks: int) -> None:
        """Forgets the content of blocks that were just taken from the end of a run."""
        is_last = self._duplicates is None and self._runs[-1] is run  # then the content ends where the run ends
        if is_last:
            if not run.num_blocks:
                self._runs.pop()
                self._clear_if_empty()
                self.node.release()
            return
        if run.is_primary:
            present = self._look_closely()
            first = run.end - self.first_place
            if first < len(present):
                present[first : first + num_blocks] = bytes(min(num_blocks, len(present) - first))
        if not run.num_blocks:
            self._remove(run)
        if self._duplicates is not None and run.is_primary:
            self._promote(run.end, run.end + num_blocks)
        if not run.num_blocks:
            self._clear_if_empty()
            self.node.release()

    def is_present(self, num_places: int) -> bytes:
        """Returns, for so many places from the first on, 1 where a block is cached, else 0."""
        if self._present is None:
            present = b"\1" * min(num_places, self._end() - self.first_place)
        else:
            self._trim(self._present)
            present = bytes(self._present[:num_places])
        return present.ljust(num_places, b"\0")

    def insert_rest(self, run: BlockRun, rest: BlockRun) -> None:
        """Takes in the rest of a run that was split."""
        rest.shelf = self
        self.node.num_users += 1
        if run.is_primary:
            runs = self._runs
            if runs[-1] is run:
                runs.append(rest)
            else:
                insort(runs, rest, key=_place)
        else:
            assert self._duplicates is not None
            self._duplicates.insert(self._duplicates.index(run) + 1, rest)

    def _end(self) -> int:
        """Returns the place after the last primary block."""
        return self._runs[-1].end if self._runs else self.first_place

    def _look_closely(self) -> bytearray:
        """Returns what is cached place by place, and keeps it from now on."""
        present = self._present
        if present is None:
            present = self._present = bytearray(self._end() - self.first_place)
            for run in self._runs:
                self._mark(run, present)
        else:
            self._trim(present)
        return present

    def _trim(self, present: bytearray) -> None:
        """Forgets what lies behind the last primary run: its end may have been taken since."""
        del present[self._end() - self.first_place :]

    def _lengthen(self, present: bytearray, end: int) -> None:
        """Has the map reach a place at least; nothing is cached at the new ones."""
        present.extend(bytes(max(0, end - self.first_place - len(present))))

    def _mark(self, run: BlockRun, present: bytearray) -> None:
        start = run.place - self.first_place
        present[start : start + run.num_blocks] = b"\1" * run.num_blocks

    def _clear_if_empty(self) -> None:
        if not self._runs and not self._duplicates:
            self._present = self._duplicates = None

    def _add_beside_others(self, run: BlockRun, present: bytearray) -> None:
        """Caches a run where some places may be cached already, piece by piece."""
        first_place = self.first_place
        self._lengthen(present, run.end)
        piece: BlockRun | None = run
        while piece is not None:
            start, end = piece.place - first_place, piece.end - first_place
            is_primary = not present[start]
            found = present.find(1 if is_primary else 0, start, end)
            rest = piece.split(first_place + found) if found >= 0 else None
            self._put(piece, present, is_primary=is_primary)
            piece = rest

    def _put(self, run: BlockRun, present: bytearray, *, is_primary: bool) -> None:
        run.shelf, run.is_primary = self, is_primary
        self.node.num_users += 1
        if is_primary:
            self._mark(run, present)
            insort(self._runs, run, key=_place)
        elif self._duplicates is None:
            self._duplicates = [run]
        else:
            self._duplicates.append(run)

    def _remove(self, run: BlockRun) -> None:
        if not run.is_primary:
            assert self._duplicates is not None
            self._duplicates.remove(run)
        elif self._runs[-1] is run:
            self._runs.pop()
        else:
            self._runs.remove(run)

    def _promote(self, place: int, end: int) -> None:
        """Makes duplicates primary where the primary blocks are gone: at each place the one cached first."""
        duplicates, present, first_place = self._duplicates, self._present, self.first_place
        assert duplicates is not None
        assert present is not None
        self._lengthen(present, end)
        index = 0
        while index < len(duplicates):
            run = duplicates[index]
            start, stop = max(run.place, place), min(run.end, end)
            gap = present.find(0, start - first_place, stop - first_place) if start < stop else -1
            if gap < 0:
                index += 1
                continue
            start = first_place + gap
            if run.place < start:
                run.split(start)  # the rest is looked at next
                index += 1
                continue
            taken = present.find(1, gap, stop - first_place)
            stop = first_place + taken if taken >= 0 else stop
            if stop < run.end:
                run.split(stop)
            del duplicates[index]
            self.node.num_users -= 1
            self._put(run, present, is_primary=True)
