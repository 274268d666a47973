"""What a step of ranks that step together costs: the others wait for the slowest, and share the experts."""

from __future__ import annotations

from sim.engine.lockstep import combined
from sim.engine.step_time import Batch


def test_tokens_are_padded_to_the_largest_rank_under_graphs_and_shared_beyond() -> None:
    few, many = Batch.of([100] * 10), Batch.of([200] * 60)
    assert combined([few, many], 2, largest_graph=128).num_tokens == 60
    assert combined([few, many], 2, largest_graph=0).num_tokens == 35
    chunk = Batch.of([], [(1000, 0)])
    both = combined([few, chunk], 2, largest_graph=128)
    assert (both.num_tokens, both.num_decodes, both.attention_pairs) == (505, 10, chunk.attention_pairs)
    assert combined([chunk], 4, largest_graph=128).num_tokens == 251
    assert combined([many], 1, largest_graph=128) == many
