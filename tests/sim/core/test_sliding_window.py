"""Rule 12: hybrid models, whose sliding-window groups give blocks back while the request still runs."""

import pytest

from sim.core.block_pool import NULL_BLOCK
from sim.core.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec, get_kv_cache_groups
from tests.factories import create_request, create_scheduler, hits, num_free_blocks, scheduled, step

FULL = FullAttentionSpec()


def create_hybrid_scheduler(window=8, num_sliding_groups=1, **flags):
    groups = (FULL, *[SlidingWindowSpec(window)] * num_sliding_groups)
    return create_scheduler(block_size=4, kv_cache_groups=groups, **flags)


def tables(scheduler, request):
    return [list(blocks) for blocks in scheduler.kv_cache_manager.get_blocks(request)]


@pytest.mark.parametrize(
    ("num_full", "num_sliding", "num_groups"),
    [(2, 2, (1, 1)), (2, 4, (1, 2)), (2, 10, (1, 5)), (10, 2, (5, 1)), (5, 4, (1, 1)), (4, 6, (1, 2)), (4, 5, (1, 1))],
)
def test_layers_are_cut_into_groups_of_equal_size(num_full, num_sliding, num_groups):
    window = SlidingWindowSpec(64)
    groups = get_kv_cache_groups([(FULL, num_full), (window, num_sliding)])
    assert (groups.count(FULL), groups.count(window)) == num_groups


def test_a_model_of_one_kind_of_layer_is_one_group():
    assert get_kv_cache_groups([(FULL, 12), (FULL, 20)]) == (FULL,)
    assert get_kv_cache_groups([(SlidingWindowSpec(8), 12)]) == (SlidingWindowSpec(8),)


def test_groups_stand_in_the_order_in_which_their_layers_first_occur():
    window = SlidingWindowSpec(8)
    assert get_kv_cache_groups([(window, 4), (FULL, 2)]) == (window, window, FULL)


def test_all_groups_draw_from_one_pool():
    scheduler = create_hybrid_scheduler(num_sliding_groups=2, num_gpu_blocks=101)
    scheduler.add_request(create_request(num_tokens=16))
    step(scheduler)
    assert num_free_blocks(scheduler) == 100 - 3 * 4


def test_blocks_wholly_outside_the_window_of_the_next_token_hold_the_null_block():
    scheduler = create_hybrid_scheduler(window=8)
    request = create_request(num_tokens=18)
    scheduler.add_request(request)
    step(scheduler)
    step(scheduler)
    full, sliding = tables(scheduler, request)
    assert NULL_BLOCK not in full
    # The next token is at 18: its window is 11 to 18, and blocks 0 and 1 (tokens 0 to 7) lie before it.
    assert [block == NULL_BLOCK for block in sliding] == [True, True, False, False, False]


def test_a_sliding_group_holds_no_more_than_its_window_and_what_is_in_flight():
    scheduler = create_hybrid_scheduler(window=8, max_num_batched_tokens=16, max_model_len=400)
    request = create_request(num_tokens=200, max_tokens=100)
    scheduler.add_request(request)
    bound = SlidingWindowSpec(8).max_admission_blocks_per_request(16, 400, 4)
    while not request.is_finished:
        step(scheduler)
        held = sum(block != NULL_BLOCK for block in tables(scheduler, request)[1])
        assert held <= bound


def test_a_hit_needs_only_the_last_blocks_of_a_sliding_group():
    scheduler = create_hybrid_scheduler(window=8)
    first = create_request(0, prompt=[(9, 33)], max_tokens=1)
    scheduler.add_request(first)
    step(scheduler)
    second = create_request(1, prompt=[(9, 33)])
    scheduler.add_request(second)
    assert hits(step(scheduler)) == {1: 32}
    full, sliding = tables(scheduler, second)
    assert NULL_BLOCK not in full
    assert [block == NULL_BLOCK for block in sliding[:8]] == [True] * 6 + [False] * 2


@pytest.mark.parametrize(("window", "num_blocks"), [(1, 0), (2, 1), (5, 1), (6, 2), (9, 2), (10, 3)])
def test_the_last_blocks_are_those_the_next_token_attends_to(window, num_blocks):
    assert SlidingWindowSpec(window).contiguous_blocks_for_hit(4) == num_blocks


def test_a_prefix_that_only_full_attention_has_cached_is_cached_at_its_end_for_the_next_one():
    scheduler = create_hybrid_scheduler(window=4)
    prompts = [[(9, 20), (i, 12)] for i in range(3)]
    found = []
    for i, prompt in enumerate(prompts):
        scheduler.add_request(create_request(i, prompt=prompt, max_tokens=1))
        found.append(hits(step(scheduler))[i])
    assert found == [0, 0, 20], "the second finds that the prefix is shared, the third hits it"


def test_admission_counts_a_sliding_group_by_its_own_cap():
    flags = {"window": 8, "max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 80}
    needed = 20 + SlidingWindowSpec(8).max_admission_blocks_per_request(8, 80, 4)
    for num_free, admitted in ((needed, True), (needed - 1, False)):
        scheduler = create_hybrid_scheduler(num_gpu_blocks=num_free + 1, **flags)
        scheduler.add_request(create_request(num_tokens=79))
        assert (scheduled(scheduler.schedule()) == {0: 8}) == admitted


def test_blocks_that_steps_in_flight_still_read_are_kept():
    scheduler = create_hybrid_scheduler(window=8, async_scheduling=True)
    request = create_request(num_tokens=18)
    scheduler.add_request(request)
    first = scheduler.schedule()
    scheduler.schedule()
    assert NULL_BLOCK not in tables(scheduler, request)[1]
    scheduler.update_from_output(first)
    scheduler.schedule()
    assert tables(scheduler, request)[1][:2] == [NULL_BLOCK] * 2


def test_a_model_of_sliding_layers_alone_is_served_from_one_table():
    scheduler = create_scheduler(block_size=4, kv_cache_groups=(SlidingWindowSpec(8),), num_gpu_blocks=101)
    request = create_request(num_tokens=30, max_tokens=20)
    scheduler.add_request(request)
    while not request.is_finished:
        step(scheduler)
        assert num_free_blocks(scheduler) >= 100 - 8
    scheduler.add_request(create_request(1, prompt=[(0, 30)]))
    assert hits(step(scheduler)) == {1: 28}


def test_with_several_windows_a_hit_suits_all_of_them():
    groups = (FULL, SlidingWindowSpec(4), SlidingWindowSpec(12))
    scheduler = create_scheduler(block_size=4, kv_cache_groups=groups)
    scheduler.add_request(create_request(0, prompt=[(9, 33)], max_tokens=1))
    step(scheduler)
    second = create_request(1, prompt=[(9, 33)])
    scheduler.add_request(second)
    assert hits(step(scheduler)) == {1: 32}
    assert [sum(b != NULL_BLOCK for b in table[:8]) for table in tables(scheduler, second)] == [8, 1, 3]
