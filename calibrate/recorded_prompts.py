"""Prompts for replaying recorded requests: token streams that are equal where the recorded content was.

A prompt is recorded as the chained hashes of its full blocks, so the longest run of hashes that an earlier request had
too is a prefix the two share. Where no hashes were recorded, `LeadingHits` gives a request the first tokens of an
earlier one when it is admitted, so that it hits what it is recorded to have hit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calibrate.step_record import StepRecord
from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.kv_cache_coordinator import Blocks
from sim.core.kv_cache_manager import KVCacheManager
from sim.core.request import Request, Segment


@dataclass(frozen=True, slots=True)
class RecordedPrompt:
    """What a request's prompt is made of, and the stream of its outputs."""

    segments: tuple[Segment, ...]
    output_stream: int


def recorded_prompts(record: StepRecord) -> list[RecordedPrompt]:
    """Returns the prompts of a record with block hashes, in the order of its requests.

    Request n has the streams 2n (its own prompt tokens) and 2n + 1 (its outputs). A reset of the prefix cache makes
    equal content unequal: nothing from before is found after it.
    """
    block_size = int(record.server.get("hash_block_size") or record.server["block_size"])
    output_hashes = {end.number: end.hashes for end in record.ended}
    resets = sorted(after for after, _ in record.resets)
    owners: dict[str, int] = {}  # the first request whose prompt or answer had this block
    prompts: list[RecordedPrompt] = []
    for request in record.added:
        while resets and resets[0] <= request.after:
            owners.clear()
            resets.pop(0)
        hashes = request.hashes or ()
        chain = (*hashes, *output_hashes.get(request.number, ()))
        num_known = next((i for i, block_hash in enumerate(chain) if block_hash not in owners), len(chain))
        source = owners[chain[num_known - 1]] if num_known else None
        size = request.num_prompt_tokens
        own, output_stream = 2 * request.number, 2 * request.number + 1
        if source is None:
            segments: tuple[Segment, ...] = ((own, size),)
        elif num_known * block_size > size and record.added[source].num_prompt_tokens == size:
            # Same prompt, and the same answer as far as it goes.
            segments, output_stream = prompts[source].segments, prompts[source].output_stream
        else:
            shared = min(num_known, len(hashes)) * block_size
            segments = _head(prompts[source], shared)
            if size > shared:
                segments += ((own, size - shared),)
        prompts.append(RecordedPrompt(segments, output_stream))
        for block_hash in chain:
            owners.setdefault(block_hash, request.number)
    return prompts


def _head(prompt: RecordedPrompt, num_tokens: int) -> tuple[Segment, ...]:
    """Returns the first tokens of a request's prompt and answer."""
    segments = []
    for stream, length in prompt.segments:
        if num_tokens > 0:
            segments.append((stream, min(length, num_tokens)))
            num_tokens -= length
    if num_tokens > 0:
        segments.append((prompt.output_stream, num_tokens))
    return tuple(segments)


@dataclass(frozen=True, slots=True)
class LeadingHits:
    """First hits to be forced.

    Attributes:
        hits: tokens that each request hits when it is first admitted.
        choices: for some requests, which earlier one the hit comes from; else the latest whose blocks nobody holds.
        sources: filled by a run: the earlier requests that each could have hit, one for each content.
    """

    hits: Mapping[int, int]
    choices: Mapping[int, int] = field(default_factory=dict)
    sources: dict[int, list[int]] = field(default_factory=dict)

    def manager(self, cache_config: CacheConfig, scheduler_config: SchedulerConfig) -> KVCacheManager:
        """Returns a KV cache manager that forces them."""
        return _LeadingHitsManager(cache_config, scheduler_config, self)


class _LeadingHitsManager(KVCacheManager):
    """Gives each request the first tokens of an earlier one, as many as it is to hit."""

    def __init__(self, cache_config: CacheConfig, scheduler_config: SchedulerConfig, leading_hits: LeadingHits) -> None:
        super().__init__(cache_config, scheduler_config)
        self.leading_hits = leading_hits
        self.earlier: dict[Request, None] = {}

    def get_computed_blocks(self, request: Request) -> tuple[Blocks, int]:
        num_hit_tokens = self.leading_hits.hits.get(request.request_id, 0)
        if num_hit_tokens and request.num_cached_tokens < 0:
            self._borrow(request, num_hit_tokens)
        self.earlier[request] = None
        return super().get_computed_blocks(request)

    def _borrow(self, request: Request, num_tokens: int) -> None:
        sources = self._sources(num_tokens // self.block_size, request)
        if not sources:
            return
        chosen = self.leading_hits.choices.get(request.request_id)
        source = next((source for source in sources if source.request_id == chosen), sources[0])
        self.leading_hits.sources[request.request_id] = [source.request_id for source in sources]
        head = _head(RecordedPrompt(source.prompt, source.output_stream), num_tokens)
        own = 2 * request.request_id
        borrowed = Request(
            request.request_id,
            (*head, (own, request.num_prompt_tokens - num_tokens)),
            request.max_tokens,
            request.arrival_time,
            request.output_stream,
        )
        request.prompt = borrowed.prompt
        request.block_hashes = borrowed.hash_blocks(num_tokens // self.block_size, self.block_size)
        request._hash_segment, request._hash_offset = borrowed._hash_segment, borrowed._hash_offset

    def _sources(self, num_blocks: int, request: Request) -> list[Request]:
        """Returns one earlier request for each content whose blocks are all cached, those nobody holds first."""
        pool = self.block_pool
        in_use: dict[int, bool] = {}
        found: dict[int, Request] = {}
        for earlier in reversed(self.earlier):
            hashes = earlier.block_hashes[:num_blocks]
            if earlier is request or len(hashes) < num_blocks or hashes[-1] in found:
                continue
            blocks = [pool.get_cached_block(block_hash, (0,)) for block_hash in hashes]
            if None not in blocks:
                found[hashes[-1]] = earlier
                in_use[hashes[-1]] = any(pool.ref_counts[block[0]] for block in blocks if block is not None)
        return sorted(found.values(), key=lambda source: in_use[source.block_hashes[num_blocks - 1]])
