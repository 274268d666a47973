"""The step-time model of an operator table: measured kernels, layer by layer, added up.

A table holds what each operator of one layer takes by the number of tokens, what sampling takes by the number of
sequences, and attention on a grid of (chunk, its context, decodes, their context). Attention is measured as vLLM runs
it, chunks and decodes in one kernel call: adding the two up would be wrong by several times either way (a decode beside
a chunk loses its split of the context over many cores).

Between measured points everything is linear; beyond the last ones the last slope goes on, and `out_of_range` says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sim.engine.step_time import Batch

Tree = tuple[tuple[float, ...], tuple[Any, ...]]
"""Counts in growing order, and at each the nanoseconds, or the tree of the next axis: measured points need not form a
full grid, each branch has its own."""

Rows = Iterable[tuple[tuple[float, ...], float]]
"""A place on every axis, and the nanoseconds there."""


def tree_of(rows: Rows) -> Tree:
    """Returns the tree of measured rows; the last of several at one place counts."""
    branches: dict[float, list[tuple[tuple[float, ...], float]]] = {}
    for place, ns in rows:
        branches.setdefault(place[0], []).append((place[1:], ns))
    counts = tuple(sorted(branches))
    below = (branches[count] for count in counts)
    return counts, tuple(tree_of(branch) if branch[0][0] else branch[-1][1] for branch in below)


def look_up(tree: Tree, place: Sequence[float]) -> float:
    """Interpolates linearly on every axis in turn; outside the measured points the nearest slope goes on, to 0."""
    counts, values = tree
    value, rest = place[0], place[1:]
    low = min(bisect_right(counts, value), len(counts) - 1) - 1 if len(counts) > 1 else 0
    low = max(low, 0)
    first = look_up(values[low], rest) if rest else float(values[low])
    if value == counts[low] or len(counts) == 1:
        return first
    second = look_up(values[low + 1], rest) if rest else float(values[low + 1])
    share = (value - counts[low]) / (counts[low + 1] - counts[low])
    return max(0.0, first + share * (second - first))


@dataclass(frozen=True, slots=True)
class AttentionTable:
    """Attention of one layer.

    Attributes:
        chunk_only: by tokens of the chunk, tokens cached before it.
        decode_only: by decodes, cached tokens of each.
        both: by tokens of the chunk, tokens cached before it, decodes, cached tokens of each.
    """

    chunk_only: Tree
    decode_only: Tree
    both: Tree

    @property
    def longest_chunk_context(self) -> float:
        """The most tokens cached before a chunk that were measured."""
        return max(float(branch[0][-1]) for branch in self.chunk_only[1])

    @property
    def longest_decode_context(self) -> float:
        """The most cached tokens of each decode that were measured."""
        return max(float(branch[0][-1]) for branch in self.decode_only[1])

    def time_ns(self, batch: Batch) -> float:
        """Returns the time of one layer's attention.

        The tables know one chunk. Of several, the one that takes longest runs with the decodes as measured, and the
        others add what they take by themselves beyond a launch.
        """
        decodes = batch.num_decodes
        context = batch.decode_context / decodes if decodes else 0.0
        if not batch.chunks:
            return look_up(self.decode_only, (decodes, context)) if decodes else 0.0
        alone = [(look_up(self.chunk_only, chunk), *chunk) for chunk in batch.chunks]
        longest = max(alone)
        launch = float(self.chunk_only[1][0][1][0])
        others = sum(max(0.0, ns - launch) for ns, _, _ in alone) - max(0.0, longest[0] - launch)
        if not decodes:
            return longest[0] + others
        return look_up(self.both, (longest[1], longest[2], decodes, context)) + others


@dataclass(frozen=True, slots=True)
class ExpertTable:
    """The routed experts of one layer: nanoseconds by tokens and by experts that some token goes to.

    The table was taken on one GPU with all experts. Spread over `ranks` GPUs, each holds a share of the experts and
    computes them for the tokens of all: as many tokens a rank are assumed, and tokens that choose evenly.

    Attributes:
        time_ns: by tokens, experts touched.
        num_experts: E.
        experts_per_token: k.
        ranks: GPUs over which the experts are spread.
    """

    time_ns: Tree
    num_experts: int
    experts_per_token: int
    ranks: int = 1

    def at(self, tokens: int) -> float:
        """Returns the time for so many tokens of this GPU.

        Of the r·T tokens of all ranks, each of which wants k of E experts, 1/r of the pairs fall on this GPU: as much
        work as its own T tokens, on E/r experts, of which E/r · (1 − (1 − k/E)^(r·T)) are touched.
        """
        missed = (1.0 - self.experts_per_token / self.num_experts) ** (self.ranks * tokens)
        touched = self.num_experts / self.ranks * (1.0 - missed)
        return look_up(self.time_ns, (tokens, touched))


@dataclass(frozen=True, slots=True)
class OperatorTables:
    """All operators of one model on one GPU.

    Attributes:
        num_layers: of the whole model.
        layer: one layer's operators without attention and experts, by tokens.
        once: embedding and final norm, by tokens.
        sequences: output head and sampler, by sequences.
        attention: of one layer.
        experts: of one layer; None: dense.
    """

    num_layers: int
    layer: Tree
    once: Tree
    sequences: Tree
    attention: AttentionTable
    experts: ExpertTable | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of message between the GPUs of a server, which no table of a single GPU holds.

    Attributes:
        per_step: how many a step has.
        time_ns: (tokens of the step, nanoseconds of one), growing.
    """

    per_step: int
    time_ns: tuple[tuple[int, float], ...]


class OperatorTableModel:
    """Prices steps by adding up operators.

    Args:
        tables: the operators.
        name: the profile's.
        graph_sizes: captured CUDA-graph sizes; steps of up to the largest are padded to the next.
        collectives: messages between the server's GPUs.
        step_ns: what a step costs beside its operators.
        calibrated: whether a run of the server was compared with.
    """

    def __init__(
        self,
        tables: OperatorTables,
        *,
        name: str = "operator table",
        graph_sizes: Sequence[int] = (),
        collectives: Sequence[Collective] = (),
        step_ns: float = 0.0,
        calibrated: bool = True,
    ) -> None:
        self.name = name
        self.calibrated = calibrated
        self.tables = tables
        self._graph_sizes = tuple(graph_sizes)
        self._collectives = [
            (each.per_step, tree_of(((float(tokens),), ns) for tokens, ns in each.time_ns)) for each in collectives
        ]
        self._step_ns = step_ns
        self._by_tokens: dict[int, float] = {}
        self._by_requests: dict[int, float] = {}
        self._most: dict[str, float] = {}
        self._bounds = {
            "tokens": tables.layer[0][-1],
            "requests": tables.sequences[0][-1],
            "tokens of context of a decode (mean)": tables.attention.longest_decode_context,
            "tokens of context of a chunk": tables.attention.longest_chunk_context,
        }

    def step_time(self, batch: Batch) -> int:
        """Returns the step's duration in nanoseconds; a step without tokens takes no time."""
        tokens = batch.num_tokens
        if not tokens:
            return 0
        self._note(batch)
        return int(
            self._step_ns
            + self.tokens_ns(tokens)
            + self.sequences_ns(batch.num_requests)
            + self.tables.num_layers * self.tables.attention.time_ns(batch)
            + 0.5
        )

    def parts(self, batch: Batch) -> dict[str, int]:
        """Returns the step's nanoseconds by part (`STEP_PARTS`)."""
        if not batch.num_tokens:
            return {}
        collectives = self._collectives_ns(self._padded(batch.num_tokens))
        values = {
            "gemm": self.tokens_ns(batch.num_tokens) - collectives,
            "attention": self.tables.num_layers * self.tables.attention.time_ns(batch),
            "kv_reads": 0.0,  # in attention: the tables measure both together
            "sequences": self.sequences_ns(batch.num_requests),
            "collectives": collectives,
            "host": self._step_ns,
        }
        return {part: round(ns) for part, ns in values.items()}

    def out_of_range(self) -> list[str]:
        """Returns one sentence for each direction in which a priced batch left the table, so far."""
        return [
            f"profile {self.name}: steps of up to {most:.0f} {what} were priced, but its tables end at "
            f"{self._bounds[what]:.0f}: these step times are extrapolated"
            for what, most in self._most.items()
        ]

    def _note(self, batch: Batch) -> None:
        asked = {
            "tokens": float(batch.num_tokens),
            "requests": float(batch.num_requests),
            "tokens of context of a decode (mean)": batch.decode_context / max(1, batch.num_decodes),
            "tokens of context of a chunk": float(max((ctx for _, ctx in batch.chunks), default=0)),
        }
        for what, value in asked.items():
            if value > self._bounds[what]:
                self._most[what] = max(value, self._most.get(what, 0.0))

    def tokens_ns(self, tokens: int) -> float:
        """Returns all that depends on the number of tokens alone, collectives included, in nanoseconds."""
        found = self._by_tokens.get(tokens)
        if found is None:
            tables, padded = self.tables, self._padded(tokens)
            layer = look_up(tables.layer, (padded,)) + (tables.experts.at(padded) if tables.experts else 0.0)
            found = tables.num_layers * layer + look_up(tables.once, (padded,)) + self._collectives_ns(padded)
            self._by_tokens[tokens] = found
        return found

    def _collectives_ns(self, tokens: int) -> float:
        return sum(per_step * look_up(points, (tokens,)) for per_step, points in self._collectives)

    def sequences_ns(self, requests: int) -> float:
        """Returns output head and sampler, in nanoseconds."""
        found = self._by_requests.get(requests)
        if found is None:
            found = self._by_requests[requests] = look_up(self.tables.sequences, (requests,))
        return found

    def _padded(self, tokens: int) -> int:
        sizes = self._graph_sizes
        if not sizes or tokens > sizes[-1]:
            return tokens
        return next(size for size in sizes if size >= tokens)
