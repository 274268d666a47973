"""Engines that step together: data-parallel ranks of a model with experts, in one server.

Every rank has a scheduler of its own, but in each layer all wait for each other: the experts, spread over the ranks or
not, need the tokens of all. So a step begins on all ranks at once and takes as long for each; a rank without work
computes a dummy batch. What the slowest rank's attention takes, all take; the rest depends on the tokens of all ranks:
under captured graphs vLLM pads every rank to the largest, beyond them the tokens are as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.engine.step_time import Batch


def combined(batches: Sequence[Batch], num_ranks: int, largest_graph: int) -> Batch:
    """Returns the batch of one rank that takes as long as these take together.

    Args:
        batches: of the ranks with work.
        num_ranks: of all; the others compute one dummy token.
        largest_graph: tokens of the largest captured graph; up to there all ranks are padded to the largest batch.
    """
    longest = max(batch.num_tokens for batch in batches)
    total = sum(batch.num_tokens for batch in batches) + num_ranks - len(batches)
    tokens = longest if longest <= largest_graph else -(-total // num_ranks)
    decodes = min(tokens, max(batch.num_decodes for batch in batches))
    prefilling = any(batch.num_prefill_tokens for batch in batches)
    slowest = max(batches, key=lambda batch: batch.attention_pairs)
    return Batch(
        num_requests=max(batch.num_requests for batch in batches),
        num_prefill_tokens=tokens - decodes if prefilling else 0,
        num_decodes=decodes if prefilling else tokens,
        attention_pairs=slowest.attention_pairs,
        decode_context=max(batch.decode_context for batch in batches),
        chunk_context=max(batch.chunk_context for batch in batches),
        chunks=slowest.chunks,
    )
