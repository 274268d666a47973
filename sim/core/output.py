"""What one call of `schedule()` decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.core.kv_cache_coordinator import Blocks
from sim.core.request import Request


@dataclass(slots=True, eq=False)
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
        num_prefix_queries: tokens looked up in the prefix cache by first admissions.
        num_prefix_hits: of those, found.
    """

    num_scheduled_tokens: dict[Request, int] = field(default_factory=dict)
    prefill_chunks: set[Request] = field(default_factory=set)
    pooled_classes: dict[int, int] = field(default_factory=dict)
    pooled_context: int = 0
    new_blocks: dict[Request, Blocks] = field(default_factory=dict)
    hits: dict[Request, int] = field(default_factory=dict)
    preempted: list[Request] = field(default_factory=list)
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0

    @property
    def num_pooled(self) -> int:
        """How many requests decode in the pool."""
        return sum(self.pooled_classes.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is scheduled."""
        return not self.num_scheduled_tokens and not self.pooled_classes
