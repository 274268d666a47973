"""The step log as a few hundred values over time: no chart needs more, however many steps a run has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.records import RunRecord
from sim.results.columns import as_array
from sim.results.percentiles import IntArray

FloatArray = npt.NDArray[np.float64]

NUM_BINS = 120


@dataclass(frozen=True, slots=True)
class Steps:
    """The step log as arrays, one entry a step; `begin_ns` is where a step starts to count (see `sim.results`)."""

    begin_ns: IntArray
    end_ns: IntArray
    prefill: IntArray
    decodes: IntArray
    running: IntArray
    waiting: IntArray
    kv_share: FloatArray
    preempted: IntArray
    queries: IntArray
    hits: IntArray
    replica: IntArray
    num_replicas: int = 1

    @classmethod
    def of(cls, run: RunRecord) -> Steps:
        """Reads the log of a run; several replicas are taken together, in order of time."""
        log = run.steps
        start, end, replica = as_array(log.start_ns), as_array(log.end_ns), as_array(log.replica)
        order = np.argsort(end, kind="stable")
        end, begin, replica = end[order], start[order], replica[order]
        for number in range(run.num_replicas):
            own = np.flatnonzero(replica == number)
            begin[own[1:]] = np.maximum(begin[own[1:]], end[own[:-1]])
        free = as_array(log.num_free_blocks)[order]
        return cls(
            begin_ns=begin,
            end_ns=end,
            prefill=as_array(log.num_prefill_tokens)[order],
            decodes=as_array(log.num_decodes)[order],
            running=as_array(log.num_running)[order],
            waiting=as_array(log.num_waiting)[order],
            kv_share=1 - free / max(1, run.num_gpu_blocks - 1),
            preempted=as_array(log.num_preempted)[order],
            queries=as_array(log.prefix_queries)[order],
            hits=as_array(log.prefix_hits)[order],
            replica=replica,
            num_replicas=run.num_replicas,
        )

    @property
    def duration_ns(self) -> IntArray:
        """How long each step took, what it shares with the one before left out."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class Bins:
    """Equal stretches of time, each with the steps that end in it."""

    edges_s: FloatArray
    index: IntArray
    steps: Steps

    @classmethod
    def of(cls, steps: Steps, end_ns: int, num_bins: int = NUM_BINS) -> Bins:
        """Divides a run into bins."""
        edges = np.linspace(0, max(end_ns, 1), num_bins + 1)
        index = np.clip(np.searchsorted(edges, steps.end_ns, side="left") - 1, 0, num_bins - 1)
        return cls(edges / 1e9, index.astype(np.int64), steps)

    @property
    def middles_s(self) -> tuple[float, ...]:
        """The middle of each bin, to a thousandth of its width."""
        return tuple(round(float(each), 3) for each in (self.edges_s[1:] + self.edges_s[:-1]) / 2)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.edges_s) - 1

    def mean(self, values: IntArray | FloatArray) -> tuple[float, ...]:
        """Returns the time-weighted mean of each bin, summed over the replicas; idle time counts as 0."""
        width_ns = (self.edges_s[1] - self.edges_s[0]) * 1e9
        weighted = np.bincount(self.index, weights=values * self.steps.duration_ns, minlength=self.count)
        return _rounded(np.minimum(weighted / width_ns, self._largest(values).sum(axis=0)))

    def largest(self, values: IntArray | FloatArray) -> tuple[float, ...]:
        """Returns the largest value of each bin, 0 where no step ends; of several replicas, their largest added up."""
        return _rounded(self._largest(values).sum(axis=0))

    def mean_share(self, values: FloatArray) -> tuple[float, ...]:
        """Returns the time-weighted mean of each bin, and over the replicas."""
        return _rounded(np.array(self.mean(values)) / self.steps.num_replicas)

    def largest_share(self, values: FloatArray) -> tuple[float, ...]:
        """Returns the largest value of each bin, of the replica that has it."""
        return _rounded(self._largest(values).max(axis=0))

    def total(self, values: IntArray) -> tuple[float, ...]:
        """Returns the sum of each bin."""
        return _rounded(np.bincount(self.index, weights=values, minlength=self.count).astype(np.float64))

    def ratio(self, part: IntArray, whole: IntArray) -> tuple[float | None, ...]:
        """Returns Σ part / Σ whole of each bin, None where there is nothing."""
        parts = np.bincount(self.index, weights=part, minlength=self.count)
        wholes = np.bincount(self.index, weights=whole, minlength=self.count)
        return tuple(round(float(p / w), 4) if w else None for p, w in zip(parts, wholes, strict=True))

    def per_step(self, values: IntArray) -> tuple[float, ...]:
        """Returns the mean over the steps of each bin, each step weighted by how long it took."""
        weight = np.bincount(self.index, weights=self.steps.duration_ns, minlength=self.count)
        weighted = np.bincount(self.index, weights=values * self.steps.duration_ns, minlength=self.count)
        return _rounded(np.divide(weighted, weight, out=np.zeros(self.count), where=weight > 0))

    def _largest(self, values: IntArray | FloatArray) -> FloatArray:
        """Returns a row a replica."""
        found = np.zeros((self.steps.num_replicas, self.count))
        np.maximum.at(found, (self.steps.replica, self.index), values)
        return found


def _rounded(values: FloatArray | IntArray) -> tuple[float, ...]:
    """Returns four significant digits: what a chart shows, and no bytes more."""
    return tuple(float(f"{value:.4g}") for value in values)
