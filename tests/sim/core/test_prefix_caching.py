"""Rules 6 and 7: what stays hit-able, for how long, and what evicts it."""

from tests.factories import add_requests, create_request, create_requests, create_scheduler, hits, num_free_blocks, step


def run_to_end(scheduler, request):
    scheduler.add_request(request)
    while not request.is_finished:
        step(scheduler)


def test_one_block_of_the_pool_is_the_null_block():
    scheduler = create_scheduler(block_size=4, num_gpu_blocks=5, max_model_len=16)
    assert num_free_blocks(scheduler) == 4
    scheduler.add_request(create_request(num_tokens=15))
    scheduler.schedule()
    assert num_free_blocks(scheduler) == 0


def test_a_finished_request_leaves_its_blocks_free_and_hit_able():
    scheduler = create_scheduler(block_size=4, num_gpu_blocks=11)
    run_to_end(scheduler, create_request(0, prompt=[(9, 9)], max_tokens=1))
    assert num_free_blocks(scheduler) == 10
    scheduler.add_request(create_request(1, prompt=[(9, 9)]))
    assert hits(step(scheduler)) == {1: 8}


def test_outputs_are_cached_for_the_next_turn():
    scheduler = create_scheduler(block_size=4)
    first = create_request(0, prompt=[(9, 6)], max_tokens=7)
    run_to_end(scheduler, first)
    scheduler.add_request(create_request(1, prompt=[(9, 6), (first.output_stream, 7), (1, 5)]))
    # 13 tokens of history; the last output was never computed, so 12 are cached.
    assert hits(step(scheduler)) == {1: 12}


def test_the_least_recently_used_prefix_is_evicted_first():
    scheduler = create_scheduler(block_size=4, num_gpu_blocks=7, max_model_len=24)
    for request in create_requests(2, 9, max_tokens=1):
        run_to_end(scheduler, request)
    run_to_end(scheduler, create_request(2, 13, max_tokens=1))  # two blocks hold nothing; two more are needed
    again = [create_request(3, prompt=[(1, 9)], max_tokens=1), create_request(4, prompt=[(0, 9)], max_tokens=1)]
    add_requests(scheduler, again)
    assert hits(step(scheduler)) == {3: 8, 4: 0}


def test_the_tail_of_a_prefix_is_evicted_before_its_beginning():
    scheduler = create_scheduler(block_size=4, num_gpu_blocks=6, max_model_len=20)
    run_to_end(scheduler, create_request(0, prompt=[(9, 17)], max_tokens=1))  # 4 cached blocks, 1 partial
    run_to_end(scheduler, create_request(1, 8, max_tokens=1))  # takes the partial block and one cached
    scheduler.add_request(create_request(2, prompt=[(9, 17)]))
    assert hits(step(scheduler)) == {2: 12}


def test_a_hit_makes_a_prefix_recently_used():
    scheduler = create_scheduler(block_size=4, num_gpu_blocks=7, max_model_len=24)
    for request in create_requests(2, 9, max_tokens=1):
        run_to_end(scheduler, request)
    run_to_end(scheduler, create_request(2, prompt=[(0, 9)], max_tokens=1))  # hits what came first
    run_to_end(scheduler, create_request(3, 13, max_tokens=1))  # evicts
    scheduler.add_request(create_request(4, prompt=[(0, 9)]))
    assert hits(step(scheduler)) == {4: 8}


def test_a_block_somebody_holds_is_not_evicted():
    scheduler = create_scheduler(block_size=4, num_gpu_blocks=9, max_model_len=32)
    holder = create_request(0, prompt=[(9, 9)], max_tokens=20)
    scheduler.add_request(holder)
    for i in range(1, 4):
        run_to_end(scheduler, create_request(i, 12, max_tokens=1))
    scheduler.add_request(create_request(4, prompt=[(9, 9)]))
    assert hits(step(scheduler)) == {4: 8}


def test_hit_blocks_are_shared_and_counted_once():
    scheduler = create_scheduler(block_size=4, num_gpu_blocks=101)
    add_requests(scheduler, create_requests(5, 41, same_prompt=True))
    step(scheduler)
    assert num_free_blocks(scheduler) == 100 - 10 - 5


def test_two_requests_that_computed_the_same_tokens_at_once_keep_their_own_copies():
    scheduler = create_scheduler(block_size=4, long_prefill_token_threshold=6)
    first, second = create_requests(2, 9, same_prompt=True)
    add_requests(scheduler, [first, second])
    assert hits(step(scheduler)) == {0: 0, 1: 4}  # the first computes 6 tokens, the second 5: its block 1 is full first
    step(scheduler)
    manager = scheduler.kv_cache_manager
    (blocks_of_first,), (blocks_of_second,) = manager.get_blocks(first), manager.get_blocks(second)
    assert blocks_of_first[0] == blocks_of_second[0]
    assert blocks_of_first[1] != blocks_of_second[1]
    assert manager.block_pool.block_hashes[blocks_of_first[1]] == manager.block_pool.block_hashes[blocks_of_second[1]]


def test_a_free_hit_block_counts_against_the_free_blocks_of_an_admission():
    scheduler = create_scheduler(block_size=4, num_gpu_blocks=5, max_model_len=16)
    run_to_end(scheduler, create_request(0, prompt=[(9, 13)], max_tokens=1))
    scheduler.add_request(create_request(1, 4, max_tokens=4))
    step(scheduler)
    again = create_request(2, prompt=[(9, 13)])
    scheduler.add_request(again)
    assert hits(step(scheduler)) == {}, "4 blocks are wanted, hit or not, and 3 are free"
    assert again.num_cached_tokens == -1
