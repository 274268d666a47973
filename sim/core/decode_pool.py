"""The fast path: requests that decode one token a step, advanced together instead of one by one.

Most requests of most steps are in the middle of their answer. Such a request gets exactly one token in every step,
takes a block when its position crosses a block boundary, and nothing else happens to it. The pool holds these
requests as they were when they joined; what has happened since is two counters, the steps scheduled and the steps
completed, added when a request leaves. A request joins when the step that computes the last token it knows of has been
scheduled; the steps in flight then are still the reference's. Everything that is not plain decoding (prefill, the last
tokens, preemption, aborts) leaves the pool first and goes through the reference's own code.

A step then costs: the requests at a block boundary (one in `block_size`; with sliding windows also those whose window
leaves a block behind), the prefilling ones, and the joins and leaves.

Why the result is equal to the reference, token for token and block for block:

- A pooled request misses one token at every `schedule()`, and `max_num_seqs <= max_num_batched_tokens`, so it gets it
  unless a prefilling request before it in `running` eats the budget; in such a step the pool is emptied.
- Blocks are taken in the order of `running`: due pooled requests and others are merged by `running_order`.
- Its full blocks are cached when it leaves. Until then nobody can hit them (only it knows those tokens) and nobody can
  evict them (it holds them), so the delay cannot be seen.
- It leaves one token before its last, so that stopping is always seen by the reference's code.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from sim.core.request import Request

running_order = attrgetter("running_order")
"""Sorts requests as they stand in `running`."""


class DecodePool:
    """Requests in steady decoding.

    Attributes:
        members: each pooled request, with the counters (scheduled, completed) from which on its steps are the pool's:
            as they were when it joined, and as they will be when the steps that were in flight then are completed.
        num_scheduled: non-empty steps scheduled so far.
        num_completed: of those, completed.
        num_completed_at_schedule: how many were completed when the latest was scheduled.
        classes: pooled requests by user class.
        context: Σ computed tokens of the pooled requests.
        last_end_ns: when the last completed step ended; set by the engine, which knows the time.
    """

    __slots__ = (
        "_block_size",
        "_due",
        "_last_steps",
        "_new",
        "_skipping",
        "_sliding_window",
        "classes",
        "context",
        "last_end_ns",
        "members",
        "num_completed",
        "num_completed_at_schedule",
        "num_scheduled",
    )

    def __init__(self, block_size: int, sliding_window: int = 0) -> None:
        self.members: dict[Request, tuple[int, int]] = {}
        self.num_scheduled = 0
        self.num_completed = 0
        self.num_completed_at_schedule = 0
        self.classes: dict[int, int] = {}
        self.context = 0
        self.last_end_ns = -1
        self._block_size = block_size
        # A request whose next token begins a block in step s stands in _due[s % block_size], in running order.
        self._due: list[list[Request]] = [[] for _ in range(block_size)]
        self._last_steps: dict[int, list[Request]] = {}  # by the completion after which a request must leave
        # A request whose window leaves a block behind once s steps are completed stands in _skipping[s % block_size].
        self._sliding_window = sliding_window
        self._skipping: list[list[Request]] = [[] for _ in range(block_size)]
        self._new: list[Request] = []  # whose windows may have moved a long way: a step of before is not completed

    def join(self, request: Request, num_in_flight: int, num_tokens_left: int) -> None:
        """Takes in a request that will decode in every step from the next one on.

        Args:
            request: running, with all the tokens computed that it will have when the steps in flight are completed, but
                for the last.
            num_in_flight: steps in flight.
            num_tokens_left: output tokens still to come from the steps after these, at least two.
        """
        completed = self.num_completed + num_in_flight
        self.members[request] = (self.num_scheduled, completed)
        self.classes[request.class_id] = self.classes.get(request.class_id, 0) + 1
        self.context += request.num_computed_tokens
        insort(self._due[self._boundary(request, self.num_scheduled)], request, key=running_order)
        if self._sliding_window:
            insort(self._skipping[self._skip_boundary(request, completed)], request, key=running_order)
            self._new.append(request)
        self._last_steps.setdefault(completed + num_tokens_left - 1, []).append(request)

    def leave(self, request: Request) -> int:
        """Gives a request back, brought up to date but for its blocks; returns in how many steps in flight it is."""
        scheduled, completed = self.members.pop(request)
        num_scheduled = self.num_scheduled - scheduled
        num_completed = max(0, self.num_completed - completed)
        self._due[self._boundary(request, scheduled)].remove(request)
        if self._sliding_window:
            self._skipping[self._skip_boundary(request, completed)].remove(request)
            if request in self._new:
                self._new.remove(request)
        request.num_computed_tokens += num_scheduled
        request.num_in_flight_tokens += num_scheduled - num_completed
        if num_completed:
            request.num_output_tokens += num_completed
            request.num_tokens += num_completed
            request.last_token_ns = self.last_end_ns
        self.context -= request.num_computed_tokens
        left = self.classes[request.class_id] - 1
        if left:
            self.classes[request.class_id] = left
        else:
            del self.classes[request.class_id]
        return num_scheduled - num_completed

    def num_cacheable_tokens(self, request: Request) -> int:
        """Returns how many tokens of a request that just left the reference would have cached by now.

        All that were known when the latest step was scheduled: with a step completed since, all but the newest.
        """
        return request.num_tokens - (self.num_completed > self.num_completed_at_schedule)

    @property
    def has_windows(self) -> bool:
        """Whether there are sliding windows, which leave blocks behind."""
        return self._sliding_window > 0

    def leaves_at_next_completion(self) -> bool:
        """Returns whether a request comes to its last token but one when the next step is completed."""
        return self.num_completed + 1 in self._last_steps

    def due(self) -> list[Request]:
        """Returns the requests whose next token begins a block, in running order."""
        return self._due[(self.num_scheduled + 1) % self._block_size]

    def is_due(self, request: Request) -> bool:
        """Returns whether a pooled request's next token begins a block."""
        scheduled, _ = self.members[request]
        return (request.num_computed_tokens + self.num_scheduled - scheduled) % self._block_size == 0

    def skipping(self) -> list[Request]:
        """Returns the requests whose window has left a block behind since the latest schedule, in running order."""
        if not self._sliding_window:
            return []
        found = set(self._new)
        if self.num_completed > self.num_completed_at_schedule:
            found.update(self._skipping[self.num_completed % self._block_size])
        return sorted(found, key=running_order)

    def num_processed_tokens(self, request: Request) -> int:
        """Returns the tokens of a pooled request whose steps are completed."""
        _, completed = self.members[request]
        num_completed = max(0, self.num_completed - completed)
        return request.num_computed_tokens - request.num_in_flight_tokens + num_completed

    def is_in_latest(self, request: Request) -> bool:
        """Returns whether a pooled request decoded in the latest scheduled step, not only joined after it."""
        return self.members[request][0] < self.num_scheduled

    def is_in_next_completed(self, request: Request) -> bool:
        """Returns whether a pooled request's token in the next step to be completed is the pool's."""
        return self.members[request][1] <= self.num_completed

    def advance(self) -> None:
        """Counts a step in which every pooled request was scheduled."""
        self.num_scheduled += 1
        self.num_completed_at_schedule = self.num_completed
        if self._new:
            self._new = [request for request in self._new if self.members[request][1] > self.num_completed]
        self.context += len(self.members)

    def complete(self) -> list[Request]:
        """Counts a completed step; returns the requests that are now one token before their last."""
        self.num_completed += 1
        leaving = self._last_steps.pop(self.num_completed, ())
        return [request for request in leaving if request in self.members]

    def _skip_boundary(self, request: Request, completed: int) -> int:
        """Returns after which completions (modulo the block size) the request's window leaves a block behind."""
        return (completed - request.num_computed_tokens + self._sliding_window - 1) % self._block_size

    def _boundary(self, request: Request, scheduled: int) -> int:
        """Returns in which steps (modulo the block size) the request's token begins a block."""
        return (scheduled + 1 - request.num_computed_tokens) % self._block_size
