"""Schedulers and requests for tests, made with few words: only what the test is about is said."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.fast_block_pool import FastBlockPool
from sim.core.fast_kv_cache_manager import FastKVCacheManager
from sim.core.fast_scheduler import FastScheduler
from sim.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec
from sim.core.output import SchedulerOutput
from sim.core.request import Request, Segment
from sim.core.scheduler import Scheduler

REPOSITORY = Path(__file__).parents[1]
FUZZ = int(os.environ.get("HEADCOUNT_FUZZ", "1"))  # how many times as many random examples
OUTPUT_STREAM = 1_000_000  # outputs of request i are the stream OUTPUT_STREAM + i


def create_scheduler(
    *,
    fast: bool = False,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 8_192,
    max_model_len: int = 8_192,
    block_size: int = 16,
    num_gpu_blocks: int = 10_001,
    enable_prefix_caching: bool = True,
    kv_cache_groups: tuple[KVCacheSpec, ...] = (FullAttentionSpec(),),
    **flags: Any,
) -> Scheduler:
    """Returns a reference scheduler with plenty of everything but what the test takes away (or a fast one)."""
    scheduler_config = SchedulerConfig(max_num_seqs, max_num_batched_tokens, max_model_len, **flags)
    cache_config = CacheConfig(num_gpu_blocks, block_size, enable_prefix_caching, kv_cache_groups)
    if fast:
        return FastScheduler(scheduler_config, cache_config, lists_blocks=True)
    return Scheduler(scheduler_config, cache_config)


def create_request(
    request_id: int = 0, num_tokens: int = 10, *, prompt: Sequence[Segment] = (), max_tokens: int = 16, **fields: Any
) -> Request:
    """Returns a request: by default with a prompt of its own, arriving in the order of the ids."""
    return Request(
        request_id,
        tuple(prompt) or ((request_id, num_tokens),),
        max_tokens,
        fields.pop("arrival_time", request_id),
        OUTPUT_STREAM + request_id,
        **fields,
    )


def create_requests(
    num_requests: int, num_tokens: int = 10, *, same_prompt: bool = False, first_id: int = 0, **fields: Any
) -> list[Request]:
    """Returns requests, each with a prompt of its own or all with the same one."""
    ids = range(first_id, first_id + num_requests)
    if same_prompt:
        return [create_request(i, prompt=[(first_id, num_tokens)], **fields) for i in ids]
    return [create_request(i, num_tokens, **fields) for i in ids]


def add_requests(scheduler: Scheduler, requests: Iterable[Request]) -> None:
    """Sends requests to a scheduler."""
    for request in requests:
        scheduler.add_request(request)


def step(scheduler: Scheduler) -> SchedulerOutput:
    """Schedules a step and takes in its tokens."""
    output = scheduler.schedule()
    scheduler.update_from_output(output)
    return output


def scheduled(output: SchedulerOutput) -> dict[int, int]:
    """Returns a step's tokens by request id."""
    return {request.request_id: num_tokens for request, num_tokens in output.num_scheduled_tokens.items()}


def hits(output: SchedulerOutput) -> dict[int, int]:
    """Returns a step's prefix hits by request id."""
    return {request.request_id: num_tokens for request, num_tokens in output.hits.items()}


def ids(requests: Iterable[Request]) -> list[int]:
    """Returns the ids of requests."""
    return [request.request_id for request in requests]


def num_free_blocks(scheduler: Scheduler) -> int:
    """Returns how many blocks can be taken."""
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def free_blocks(scheduler: Scheduler) -> list[int]:
    """Returns the free blocks in eviction order."""
    pool = scheduler.kv_cache_manager.block_pool
    return (
        pool.get_all_free_blocks() if isinstance(pool, FastBlockPool) else pool.free_block_queue.get_all_free_blocks()
    )


def reference_counts(scheduler: Scheduler) -> list[int]:
    """Returns how many hold each block."""
    manager = scheduler.kv_cache_manager
    return manager.reference_counts() if isinstance(manager, FastKVCacheManager) else manager.block_pool.ref_counts


def shared_folder() -> Path | None:
    """Returns the folder with recorded data that is not part of the repository, or None."""
    candidates = [REPOSITORY.parent / "shared"]
    if "HEADCOUNT_SHARED" in os.environ:
        candidates.insert(0, Path(os.environ["HEADCOUNT_SHARED"]))
    return next((folder for folder in candidates if folder.is_dir()), None)
