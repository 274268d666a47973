"""The block tables of one KV cache group: full attention, or a sliding window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sim.core.block_pool import NULL_BLOCK, BlockPool
from sim.core.kv_cache_interface import SlidingWindowSpec
from sim.core.request import Request


class FullAttentionManager:
    """Block tables of a group in which a request holds every block until it ends.

    Args:
        block_pool: the pool shared by all groups.
        block_size: tokens a block.
        group: this group's index.
    """

    def __init__(self, block_pool: BlockPool, block_size: int, group: int) -> None:
        self.block_pool = block_pool
        self.block_size = block_size
        self.group = group
        self.max_admission_blocks_per_request: int | None = None
        self.req_to_blocks: dict[Request, list[int]] = {}
        self.num_cached_block: dict[Request, int] = {}  # full blocks of a request already in the cache

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:  # noqa: ARG002 - the sliding group uses it
        """Returns how many leading tokens the next token no longer attends to."""
        return 0

    def get_num_blocks_to_allocate(
        self,
        request: Request,
        num_tokens: int,
        new_computed_blocks: Sequence[int],
        total_computed_tokens: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """Returns how many free blocks it takes to give the request `num_tokens` slots in this group.

        Hit blocks that are free count too: touching them takes them out of the free queue.
        """
        num_required_blocks = -(-num_tokens // self.block_size)
        if apply_admission_cap and self.max_admission_blocks_per_request is not None:
            num_required_blocks = min(num_required_blocks, self.max_admission_blocks_per_request)
        num_req_blocks = len(self.req_to_blocks.get(request, ()))
        if request in self.num_cached_block:
            # A running request has no new hits, and its blocks were counted when they were taken.
            return max(num_required_blocks - num_req_blocks, 0)
        num_skipped_blocks = self.get_num_skipped_tokens(total_computed_tokens) // self.block_size
        num_local_computed_blocks = len(new_computed_blocks) + num_req_blocks
        num_new_blocks = max(num_required_blocks - max(num_skipped_blocks, num_local_computed_blocks), 0)
        ref_counts = self.block_pool.ref_counts
        hits_in_window = new_computed_blocks[max(0, num_skipped_blocks - num_req_blocks) :]
        num_evictable_blocks = sum(ref_counts[block] == 0 and block != NULL_BLOCK for block in hits_in_window)
        return num_new_blocks + num_evictable_blocks

    def add_local_computed_blocks(
        self, request: Request, new_computed_blocks: Sequence[int], num_computed_tokens: int
    ) -> None:
        """Starts the request's block table with the blocks its prefix hit; skipped places hold the null block."""
        num_skipped_blocks = self.get_num_skipped_tokens(num_computed_tokens) // self.block_size
        hits = new_computed_blocks[num_skipped_blocks:]
        self.block_pool.touch(hits)
        self.req_to_blocks[request] = [NULL_BLOCK] * num_skipped_blocks + list(hits)
        self.num_cached_block[request] = num_skipped_blocks + len(hits)

    def allocate_new_blocks(self, request: Request, num_tokens: int) -> list[int]:
        """Takes new blocks until the request has `num_tokens` slots, and returns them."""
        blocks = self.req_to_blocks.setdefault(request, [])
        num_new_blocks = -(-num_tokens // self.block_size) - len(blocks)
        if num_new_blocks <= 0:
            return []
        new_blocks = self.block_pool.get_new_blocks(num_new_blocks)
        blocks += new_blocks
        return new_blocks

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Remembers the content of the blocks that the first `num_tokens` tokens fill."""
        num_cached_blocks = self.num_cached_block.get(request, 0)
        num_full_blocks = num_tokens // self.block_size
        if num_cached_blocks >= num_full_blocks:
            return
        hashes = request.hash_blocks(num_full_blocks, self.block_size)
        places = self.reachable_blocks(request, num_cached_blocks, num_full_blocks)
        self.block_pool.cache_full_blocks(self.req_to_blocks[request], hashes, places, self.group)
        self.num_cached_block[request] = num_full_blocks

    def reachable_blocks(self, request: Request, start_block: int, end_block: int) -> Iterable[int]:  # noqa: ARG002
        """Returns the places from `start_block` to `end_block - 1` whose blocks can ever serve a hit."""
        return range(start_block, end_block)

    def free(self, request: Request) -> None:
        """Gives up the request's blocks, the last first, so that tails are evicted before the prefixes they need."""
        self.num_cached_block.pop(request, None)
        self.block_pool.free_blocks(reversed(self.req_to_blocks.pop(request, [])))

    def remove_skipped_blocks(self, request: Request, num_processed_tokens: int) -> None:
        """Gives back blocks that no later token attends to; full attention has none."""


class SlidingWindowManager(FullAttentionManager):
    """Block tables of a group in which a token attends to the last `sliding_window` tokens only.

    Args:
        block_pool: the pool shared by all groups.
        block_size: tokens a block.
        group: this group's index.
        spec: the window.
        max_in_flight_tokens: tokens scheduled and not yet settled at most.
        max_model_len: tokens of a request at most.
        retention_interval: see `CacheConfig.prefix_cache_retention_interval`.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        block_size: int,
        group: int,
        *,
        spec: SlidingWindowSpec,
        max_in_flight_tokens: int,
        max_model_len: int,
        retention_interval: int | None,
    ) -> None:
        super().__init__(block_pool, block_size, group)
        self.sliding_window = spec.sliding_window
        self.retention_interval = retention_interval
        self.num_contiguous_blocks = spec.contiguous_blocks_for_hit(block_size)
        self.max_admission_blocks_per_request = spec.max_admission_blocks_per_request(
            max_in_flight_tokens, max_model_len, block_size
        )

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Returns how many leading tokens lie outside the window of the next token."""
        return max(0, num_computed_tokens - self.sliding_window + 1)

    def remove_skipped_blocks(self, request: Request, num_processed_tokens: int) -> None:
        """Gives back the blocks that lie wholly outside the window of the next token.

        Args:
            request: the request.
            num_processed_tokens: computed tokens whose steps have completed; steps in flight still read their windows.
        """
        blocks = self.req_to_blocks.get(request)
        if not blocks:
            return
        num_skipped_blocks = min(self.get_num_skipped_tokens(num_processed_tokens) // self.block_size, len(blocks))
        freed = []
        for i in range(num_skipped_blocks - 1, -1, -1):
            if blocks[i] == NULL_BLOCK:
                break
            freed.append(blocks[i])
            blocks[i] = NULL_BLOCK
        self.block_pool.free_blocks(freed)

    def reachable_blocks(self, request: Request, start_block: int, end_block: int) -> Iterable[int]:
        """Returns the places whose blocks can serve a hit: the tail a hit needs, at each place where hits may end.

        Those are the last whole block before the prompt's last token (a repeated prompt), the end of a prefix that
        others have cached, and every multiple of the retention interval. What lies between is never remembered.
        """
        need = self.num_contiguous_blocks
        interval = self.retention_interval
        if interval is None:
            return range(start_block, end_block) if need else ()
        places: set[int] = set()
        if interval:
            per_segment = interval // self.block_size
            first_kept = max(0, per_segment - need)
            places.update(i for i in range(start_block, end_block) if i % per_segment >= first_kept)
        for boundary in (request.num_prompt_tokens - 1, request.shared_prefix_boundary):
            end = boundary // self.block_size
            places.update(range(max(start_block, end - need), min(end_block, end)))
        return sorted(places)


SingleTypeKVCacheManager = FullAttentionManager | SlidingWindowManager


def find_longest_full_attention_hit(
    block_hashes: Sequence[int], max_num_blocks: int, groups: Sequence[int], block_pool: BlockPool
) -> list[list[int]]:
    """Returns the longest run of cached blocks from the start: a miss ends it, since hashes are chained."""
    hits: list[list[int]] = [[] for _ in groups]
    for i in range(max_num_blocks):
        cached = block_pool.get_cached_block(block_hashes[i], groups)
        if cached is None:
            break
        for hit, block in zip(hits, cached, strict=True):
            hit.append(block)
    return hits


def find_longest_sliding_window_hit(
    block_hashes: Sequence[int],
    max_num_blocks: int,
    groups: Sequence[int],
    block_pool: BlockPool,
    num_contiguous_blocks: int,
) -> list[list[int]]:
    """Returns the longest prefix whose last `num_contiguous_blocks` blocks are cached; earlier places are null.

    A shorter run counts when it begins at the first block.
    """
    hits = [[NULL_BLOCK] * max_num_blocks for _ in groups]
    run = 0
    for i in range(max_num_blocks - 1, -1, -1):
        cached = block_pool.get_cached_block(block_hashes[i], groups)
        if cached is None:
            run = 0
            continue
        for hit, block in zip(hits, cached, strict=True):
            hit[i] = block
        run += 1
        if run >= num_contiguous_blocks:
            return [hit[: i + run] for hit in hits]
    return [hit[:run] for hit in hits]
