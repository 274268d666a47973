"""What the scheduler is configured with: vLLM's own flags, under vLLM's own names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec

SchedulingPolicy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one scheduling step and the order of admission."""

    max_num_seqs: int
    """Requests in `running` at most."""

    max_num_batched_tokens: int
    """The token budget of a step."""

    max_model_len: int
    """Prompt plus output tokens of one request at most."""

    enable_chunked_prefill: bool = True
    """Whether a prompt may be split over several steps."""

    long_prefill_token_threshold: int = 0
    """Tokens one request gets in a step at most; 0 is no cap. Ignored while a request is alone."""

    long_prefill_token_threshold_adaptive: bool = False
    """Raises the threshold to a fair share of the budget, `max_num_batched_tokens // requests`."""

    policy: SchedulingPolicy = "fcfs"

    async_scheduling: bool = False
    """Schedules step n+1 while step n executes (a batch queue of two)."""

    pipeline_parallel_size: int = 1
    """Stages that work on a batch each at the same time."""

    max_num_active_seqs: int | None = None
    """Requests admitted to `running` at most, where it is to differ from max_num_seqs."""

    watermark: float = 0.0
    """Share of all blocks that an admission must leave free while something is running."""

    scheduler_reserve_full_isl: bool = True
    """Admits a request only if all its tokens fit in the free blocks now, not just its first chunk."""

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs})"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_model_len "
                f"({self.max_model_len}) when chunked prefill is off: longer prompts could never be scheduled"
            )

    @property
    def num_seats(self) -> int:
        """Requests in `running` at most, by either flag."""
        if self.max_num_active_seqs is None:
            return self.max_num_seqs
        return min(self.max_num_seqs, self.max_num_active_seqs)

    @property
    def batch_queue_size(self) -> int:
        """Batches in flight at most: one a stage, one more when scheduling is asynchronous."""
        return self.pipeline_parallel_size + 1 if self.async_scheduling else self.pipeline_parallel_size

    @property
    def max_in_flight_tokens(self) -> int:
        """Tokens scheduled and not yet settled at most: a full budget for every batch in flight."""
        return self.batch_queue_size * self.max_num_batched_tokens


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The pool of KV blocks."""

    num_gpu_blocks: int
    """All blocks, the null block included: one fewer can be used."""

    block_size: int = 16
    """Tokens a block holds."""

    enable_prefix_caching: bool = True

    kv_cache_groups: tuple[KVCacheSpec, ...] = (FullAttentionSpec(),)
    """One block table a group; every group draws from the one pool."""

    prefix_cache_retention_interval: int | None = 0
    """Tokens between the places where sliding-window groups stay hit-able. 0: only at the end of the prompt and where a
    shared prefix ends; None: everywhere. A positive interval must be a multiple of the block size."""

    def __post_init__(self) -> None:
        if self.num_gpu_blocks < 2:
            raise ValueError(f"num_gpu_blocks ({self.num_gpu_blocks}) must be at least 2: one is the null block")
        if self.block_size < 1:
            raise ValueError(f"block_size ({self.block_size}) must be positive")
        interval = self.prefix_cache_retention_interval
        if interval is not None and (interval < 0 or interval % self.block_size):
            raise ValueError(
                f"prefix_cache_retention_interval ({interval}) must be a multiple of block_size ({self.block_size})"
            )
        if not self.kv_cache_groups:
            raise ValueError("kv_cache_groups must hold at least one group")
