"""Flags that cannot work together are refused with their values and the way out."""

import pytest

from sim.core.config import CacheConfig, SchedulerConfig


def test_a_budget_below_max_num_seqs_is_refused():
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(8\) must be at least max_num_seqs \(16\)"):
        SchedulerConfig(16, 8, 100)


def test_without_chunked_prefill_the_budget_must_hold_the_longest_prompt():
    with pytest.raises(ValueError, match=r"\(64\) must be at least max_model_len \(100\) when chunked prefill is off"):
        SchedulerConfig(16, 64, 100, enable_chunked_prefill=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_gpu_blocks": 1}, r"num_gpu_blocks \(1\) must be at least 2"),
        ({"num_gpu_blocks": 9, "block_size": 0}, r"block_size \(0\) must be positive"),
        (
            {"num_gpu_blocks": 9, "prefix_cache_retention_interval": 24},
            r"\(24\) must be a multiple of block_size \(16\)",
        ),
        ({"num_gpu_blocks": 9, "kv_cache_groups": ()}, "must hold at least one group"),
    ],
)
def test_a_pool_that_cannot_work_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        CacheConfig(**fields)


def test_asynchronous_scheduling_is_a_batch_queue_of_two():
    assert SchedulerConfig(1, 64, 64).batch_queue_size == 1
    assert SchedulerConfig(1, 64, 64, async_scheduling=True).batch_queue_size == 2
    assert SchedulerConfig(1, 64, 64, async_scheduling=True).max_in_flight_tokens == 128
