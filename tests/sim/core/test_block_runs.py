"""Runs of blocks: what is hit, kept and forgotten is what a dictionary of single blocks would say."""

from __future__ import annotations

import random

import pytest

from sim.core.block_runs import BlockRun
from sim.core.content_tree import ContentNode, ContentTree
from sim.core.fast_block_pool import FastBlockPool
from sim.core.request import Request


def request(number: int, *segments: tuple[int, int]) -> Request:
    return Request(number, segments, 1000, 0, 1000 + number)


class Blocks:
    """The same cache, block by block: what each place holds, in the order of caching."""

    def __init__(self) -> None:
        self.cached: dict[int, list[int]] = {}

    def add(self, run: BlockRun) -> None:
        for place, block in enumerate(run.ids, run.place):
            self.cached.setdefault(place, []).append(block)

    def forget(self, place: int, block: int) -> None:
        self.cached[place].remove(block)
        if not self.cached[place]:
            del self.cached[place]

    def prefix(self, end: int) -> list[int]:
        hits = []
        for place in range(end):
            if place not in self.cached:
                break
            hits.append(self.cached[place][0])
        return hits


def cache(node: ContentNode, run: BlockRun) -> list[BlockRun]:
    """Puts a run on the node's shelf, and returns the runs it was cut into."""
    added = node.shelves[0].add(run.place, run.end, run.ids, None)
    assert added is not None
    pieces = [added]
    while pieces[-1].tail is not None:
        pieces.append(pieces[-1].tail)
    return pieces


@pytest.mark.parametrize("seed", range(40))
def test_duplicates_and_evictions_leave_what_a_dictionary_of_blocks_would(seed: int) -> None:
    rng = random.Random(seed)
    tree, blocks, runs = ContentTree(16, 1), Blocks(), list[BlockRun]()
    path = tree.path_of(request(0, (1, 640)))
    node = path.nodes[0]
    for step in range(200):
        if rng.random() < 0.5:
            place = rng.randrange(0, 36)
            ids = [1000 * step + i for i in range(rng.randint(1, 40 - place))]
            run = BlockRun(place, len(ids), ids)
            blocks.add(run)
            runs += cache(node, run)
        elif runs:
            run = rng.choice(runs)
            evict(run, rng.randint(1, run.num_blocks), blocks)
        end = rng.randrange(1, 41)
        expected = blocks.prefix(end)
        found = path.find_end(0, end)
        assert found == len(expected)
        hit = path.runs_between(0, 0, found) if found else []
        assert [block for piece in hit for block in piece.ids] == expected
        runs += [piece for piece in hit if piece not in runs]
        runs = [piece for known in runs for piece in [known, *parts_of(known, runs)] if piece.num_blocks]


def parts_of(run: BlockRun, known: list[BlockRun]) -> list[BlockRun]:
    """Returns the rests of a run that splits made and nobody has noted yet."""
    rests, rest = [], run.tail
    while rest is not None:
        if rest.num_blocks and all(rest is not other for other in known):
            rests.append(rest)
        rest = rest.tail
    return rests


def evict(run: BlockRun, num_blocks: int, blocks: Blocks) -> None:
    for place, block in list(enumerate(run.ids, run.place))[-num_blocks:]:
        blocks.forget(place, block)
    del run.ids[-num_blocks:]
    run.num_blocks -= num_blocks
    assert run.shelf is not None
    run.shelf.forget_end(run, num_blocks)


def test_equal_chains_of_streams_share_their_nodes_and_others_do_not() -> None:
    tree = ContentTree(16, 1)
    first, second, third = (
        tree.path_of(request(0, (1, 40), (2, 30))),
        tree.path_of(request(1, (1, 40), (0, 0), (2, 99))),
        tree.path_of(request(2, (1, 41), (2, 30))),
    )
    assert first.nodes[:2] == second.nodes[:2]
    assert third.nodes[0] is first.nodes[0]
    assert third.nodes[1] is not first.nodes[1]
    assert first.ends[:2] == [2, 4]  # the third block ends in the second stream


def test_a_node_lives_as_long_as_a_path_or_a_block_needs_it() -> None:
    tree, asker = ContentTree(16, 1), request(0, (1, 40), (2, 30))
    node = tree.path_of(asker).nodes[1]
    run = node.shelves[0].add(2, 4, [7, 8], None)
    assert run is not None
    tree.forget(asker)
    assert tree.path_of(request(1, (1, 40), (2, 30))).nodes[1] is node
    other = request(2, (1, 40), (2, 30))
    tree.path_of(other)
    tree.forget(other)
    run.ids.clear()
    run.num_blocks = 0
    node.shelves[0].forget_end(run, 2)
    assert tree.path_of(request(3, (1, 40), (2, 30))).find_end(0, 4) == 0


def test_a_hit_run_leaves_the_middle_of_the_queue_and_a_split_one_leaves_its_rest() -> None:
    pool, tree = FastBlockPool(11, keeps_ids=True), ContentTree(16, 1)
    path = tree.path_of(request(0, (1, 160)))
    run = path.nodes[0].shelves[0].add(0, 4, pool.get_new_blocks(4), None)
    assert run is not None
    pool.free_runs([run])
    assert pool.get_all_free_blocks() == [5, 6, 7, 8, 9, 10, 4, 3, 2, 1]
    hit = path.runs_between(0, 0, 2)
    assert pool.num_free_of(hit) == 2
    pool.touch(hit)
    assert pool.get_all_free_blocks() == [5, 6, 7, 8, 9, 10, 4, 3]
    assert pool.get_new_blocks(7) == [5, 6, 7, 8, 9, 10, 4]
    assert path.find_end(0, 4) == 3
