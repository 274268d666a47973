"""Rule 9: a step is scheduled while the one before it executes, with placeholders for tokens not yet known."""

from tests.factories import add_requests, create_request, create_requests, create_scheduler, ids, scheduled


def create_async_scheduler(**flags):
    return create_scheduler(async_scheduling=True, **flags)


def test_the_next_token_is_scheduled_before_the_one_in_flight_is_known():
    scheduler = create_async_scheduler()
    request = create_request(num_tokens=10, max_tokens=5)
    scheduler.add_request(request)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert [scheduled(first), scheduled(second)] == [{0: 10}, {0: 1}]
    assert (request.num_output_tokens, request.num_output_placeholders) == (0, 2)
    assert scheduler.update_from_output(first) == [(request, False)]
    assert (request.num_output_tokens, request.num_output_placeholders) == (1, 1)


def test_a_prompt_chunk_has_no_placeholder():
    scheduler = create_async_scheduler(max_num_batched_tokens=16)
    request = create_request(num_tokens=20)
    scheduler.add_request(request)
    scheduler.schedule()
    assert request.num_output_placeholders == 0
    assert scheduled(scheduler.schedule()) == {0: 4}
    assert request.num_output_placeholders == 1


def test_a_request_whose_last_token_is_in_flight_is_not_scheduled_again():
    scheduler = create_async_scheduler()
    request = create_request(max_tokens=2)
    scheduler.add_request(request)
    first, second = scheduler.schedule(), scheduler.schedule()
    scheduler.update_from_output(first)
    assert scheduler.schedule().is_empty
    assert scheduler.update_from_output(second) == [(request, True)]


def test_an_end_of_sequence_is_seen_one_step_late_and_what_was_computed_for_it_is_dropped():
    scheduler = create_async_scheduler()
    request = create_request(max_tokens=9, eos_tokens=1)
    scheduler.add_request(request)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert scheduled(second) == {0: 1}
    assert scheduler.update_from_output(first) == [(request, True)]
    assert scheduler.update_from_output(second) == []


def test_tokens_not_yet_known_are_not_cached():
    scheduler = create_async_scheduler(block_size=4)
    request = create_request(num_tokens=7, max_tokens=9)
    scheduler.add_request(request)
    first = scheduler.schedule()
    second = scheduler.schedule()  # computes position 7, whose token is still in flight
    (cached,) = scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block
    assert len(cached) == 1
    scheduler.update_from_output(first)  # the token is known; its keys and values are still being computed
    assert len(cached) == 1
    scheduler.update_from_output(second)
    assert len(cached) == 2


def test_the_output_of_a_preempted_request_in_flight_is_delivered_and_not_counted_twice():
    scheduler = create_async_scheduler(block_size=4, num_gpu_blocks=4, max_model_len=12, enable_prefix_caching=False)
    first, last = create_requests(2, 4, max_tokens=8)
    add_requests(scheduler, [first, last])
    in_flight = scheduler.schedule()
    output = scheduler.schedule()
    assert ids(output.preempted) == [1]
    assert scheduler.update_from_output(in_flight) == [(first, False), (last, False)]
    assert (last.num_output_tokens, last.num_computed_tokens, last.num_output_placeholders) == (1, 0, 0)
    assert last.num_stale_output_tokens == 0


def test_a_preempted_request_whose_last_token_was_in_flight_finishes_from_the_waiting_queue():
    scheduler = create_async_scheduler(block_size=4, num_gpu_blocks=4, max_model_len=12)
    first, last = create_request(0, 4, max_tokens=8), create_request(1, 7, max_tokens=1)
    add_requests(scheduler, [first, last])
    in_flight = scheduler.schedule()
    assert ids(scheduler.schedule().preempted) == [1]
    assert scheduler.update_from_output(in_flight) == [(first, False), (last, True)]
    assert len(scheduler.waiting) == 0


def test_an_aborted_request_gets_nothing_of_what_was_in_flight():
    scheduler = create_async_scheduler()
    request, other = create_requests(2)
    add_requests(scheduler, [request, other])
    first, second = scheduler.schedule(), scheduler.schedule()
    scheduler.abort_requests([request])
    assert scheduler.update_from_output(first) == [(other, False)]
    assert scheduler.update_from_output(second) == [(other, False)]
    assert request.num_output_tokens == 0
