"""What one call of `schedule()` decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.core.kv_cache_coordinator import Blocks
from sim.core.request import Request


@dataclass(slots=True)
class SchedulerOutput:
    """The work of one step.

    Attributes:
        num_scheduled_tokens: tokens of each scheduled request, in scheduling order.
        sampled: for each of those, whether the step yields a token (its tokens known so far are all computed by it).
        new_blocks: block tables of admitted requests in full (hits included), newly taken blocks of the others. They
            are the live tables: read them before the next call.
        hits: prefix-cache tokens of each admitted or resumed request, 0 included.
        preempted: requests preempted, in order.
        num_prefix_queries: tokens looked up in the prefix cache by first admissions.
        num_prefix_hits: of those, found.
    """

    num_scheduled_tokens: dict[Request, int] = field(default_factory=dict)
    sampled: list[bool] = field(default_factory=list)
    new_blocks: dict[Request, Blocks] = field(default_factory=dict)
    hits: dict[Request, int] = field(default_factory=dict)
    preempted: list[Request] = field(default_factory=list)
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
