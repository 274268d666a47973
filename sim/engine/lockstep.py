"""Engines that step together: data-parallel ranks of a model with experts, in one server.

Every rank has a scheduler of its own, but in each layer all wait for each other: the experts, spread over the ranks or
not, need the tokens of all. So a step begins on all ranks at once and takes as long for each; a rank without work
computes a dummy batch. What the slowest rank's attention takes, all take; the rest depends on the tokens of all ranks:
under captured graphs vLLM pads every rank to the largest, beyond them the tokens are as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sim.engine.engine_core import EngineCore, InFlightBatch, batch_composition
from sim.engine.process import Clients
from sim.engine.step_time import Batch, StepTimeModel


def run_in_step(
    engines: Sequence[EngineCore], clients: Sequence[Clients], model: StepTimeModel, *, largest_graph: int = 0
) -> int:
    """Runs engines in step until nothing is left to do; returns the virtual time in nanoseconds.

    Args:
        engines: the ranks; their own step-time models are not asked.
        clients: of each rank.
        model: prices a step of one rank, given that the others have as many tokens.
        largest_graph: tokens of the largest captured graph.
    """
    now_ns = device_free_ns = 0
    queue: deque[_Step] = deque()
    while True:
        for each in clients:
            each.deliver(now_ns)
        step = _Step(engines, now_ns)
        if step.batches:
            device_free_ns = step.price(model, max(now_ns, device_free_ns), largest_graph)
            queue.append(step)
            if len(queue) < engines[0].batch_queue_size and not step.is_empty:
                continue
        if queue:
            done = queue.popleft()
            now_ns = max(now_ns, done.end_ns)
            done.complete(clients, now_ns)
            if queue or done.has_progress:
                continue
        next_ns = min((ns for each in clients if (ns := each.next_event_ns()) is not None), default=None)
        if next_ns is None:
            assert not step.batches, "nothing can ever be scheduled"
            return now_ns
        now_ns = max(now_ns, next_ns)


class _Step:
    """One step of all ranks that have work."""

    def __init__(self, engines: Sequence[EngineCore], now_ns: int) -> None:
        self.batches: list[tuple[int, EngineCore, InFlightBatch]] = []
        self.compositions: list[Batch] = []
        self.end_ns = now_ns
        self.num_ranks = len(engines)
        for rank, engine in enumerate(engines):
            if engine.scheduler.has_unfinished_requests():
                batch = engine.schedule(now_ns)
                self.batches.append((rank, engine, batch))
                if not batch.output.is_empty:
                    self.compositions.append(batch_composition(batch.output))

    @property
    def is_empty(self) -> bool:
        """Whether no rank has a token to compute."""
        return not self.compositions

    @property
    def has_progress(self) -> bool:
        """Whether scheduling again may find something, though nothing was computed."""
        return not self.is_empty or any(batch.output.preempted for _, _, batch in self.batches)

    def price(self, model: StepTimeModel, start_ns: int, largest_graph: int) -> int:
        """Sets when the step begins and ends, and returns when the device is free again."""
        if self.is_empty:
            return start_ns
        self.end_ns = start_ns + model.step_time(combined(self.compositions, self.num_ranks, largest_graph))
        for _, _, batch in self.batches:
            batch.start_ns, batch.end_ns = start_ns, self.end_ns
        return self.end_ns

    def complete(self, clients: Sequence[Clients], now_ns: int) -> None:
        """Takes in the tokens of every rank."""
        for rank, engine, batch in self.batches:
            clients[rank].abort_due(now_ns)
            clients[rank].publish(batch, engine.complete(batch))


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
