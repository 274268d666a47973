"""Watches the steps of a simulation: the largest of each kind, and which term of the model the time goes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sim.engine.fitted import FittedModel
from sim.engine.step_time import Batch

_LARGEST = ("num_tokens", "num_requests", "attention_pairs", "decode_context", "chunk_context")


@dataclass
class Meter:
    """A fitted model that remembers what it was asked; a `StepTimeModel` like the one it wraps.

    Attributes:
        model: prices the steps.
        largest: the largest value of each field of a step's batch so far (the fields of a profile's `valid_up_to`).
        time_ns: of all steps, by term; the floor and the compute term are each charged where they are the larger one.
        total_ns: of all steps.
    """

    model: FittedModel
    largest: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LARGEST, 0))
    time_ns: dict[str, float] = field(default_factory=dict)
    total_ns: int = 0

    @property
    def name(self) -> str:
        """The wrapped model's."""
        return self.model.name

    @property
    def calibrated(self) -> bool:
        """The wrapped model's."""
        return self.model.calibrated

    def out_of_range(self) -> list[str]:
        """The wrapped model's."""
        return self.model.out_of_range()

    def step_time(self, batch: Batch) -> int:
        """Returns the step's duration in nanoseconds, and takes note of it."""
        for name in _LARGEST:
            self.largest[name] = max(self.largest[name], getattr(batch, name))
        total = self.model.step_time(batch)
        self.total_ns += total
        c = self.model.coefficients
        parts = {
            "per_attention_pair_ns": c.attention_pair_ns * batch.attention_pairs,
            "per_decode_us": c.decode_ns * batch.num_decodes,
            "per_decode_context_token_ns": c.decode_context_ns * batch.decode_context,
            "per_chunk_context_token_ns": c.chunk_context_ns * batch.chunk_context,
            "per_request_us": c.request_ns * batch.num_requests,
        }
        if c.mixed_decode_context_ns and batch.num_prefill_tokens:
            parts["per_mixed_decode_context_token_ns"] = c.mixed_decode_context_ns * batch.decode_context
        base = max(0.0, total - sum(parts.values()))
        # In the region where tokens cost nothing yet, the whole base is the floor's.
        work = c.token_ns * -(-batch.num_tokens // c.tile) * c.tile
        parts["per_token_us" if work > 0.999 * base else "floor_us"] = base
        for term, ns in parts.items():
            self.time_ns[term] = self.time_ns.get(term, 0.0) + ns
        return total


def largest_of(meters: Iterable[Meter]) -> dict[str, int]:
    """Returns the largest of each field over several simulations."""
    found = dict.fromkeys(_LARGEST, 0)
    for meter in meters:
        for name, value in meter.largest.items():
            found[name] = max(found[name], value)
    return found


def shares_of(meters: Iterable[Meter]) -> dict[str, float]:
    """Returns each term's share of all simulated time, 0 … 1."""
    time: dict[str, float] = {}
    total = 0
    for meter in meters:
        total += meter.total_ns
        for term, ns in meter.time_ns.items():
            time[term] = time.get(term, 0.0) + ns
    return {term: ns / total for term, ns in time.items()} if total else {}


def largest_of_batches(batches: Iterable[Batch]) -> dict[str, int]:
    """Returns the largest of each field of some steps."""
    found = dict.fromkeys(_LARGEST, 0)
    for batch in batches:
        for name in _LARGEST:
            found[name] = max(found[name], getattr(batch, name))
    return found
