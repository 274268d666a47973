"""Rules 3, 4, 5 and 10: who is admitted, in which order, and what stops admission."""

import pytest

from sim.core.request import RequestStatus
from tests.factories import (
    add_requests,
    create_request,
    create_requests,
    create_scheduler,
    hits,
    ids,
    num_free_blocks,
    scheduled,
    step,
)


def test_requests_are_admitted_in_order_until_the_budget_is_spent():
    scheduler = create_scheduler(max_num_batched_tokens=25)
    add_requests(scheduler, create_requests(3, 10))
    assert scheduled(scheduler.schedule()) == {0: 10, 1: 10, 2: 5}


def test_no_more_run_than_max_num_seqs():
    scheduler = create_scheduler(max_num_seqs=2)
    add_requests(scheduler, create_requests(3))
    assert scheduled(scheduler.schedule()) == {0: 10, 1: 10}
    assert ids(scheduler.waiting) == [2]


def test_no_more_are_admitted_than_max_num_active_seqs():
    scheduler = create_scheduler(max_num_seqs=4, max_num_active_seqs=1)
    add_requests(scheduler, create_requests(3))
    assert scheduled(scheduler.schedule()) == {0: 10}


def test_a_head_that_does_not_fit_is_not_skipped():
    scheduler = create_scheduler(block_size=4, num_gpu_blocks=5, max_model_len=16)
    add_requests(scheduler, [create_request(0, 8), create_request(1, 12), create_request(2, 1)])
    assert scheduled(scheduler.schedule()) == {0: 8}
    assert ids(scheduler.waiting) == [1, 2]


def test_by_priority_the_most_urgent_is_admitted_first():
    scheduler = create_scheduler(max_num_seqs=2, policy="priority")
    add_requests(scheduler, [create_request(i, priority=priority) for i, priority in enumerate([2, 1, 1, 0])])
    assert list(scheduled(scheduler.schedule())) == [3, 1]


def test_of_equal_priority_and_arrival_the_lower_id_is_admitted_first():
    scheduler = create_scheduler(max_num_seqs=1, policy="priority")
    add_requests(scheduler, [create_request(i, arrival_time=7) for i in (2, 1)])
    assert list(scheduled(scheduler.schedule())) == [1]


def test_without_chunked_prefill_a_prompt_beyond_the_rest_of_the_budget_stops_the_scan():
    scheduler = create_scheduler(max_num_batched_tokens=64, max_model_len=64, enable_chunked_prefill=False)
    add_requests(scheduler, [create_request(0, 40), create_request(1, 30), create_request(2, 5)])
    assert scheduled(step(scheduler)) == {0: 40}
    assert scheduled(step(scheduler)) == {0: 1, 1: 30, 2: 5}


def test_without_chunked_prefill_the_threshold_applies_before_the_budget_is_looked_at():
    scheduler = create_scheduler(
        max_num_batched_tokens=64, max_model_len=64, enable_chunked_prefill=False, long_prefill_token_threshold=20
    )
    add_requests(scheduler, [create_request(0, 40), create_request(1, 50)])
    assert scheduled(step(scheduler)) == {0: 20, 1: 20}


def test_by_default_a_request_is_admitted_only_if_all_its_tokens_fit_now():
    for reserve, expected in ((True, {0: 4}), (False, {0: 4, 1: 12})):
        scheduler = create_scheduler(
            block_size=4,
            num_gpu_blocks=5,
            max_model_len=16,
            max_num_batched_tokens=16,
            scheduler_reserve_full_isl=reserve,
        )
        add_requests(scheduler, [create_request(0, 4), create_request(1, 13)])
        assert scheduled(scheduler.schedule()) == expected


def test_the_watermark_stays_free_when_something_is_running():
    flags = {"block_size": 4, "num_gpu_blocks": 11, "max_model_len": 40, "watermark": 0.2}  # 2 blocks
    scheduler = create_scheduler(**flags)
    scheduler.add_request(create_request(0, 40))
    assert scheduled(scheduler.schedule()) == {0: 40}, "an empty engine ignores it"

    scheduler = create_scheduler(**flags)
    add_requests(scheduler, [create_request(0, 4), create_request(1, 32)])
    assert scheduled(scheduler.schedule()) == {0: 4}, "9 free, 8 wanted, 2 to stay free"

    scheduler = create_scheduler(**flags)
    add_requests(scheduler, [create_request(0, 4), create_request(1, 28)])
    assert scheduled(scheduler.schedule()) == {0: 4, 1: 28}


def test_the_watermark_does_not_hold_back_running_requests():
    scheduler = create_scheduler(block_size=4, num_gpu_blocks=11, max_model_len=40, watermark=0.9)
    scheduler.add_request(create_request(0, 36, max_tokens=4))
    step(scheduler)
    assert scheduled(step(scheduler)) == {0: 1}
    assert num_free_blocks(scheduler) == 0


def test_a_shared_prefix_is_hit_in_whole_blocks():
    scheduler = create_scheduler(block_size=4)
    scheduler.add_request(create_request(0, prompt=[(9, 10)]))
    step(scheduler)
    scheduler.add_request(create_request(1, prompt=[(9, 10), (1, 5)]))
    output = step(scheduler)
    assert hits(output) == {1: 8}
    assert scheduled(output)[1] == 7


@pytest.mark.parametrize(("num_tokens", "hit"), [(16, 12), (17, 16), (15, 12), (4, 0), (3, 0)])
def test_a_full_hit_still_computes_at_least_the_last_token_rounded_down_to_whole_blocks(num_tokens, hit):
    scheduler = create_scheduler(block_size=4)
    first, second = create_requests(2, num_tokens, same_prompt=True)
    scheduler.add_request(first)
    step(scheduler)
    scheduler.add_request(second)
    output = step(scheduler)
    assert hits(output) == {1: hit}
    assert scheduled(output)[1] == num_tokens - hit


def test_requests_admitted_in_one_step_share_blocks_computed_in_that_very_step():
    scheduler = create_scheduler(block_size=4)
    add_requests(scheduler, create_requests(2, 9, same_prompt=True))
    output = scheduler.schedule()
    assert hits(output) == {0: 0, 1: 8}
    assert [list(blocks[0]) for blocks in output.new_blocks.values()] == [[1, 2, 3], [1, 2, 4]]


def test_a_disabled_cache_hits_nothing():
    scheduler = create_scheduler(block_size=4, enable_prefix_caching=False)
    add_requests(scheduler, create_requests(2, 9, same_prompt=True))
    assert hits(scheduler.schedule()) == {0: 0, 1: 0}


def test_hits_and_queries_of_first_admissions_are_counted():
    scheduler = create_scheduler(block_size=4)
    add_requests(scheduler, create_requests(2, 9, same_prompt=True))
    output = scheduler.schedule()
    assert (output.num_prefix_queries, output.num_prefix_hits) == (18, 8)


def test_an_aborted_request_leaves_whichever_queue_it_stands_in_and_frees_its_blocks():
    scheduler = create_scheduler(max_num_seqs=1)
    running, waiting = create_requests(2, 40)
    add_requests(scheduler, [running, waiting])
    output = scheduler.schedule()
    scheduler.abort_requests([running, waiting])
    assert running.status == waiting.status == RequestStatus.FINISHED_ABORTED
    assert not scheduler.has_unfinished_requests()
    assert num_free_blocks(scheduler) == 10_000
    assert scheduler.update_from_output(output) == [], "what was in flight is dropped"


def test_aborting_a_finished_request_changes_nothing():
    scheduler = create_scheduler()
    request = create_request(max_tokens=1)
    scheduler.add_request(request)
    step(scheduler)
    scheduler.abort_requests([request])
    assert request.status == RequestStatus.FINISHED_LENGTH_CAPPED
