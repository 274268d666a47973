"""The block pool against a model of it: any sequence of takes, hits, frees and caching keeps the invariants."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sim.core.block_pool import BlockPool
from tests.factories import FUZZ

NUM_BLOCKS = 9
HASHES = st.integers(1, 5)


class BlockPoolMachine(RuleBasedStateMachine):
    """Holders are lists of blocks; the model is a list of free blocks, a list of (content, block), and the holders."""

    enable_caching = True

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, self.enable_caching)
        self.holders: list[list[int]] = []
        self.free = list(range(1, NUM_BLOCKS))
        self.cached: list[tuple[int, int]] = []  # (content, block), in the order of caching

    @rule(num_blocks=st.integers(1, 3))
    def take(self, num_blocks: int) -> None:
        if num_blocks > len(self.free):
            with pytest.raises(AssertionError, match="blocks asked"):
                self.pool.get_new_blocks(num_blocks)
            return
        taken, self.free = self.free[:num_blocks], self.free[num_blocks:]
        self.cached = [(content, block) for content, block in self.cached if block not in taken]
        assert self.pool.get_new_blocks(num_blocks) == taken
        self.holders.append(taken)

    @precondition(lambda self: self.holders and self.enable_caching)
    @rule(data=st.data(), content=HASHES)
    def cache(self, data: st.DataObject, content: int) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.holders))))
        if self.content_of(block) is None:
            self.pool.cache_full_blocks([block], [content], range(1), 0)
            self.cached.append((content, block))

    @rule(content=HASHES)
    def hit(self, content: int) -> None:
        expected = next((block for cached, block in self.cached if cached == content), None)
        found = self.pool.get_cached_block(content, [0])
        assert found == (None if expected is None else [expected])
        if found:
            self.pool.touch(found)
            self.holders.append(found)
            self.free = [block for block in self.free if block != expected]

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.pool.free_blocks(reversed(blocks))
        given_up = [b for b in reversed(blocks) if not any(b in holder for holder in self.holders)]
        uncached = [block for block in given_up if self.content_of(block) is None]
        cached = [block for block in given_up if self.content_of(block) is not None]
        self.free = uncached + self.free + cached

    def content_of(self, block: int) -> int | None:
        return next((content for content, cached in self.cached if cached == block), None)

    @invariant()
    def i7_reference_counts_are_holders(self) -> None:
        for block in range(NUM_BLOCKS):
            assert self.pool.ref_counts[block] == sum(holder.count(block) for holder in self.holders)

    @invariant()
    def i2_every_block_is_held_or_free(self) -> None:
        held = {block for holder in self.holders for block in holder}
        assert held | set(self.free) == set(range(1, NUM_BLOCKS))
        assert not held & set(self.free)

    @invariant()
    def i9_free_blocks_stand_in_eviction_order(self) -> None:
        assert self.pool.free_block_queue.get_all_free_blocks() == self.free

    @invariant()
    def i8_a_block_has_at_most_one_content(self) -> None:
        for block in range(NUM_BLOCKS):
            assert self.pool.block_hashes[block] == self.content_of(block)
        assert len({block for _, block in self.cached}) == len(self.cached)


class BlockPoolMachineWithoutCaching(BlockPoolMachine):
    enable_caching = False


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=60 * FUZZ, stateful_step_count=40)
TestBlockPoolWithoutCaching = BlockPoolMachineWithoutCaching.TestCase
TestBlockPoolWithoutCaching.settings = settings(max_examples=20 * FUZZ, stateful_step_count=30)
