"""The kinds of attention a KV cache group can have, and how layers are cut into groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """Every token attends to all before it: blocks are held until the request ends."""


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec:
    """A token attends to the last `sliding_window` tokens, itself included: older blocks are given back."""

    sliding_window: int

    def contiguous_blocks_for_hit(self, block_size: int) -> int:
        """Returns the cached blocks in a row that a prefix hit needs at its end: those the next token attends to."""
        return -(-(self.sliding_window - 1) // block_size)

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int, block_size: int) -> int:
        """Returns the blocks one request can hold at most, for admission.

        The window before the next token plus what is in flight, and one block more, since a window need not begin at
        a block's first token.
        """
        num_tokens = min(self.sliding_window - 1 + max_in_flight_tokens, max_model_len)
        return -(-num_tokens // block_size) + 1


KVCacheSpec = FullAttentionSpec | SlidingWindowSpec


def get_kv_cache_groups(layers: Sequence[tuple[KVCacheSpec, int]]) -> tuple[KVCacheSpec, ...]:
    """Cuts a model's attention layers into KV cache groups of equal size, as vLLM does.

    The group size is the smallest number of layers of one kind, or the largest when that is less than 1.5 times the
    smallest (few padding layers then waste less than many groups).

    Args:
        layers: each kind of attention with its number of layers, in the order in which the kinds first occur.

    Returns:
        One spec a group: kinds in the order given, each as often as it has groups.
    """
    counts: dict[KVCacheSpec, int] = {}
    for spec, num_layers in layers:
        counts[spec] = counts.get(spec, 0) + num_layers
    if len(counts) == 1:
        return tuple(counts)
    fewest, most = min(counts.values()), max(counts.values())
    group_size = most if most < fewest * 1.5 else fewest
    return tuple(spec for spec, count in counts.items() for _ in range(-(-count // group_size)))
