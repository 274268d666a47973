"""The block pool: which block is taken next, what a freed block still remembers, and who may forget it."""

import pytest

from sim.core.block_pool import NULL_BLOCK, BlockHashToBlockMap, BlockPool, FreeKVCacheBlockQueue


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(5, enable_caching=True)
    assert pool.get_num_free_blocks() == 4
    assert pool.get_new_blocks(4) == [1, 2, 3, 4]


def test_asking_for_more_blocks_than_are_free_is_a_broken_invariant():
    pool = BlockPool(3, enable_caching=True)
    with pytest.raises(AssertionError, match="3 blocks asked, 2 free"):
        pool.get_new_blocks(3)


def test_uncached_blocks_are_reused_first_and_cached_ones_last():
    pool = BlockPool(7, enable_caching=True)
    blocks = pool.get_new_blocks(3)
    pool.cache_full_blocks(blocks, [11, 12], range(2), 0)
    pool.free_blocks(reversed(blocks))
    assert pool.free_block_queue.get_all_free_blocks() == [3, 4, 5, 6, 2, 1]


def test_without_caching_freed_blocks_go_to_the_front_in_the_order_given():
    pool = BlockPool(6, enable_caching=False)
    blocks = pool.get_new_blocks(3)
    pool.free_blocks(reversed(blocks))
    assert pool.free_block_queue.get_all_free_blocks() == [3, 2, 1, 4, 5]


def test_a_block_is_free_only_when_its_last_holder_gave_it_up():
    pool = BlockPool(3, enable_caching=True)
    blocks = pool.get_new_blocks(1)
    pool.touch(blocks)
    pool.free_blocks(blocks)
    assert pool.get_num_free_blocks() == 1
    pool.free_blocks(blocks)
    assert pool.get_num_free_blocks() == 2


def test_a_cached_block_can_be_hit_while_it_is_free_and_then_leaves_the_queue():
    pool = BlockPool(4, enable_caching=True)
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(blocks, [11], range(1), 0)
    pool.free_blocks(blocks)
    assert pool.get_cached_block(11, [0]) == blocks
    pool.touch(blocks)
    assert pool.free_block_queue.get_all_free_blocks() == [2, 3]


def test_taking_a_cached_block_forgets_its_content():
    pool = BlockPool(2, enable_caching=True)
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(blocks, [11], range(1), 0)
    pool.free_blocks(blocks)
    assert pool.get_new_blocks(1) == blocks
    assert pool.get_cached_block(11, [0]) is None


def test_of_several_blocks_with_one_content_the_first_cached_is_hit_and_the_others_survive_it():
    pool = BlockPool(4, enable_caching=True)
    first, second = pool.get_new_blocks(2)
    pool.cache_full_blocks([first], [11], range(1), 0)
    pool.cache_full_blocks([second], [11], range(1), 0)
    assert pool.get_cached_block(11, [0]) == [first]
    pool.free_blocks([first])
    assert pool.get_new_blocks(2) == [3, first]
    assert pool.get_cached_block(11, [0]) == [second]


def test_the_same_content_of_two_groups_is_different_data():
    pool = BlockPool(3, enable_caching=True, num_groups=2)
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(blocks, [11], range(1), 0)
    assert pool.get_cached_block(11, [0]) == blocks
    assert pool.get_cached_block(11, [1]) is None
    assert pool.get_cached_block(11, [0, 1]) is None


def test_null_blocks_are_neither_counted_nor_cached_nor_freed():
    pool = BlockPool(3, enable_caching=True)
    pool.touch([NULL_BLOCK])
    pool.cache_full_blocks([NULL_BLOCK], [11], range(1), 0)
    pool.free_blocks([NULL_BLOCK])
    assert pool.get_num_free_blocks() == 2
    assert pool.get_cached_block(11, [0]) is None
    assert pool.ref_counts[NULL_BLOCK] == 0


def test_caching_a_block_twice_is_a_broken_invariant():
    pool = BlockPool(3, enable_caching=True)
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(blocks, [11], range(1), 0)
    with pytest.raises(AssertionError, match="block 1 is cached twice"):
        pool.cache_full_blocks(blocks, [12], range(1), 0)


def test_the_free_queue_keeps_order_at_both_ends():
    queue = FreeKVCacheBlockQueue([5, 6])
    queue.append_n([7, 8])
    queue.prepend_n([3, 4])
    queue.remove(6)
    assert queue.get_all_free_blocks() == [3, 4, 5, 7, 8]
    assert queue.popleft() == 3
    assert len(queue) == 4


def test_forgetting_the_last_block_with_a_content_forgets_the_content():
    cache = BlockHashToBlockMap()
    cache.insert(11, 1)
    cache.insert(11, 2)
    cache.pop(11, 1)
    assert cache.get_one_block(11) == 2
    cache.pop(11, 2)
    assert cache.get_one_block(11) is None
    assert len(cache) == 0


def test_forgetting_a_block_that_does_not_have_the_content_is_a_broken_invariant():
    cache = BlockHashToBlockMap()
    cache.insert(11, 1)
    with pytest.raises(AssertionError, match="hash 11 is in block 1, not 2"):
        cache.pop(11, 2)
