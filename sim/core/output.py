"""What one call of `schedule()` decided."""

from __future__ import annotations

from sim.core.kv_cache_coordinator import Blocks
from sim.core.request import Request


class SchedulerOutput:
    """The work of one step.

    Attributes:
        num_scheduled_tokens: tokens of each scheduled request, in scheduling order; without the pooled ones.
        prefill_chunks: of those, the ones that yield no token yet: part of their known tokens is still to come.
        pooled_classes: how many requests of each class decode one token in the pool (the fast path only).
        pooled_context: Σ of the tokens that the pooled requests had computed before the step.
        new_blocks: block tables of admitted requests in full (hits included), newly taken blocks of the others. They
            are the live tables: read them before the next call.
        hits: prefix-cache tokens of each admitted or resumed request, 0 included.
        preempted: requests preempted, in order.
        is_empty: whether nothing is scheduled.
        is_unsorted: whether requests were added to `num_scheduled_tokens` at the end that belong before others.
        num_prefix_queries: tokens looked up in the prefix cache by first admissions.
        num_prefix_hits: of those, found.
    """

    __slots__ = (
        "hits",
        "is_empty",
        "is_unsorted",
        "new_blocks",
        "num_prefix_hits",
        "num_prefix_queries",
        "num_scheduled_tokens",
        "pooled_classes",
        "pooled_context",
        "preempted",
        "prefill_chunks",
    )

    def __init__(self) -> None:
        self.num_scheduled_tokens: dict[Request, int] = {}
        self.prefill_chunks: set[Request] = set()
        self.pooled_classes: dict[int, int] = {}
        self.pooled_context = 0
        self.new_blocks: dict[Request, Blocks] = {}
        self.hits: dict[Request, int] = {}
        self.preempted: list[Request] = []
        self.is_empty = True
        self.is_unsorted = False
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0

    def close(self) -> None:
        """Notes that all is scheduled."""
        self.is_empty = not self.num_scheduled_tokens and not self.pooled_classes

    @property
    def num_pooled(self) -> int:
        """How many requests decode in the pool."""
        return sum(self.pooled_classes.values())
