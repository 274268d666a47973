"""The step-time model of a fitted profile: few terms, each with a physical meaning, all non-negative.

    step = max(floor, compute) + attention + decodes + contexts + requests

`floor` is what a step costs however small it is (every weight is read once), `compute` grows with all tokens of the
step, **decodes included**: a mixed step is one fused pass, and pricing it as prefill plus decode overstates it.
`StepCoefficients` documents each term; `profile.py` reads them from YAML.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields

from sim.engine.step_time import Batch

Table = tuple[tuple[int, float], ...]
"""Points (count, nanoseconds) in growing order, interpolated linearly; the last slope goes on beyond the last point."""


@dataclass(frozen=True, slots=True)
class StepCoefficients:
    """The numbers of one fitted model, in nanoseconds; a term that is 0 or empty does not exist.

    P prefill tokens, D decodes, T = P + D, R requests. `pad(n)` is the captured CUDA-graph size that n tokens run in.

        base  = (max(F, C)^(1/s) + min(F, C)^(1/s))^s for smoothness s > 0, max(F, C) for 0,
                + (1 - overlap) · min(F, C)
        F     = floor_ns, or decode_table(pad(D)), + moe_growth_ns · (1 - (1 - k/E)^T)^moe_exponent
        C     = token_ns · pad(T) rounded up to tiles, or compute_table(pad(T) rounded up to tiles)
        device = base + attention_pair_ns · pairs + decode_ns · D + decode_context_ns · Σ context of decodes
               + chunk_context_ns · Σ context of chunks + request_ns · R
               + in steps with chunks and decodes: mixed_graph_ns or mixed_eager_ns,
                 + mixed_decode_context_ns · Σ context of decodes
        host  = host_ns + host_request_ns · R
        step  = device + host (synchronous), max(device, host) (asynchronous)
    """

    floor_ns: float = 0.0
    """The shortest step: reading the weights, launching the kernels."""

    decode_table: Table = ()
    """The floor by the number of decodes, where it was measured so; replaces floor_ns."""

    moe_growth_ns: float = 0.0
    """How much the floor grows from no expert read to all of them (mixture of experts)."""

    moe_exponent: float = 1.0
    """Below 1, the first experts cost more than later ones: reading few does not fill the memory system."""

    num_experts: int = 0
    """E: experts of a layer."""

    experts_per_token: int = 0
    """k: experts a token goes to."""

    token_ns: float = 0.0
    """Computing one token, attention left out."""

    compute_table: Table = ()
    """The compute term by the number of tokens, where it was measured so; replaces token_ns."""

    tile: int = 1
    """Tokens are rounded up to a multiple of it in the compute term (matrix kernels work in tiles)."""

    overlap: float = 1.0
    """1: floor and compute hide each other wholly (the larger one counts); 0: they add up."""

    smoothness: float = 0.0
    """How gradually computing takes over from reading weights: 0 at once (the larger one counts), 1 not at all (they
    add up). Where both are alike, the base is 2^s of either."""

    attention_pair_ns: float = 0.0
    """One query-key pair of a chunk, over all layers."""

    decode_ns: float = 0.0
    """One decode: sampling, its own kernels."""

    decode_context_ns: float = 0.0
    """Reading one cached token for a decode."""

    chunk_context_ns: float = 0.0
    """Reading one cached token for a chunk."""

    request_ns: float = 0.0
    """One scheduled request, whether chunk or decode."""

    graph_sizes: tuple[int, ...] = ()
    """Captured CUDA-graph sizes in growing order; steps of up to the largest are padded to the next."""

    mixed_graph_ns: float = 0.0
    """Added to a step with chunks and decodes that fits a captured graph."""

    mixed_eager_ns: float = 0.0
    """Added to a step with chunks and decodes that does not."""

    mixed_decode_context_ns: float = 0.0
    """Reading one cached token for a decode, in addition, beside a chunk: where one kernel call serves both, decodes
    lose the split of their context over many cores (FlashAttention 2)."""

    host_ns: float = 0.0
    """Host work of a step (scheduling, input preparation, output): added when synchronous, hidden when asynchronous."""

    host_request_ns: float = 0.0
    """The part of it that grows with the requests."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, float | int) and not (0 <= value < math.inf):
                raise ValueError(f"{f.name} must be finite and not negative; got {value}")
        if self.overlap > 1:
            raise ValueError(f"overlap lies between 0 and 1; got {self.overlap}")
        if self.smoothness > 1:
            raise ValueError(f"smoothness lies between 0 and 1; got {self.smoothness}")
        if self.tile < 1:
            raise ValueError(f"tile must be at least 1; got {self.tile}")
        if self.moe_growth_ns and not 0 < self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"the floor grows with the experts touched, so experts_per_token ({self.experts_per_token}) must lie "
                f"between 1 and num_experts ({self.num_experts})"
            )
        _check_table("decode_table", self.decode_table)
        _check_table("compute_table", self.compute_table)
        if any(b <= a for a, b in zip((0, *self.graph_sizes), self.graph_sizes, strict=False)):
            raise ValueError(f"graph_sizes must be positive and grow; got {list(self.graph_sizes)}")


def _check_table(name: str, table: Table) -> None:
    counts = [count for count, _ in table]
    if any(b <= a for a, b in zip((-1, *counts), counts, strict=False)):
        raise ValueError(f"{name}: the counts must grow and not be negative; got {counts}")
    if any(not 0 <= ns < math.inf for _, ns in table):
        raise ValueError(f"{name}: times must be finite and not negative")
    if len(table) == 1:
        raise ValueError(f"{name} needs two points or more to interpolate; got 1")


@dataclass(frozen=True, slots=True)
class Validity:
    """The largest values the calibration data held; None is unknown, so never exceeded. Fields as in `Batch`."""

    num_tokens: int | None = None
    num_requests: int | None = None
    attention_pairs: int | None = None
    decode_context: int | None = None
    chunk_context: int | None = None


_UNITS = {
    "num_tokens": "tokens",
    "num_requests": "requests",
    "attention_pairs": "query-key pairs of chunks",
    "decode_context": "cached tokens read by decodes",
    "chunk_context": "cached tokens read by chunks",
}


class FittedModel:
    """Prices steps with fitted coefficients, and remembers how far beyond their data it was asked."""

    def __init__(
        self,
        coefficients: StepCoefficients,
        *,
        name: str = "fitted",
        calibrated: bool = True,
        async_scheduling: bool = True,
        validity: Validity | None = None,
    ) -> None:
        self.name = name
        self.calibrated = calibrated
        self.coefficients = coefficients
        self.async_scheduling = async_scheduling
        self.validity = validity or Validity()
        self._floors: list[float] = []  # by decodes
        self._growths: list[float] = []  # by tokens
        self._works: list[float] = []  # by tokens
        self._hidden = 1.0 - coefficients.overlap
        self._smoothness = coefficients.smoothness
        self._has_host = bool(coefficients.host_ns or coefficients.host_request_ns)
        self._has_mixed = bool(
            coefficients.mixed_graph_ns or coefficients.mixed_eager_ns or coefficients.mixed_decode_context_ns
        )
        # The largest values priced so far, or the bounds while they are not exceeded: a step is compared with these,
        # so that a long run beyond the range records each new maximum and otherwise pays five comparisons.
        v = self.validity
        self._most_tokens, self._most_requests = _bound(v.num_tokens), _bound(v.num_requests)
        self._most_pairs = _bound(v.attention_pairs)
        self._most_decode_context, self._most_chunk_context = _bound(v.decode_context), _bound(v.chunk_context)

    def step_time(self, batch: Batch) -> int:
        """Returns the step's duration in nanoseconds, the host's part included where it is not hidden."""
        c = self.coefficients
        decodes = batch.num_decodes
        tokens = decodes + batch.num_prefill_tokens
        requests = batch.num_requests
        pairs = batch.attention_pairs
        decode_context = batch.decode_context
        chunk_context = batch.chunk_context
        if (
            tokens > self._most_tokens
            or requests > self._most_requests
            or pairs > self._most_pairs
            or decode_context > self._most_decode_context
            or chunk_context > self._most_chunk_context
        ):
            self._note(batch)
        if tokens >= len(self._works):
            self._grow(tokens)
        floor = self._floors[decodes] + self._growths[tokens]
        work = self._works[tokens]
        device = floor + self._hidden * work if floor > work else work + self._hidden * floor
        if self._smoothness:
            device += self._bend(floor, work)
        device += (
            c.attention_pair_ns * pairs
            + c.decode_ns * decodes
            + c.decode_context_ns * decode_context
            + c.chunk_context_ns * chunk_context
            + c.request_ns * requests
        )
        if self._has_mixed:
            device += self._mixed(batch)
        if self._has_host:
            host = c.host_ns + c.host_request_ns * requests
            device = max(device, host) if self.async_scheduling else device + host
        return int(device + 0.5)

    def parts(self, batch: Batch) -> dict[str, int]:
        """Returns the step's nanoseconds by part (`STEP_PARTS`); they add up to `step_time` within rounding."""
        c = self.coefficients
        total = self.step_time(batch)
        attention = c.attention_pair_ns * batch.attention_pairs
        kv_reads = c.decode_context_ns * batch.decode_context + c.chunk_context_ns * batch.chunk_context
        sequences = c.decode_ns * batch.num_decodes + c.request_ns * batch.num_requests
        floor = self._floors[batch.num_decodes] + self._growths[batch.num_tokens]
        work = self._works[batch.num_tokens]
        gemm = max(floor, work) + self._hidden * min(floor, work) + self._bend(floor, work) + self._mixed(batch)
        host = max(0.0, total - gemm - attention - kv_reads - sequences) if self._has_host else 0.0
        values = (gemm, attention, kv_reads, sequences, 0.0, host)
        return {
            part: round(ns)
            for part, ns in zip(
                ("gemm", "attention", "kv_reads", "sequences", "collectives", "host"), values, strict=True
            )
        }

    def out_of_range(self) -> list[str]:
        """Returns one sentence for each direction in which a priced batch left the range of the data, so far."""
        most = {
            "num_tokens": self._most_tokens,
            "num_requests": self._most_requests,
            "attention_pairs": self._most_pairs,
            "decode_context": self._most_decode_context,
            "chunk_context": self._most_chunk_context,
        }
        sentences = []
        for field, largest in most.items():
            bound = getattr(self.validity, field)
            if bound is not None and largest > bound:
                sentences.append(
                    f"profile {self.name}: steps of up to {largest:.0f} {_UNITS[field]} were priced, but the data it "
                    f"was fitted to ends at {bound}: these step times are extrapolated"
                )
        return sentences

    def _note(self, batch: Batch) -> None:
        self._most_tokens = max(self._most_tokens, batch.num_tokens)
        self._most_requests = max(self._most_requests, batch.num_requests)
        self._most_pairs = max(self._most_pairs, batch.attention_pairs)
        self._most_decode_context = max(self._most_decode_context, batch.decode_context)
        self._most_chunk_context = max(self._most_chunk_context, batch.chunk_context)

    def _bend(self, floor: float, work: float) -> float:
        """Returns what the smooth maximum is above the maximum."""
        low, high = (floor, work) if floor < work else (work, floor)
        if not low or not self._smoothness:
            return 0.0
        return float(high * ((1.0 + (low / high) ** (1.0 / self._smoothness)) ** self._smoothness - 1.0))

    def _mixed(self, batch: Batch) -> float:
        if not batch.num_prefill_tokens or not batch.num_decodes:
            return 0.0
        c = self.coefficients
        captured = bool(c.graph_sizes) and batch.num_tokens <= c.graph_sizes[-1]
        launch = c.mixed_graph_ns if captured else c.mixed_eager_ns
        return launch + c.mixed_decode_context_ns * batch.decode_context

    def _grow(self, tokens: int) -> None:
        """Extends the look-up lists to `tokens`, in powers of two so that they are extended rarely."""
        c = self.coefficients
        missed = 1.0 - c.experts_per_token / c.num_experts if c.num_experts else 1.0
        for n in range(len(self._works), 1 << tokens.bit_length()):
            padded = _padded(n, c.graph_sizes)
            self._floors.append(_interpolated(c.decode_table, padded) if c.decode_table else c.floor_ns)
            self._growths.append(c.moe_growth_ns * (1.0 - missed**n) ** c.moe_exponent)
            tiled = -(-padded // c.tile) * c.tile
            self._works.append(_interpolated(c.compute_table, tiled) if c.compute_table else c.token_ns * tiled)


def _bound(largest: int | None) -> float:
    return math.inf if largest is None else largest


def _padded(tokens: int, graph_sizes: Sequence[int]) -> int:
    """Returns the captured size that `tokens` run in; beyond the largest, or with nothing to run, no padding."""
    if not tokens or not graph_sizes or tokens > graph_sizes[-1]:
        return tokens
    return graph_sizes[bisect_left(graph_sizes, tokens)]


def _interpolated(table: Table, count: int) -> float:
    """Returns the table's value at `count`: flat below the first point, the last slope beyond the last one."""
    if count <= table[0][0]:
        return table[0][1]
    end = min(bisect_left(table, count, key=lambda point: point[0]), len(table) - 1)
    (x0, y0), (x1, y1) = table[end - 1], table[end]
    return max(0.0, y0 + (y1 - y0) * (count - x0) / (x1 - x0))
