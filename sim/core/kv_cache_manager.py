"""KV blocks for requests: prefix lookup, allocation or refusal, and release."""

from __future__ import annotations

from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.kv_cache_coordinator import Blocks, KVCacheCoordinator
from sim.core.request import Request


class KVCacheManager:
    """What the scheduler asks for slots."""

    def __init__(self, cache_config: CacheConfig, scheduler_config: SchedulerConfig) -> None:
        self.block_size = cache_config.block_size
        self.max_model_len = scheduler_config.max_model_len
        self.enable_caching = cache_config.enable_prefix_caching
        self.coordinator = KVCacheCoordinator(cache_config, scheduler_config)
        self.block_pool = self.coordinator.block_pool
        self.watermark_blocks = int(scheduler_config.watermark * cache_config.num_gpu_blocks)
        self.empty_kv_cache_blocks: Blocks = tuple(() for _ in cache_config.kv_cache_groups)

    def get_computed_blocks(self, request: Request) -> tuple[Blocks, int]:
        """Returns the cached blocks of the longest prefix of the request, and the tokens they hold.

        At least the last token is always computed (its logits are needed), so a fully cached request hits one token
        less, rounded down to whole blocks. A prefix that full attention has cached further than a sliding-window group
        is noted in the request: that group will cache its tail there, for the next one to hit.
        """
        if not self.enable_caching:
            return self.empty_kv_cache_blocks, 0
        max_num_blocks = (request.num_tokens - 1) // self.block_size
        hashes = request.hash_blocks(max_num_blocks, self.block_size)
        blocks, num_blocks, num_shared_blocks = self.coordinator.find_longest_cache_hit(hashes, max_num_blocks)
        request.shared_prefix_boundary = num_shared_blocks * self.block_size if num_shared_blocks > num_blocks else 0
        return (blocks if num_blocks else self.empty_kv_cache_blocks), num_blocks * self.block_size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Blocks | None = None,
        *,
        admission: bool = False,
        full_sequence_must_fit: bool = False,
        has_scheduled_reqs: bool = True,
    ) -> Blocks | None:
        """Gives the request slots for `num_new_tokens` more tokens, or returns None and changes nothing it holds.

        Args:
            request: the request.
            num_new_tokens: tokens to be computed in this step.
            num_new_computed_tokens: tokens of a new prefix hit.
            new_computed_blocks: the blocks of that hit.
            admission: the request comes from the waiting queue; the watermark then stays free as well.
            full_sequence_must_fit: admit only if all its tokens would fit now, not just this chunk.
            has_scheduled_reqs: something is running; an empty engine ignores the watermark.

        Returns:
            The newly taken blocks of each group (not the hit ones).
        """
        coordinator = self.coordinator
        hits = self.empty_kv_cache_blocks if new_computed_blocks is None else new_computed_blocks
        num_computed_tokens = request.num_computed_tokens + num_new_computed_tokens
        watermark_blocks = self.watermark_blocks if admission and has_scheduled_reqs else 0

        if full_sequence_must_fit:
            num_blocks = coordinator.get_num_blocks_to_allocate(
                request,
                min(request.num_tokens, self.max_model_len),
                hits,
                min(num_computed_tokens, self.max_model_len),
                apply_admission_cap=True,
            )
            if num_blocks + watermark_blocks > self.block_pool.get_num_free_blocks():
                return None

        # Before taking blocks, give back those outside the window, even if this allocation then fails.
        coordinator.remove_skipped_blocks(request, max(0, num_computed_tokens - request.num_in_flight_tokens))
        num_slots = min(num_computed_tokens + num_new_tokens, self.max_model_len)
        num_blocks = coordinator.get_num_blocks_to_allocate(request, num_slots, hits, num_computed_tokens)
        if num_blocks + watermark_blocks > self.block_pool.get_num_free_blocks():
            return None

        if hits is not self.empty_kv_cache_blocks:
            coordinator.allocate_new_computed_blocks(request, hits, num_computed_tokens)
        new_blocks = coordinator.allocate_new_blocks(request, num_slots)
        # Only known tokens are cached: in asynchronous scheduling the newest are still placeholders.
        coordinator.cache_blocks(request, min(num_computed_tokens + num_new_tokens, request.num_tokens))
        return new_blocks

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Remembers the content of the request's full blocks."""
        self.coordinator.cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        """Gives up all blocks of the request."""
        self.coordinator.free(request)

    def get_blocks(self, request: Request) -> Blocks:
        """Returns the request's block table in each group."""
        return self.coordinator.get_blocks(request)
