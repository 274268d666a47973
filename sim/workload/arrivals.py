"""Arrival processes: unit-rate times, and the curve of the rate that turns them into seconds.

A process of rate λ(t) is a process of rate one looked at through another clock: if u is the k-th time of the unit-rate
process, the k-th request comes at the t where ∫₀ᵗ λ = u. So the k-th request is the same request at every rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Peaks:
    """The rate is `factor` times higher for `duration_s` in every `every_s`; the first peak starts half a period in."""

    factor: float
    duration_s: float
    every_s: float


def unit_times(generator: Generator, burstiness: float, num_requests: int | None) -> Iterator[NDArray[np.float64]]:
    """Yields the times of a process of one request a second, in blocks; endless when no number is given.

    The gaps are those of `vllm bench serve --burstiness B` (vllm/benchmarks/serve.py, release 0.32): gamma with shape B
    and mean 1, so 1 is a Poisson process, less is burstier, and infinity is constant. The first gap comes before the
    first request. With a number of requests N the times are rescaled, as there, so that the last one is N.

    Args:
        generator: where the gaps come from.
        burstiness: the shape, above 0.
        num_requests: how many; None: without end.
    """
    if num_requests is not None:
        times = np.cumsum(_gaps(generator, burstiness, num_requests))
        yield times * (num_requests / times[-1]) if times[-1] > 0 else times  # tiny shapes underflow to 0
        return
    elapsed = 0.0
    while True:
        block = elapsed + np.cumsum(_gaps(generator, burstiness, _BLOCK))
        elapsed = float(block[-1])
        yield block


def at_once(num_requests: int) -> Iterator[int]:
    """Yields the time 0 for every request."""
    for _ in range(num_requests):
        yield 0


def arrivals_ns(times: Iterator[NDArray[np.float64]], curve: RateCurve, end_ns: int | None) -> Iterator[int]:
    """Yields the arrivals in nanoseconds, up to but not including `end_ns`."""
    for block in times:
        seconds = curve.time_of(block)
        finite = seconds[np.isfinite(seconds)]
        for arrival_ns in np.rint(finite * 1e9).astype(np.int64).tolist():
            if end_ns is not None and arrival_ns >= end_ns:
                return
            yield arrival_ns
        if len(finite) < len(seconds):  # the rate has fallen to zero for good
            return


class RateCurve:
    """A rate that is constant between steps, with periodic peaks on top.

    Args:
        rate_per_s: the rate before the first step and outside the peaks, above 0.
        steps: (second, factor): from that second on the rate is `factor` times `rate_per_s`, until the next step.
        peaks: multiply whatever the rate is.
    """

    def __init__(self, rate_per_s: float, steps: tuple[tuple[float, float], ...] = (), peaks: Peaks | None = None):
        self._rate = rate_per_s
        self._steps = sorted(steps)
        self._peaks = peaks
        self._tabulate((self._steps[-1][0] if steps else 0.0) + (4 * peaks.every_s if peaks else 1.0))

    def rate_at(self, second: float) -> float:
        """Returns the rate at a time, in requests per second."""
        factor = 1.0
        for start, step_factor in self._steps:
            if start <= second:
                factor = step_factor
        if self._peaks:
            since_first = second - self._peaks.every_s / 2
            if since_first >= 0 and since_first % self._peaks.every_s < self._peaks.duration_s:
                factor *= self._peaks.factor
        return self._rate * factor

    def time_of(self, units: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the seconds at which the integral of the rate reaches `units` (ascending); infinity where never."""
        while self._peaks and units[-1] > self._areas[-1]:
            before = self._areas[-1]
            self._tabulate(2 * self._horizon)
            if self._areas[-1] == before:  # whole periods more, and not one request: the last step's factor is 0
                break
        units = np.maximum(units, np.finfo(np.float64).tiny)  # 0/0 would be no time, where the rate starts at 0
        piece = np.minimum(np.searchsorted(self._areas, units, side="left") - 1, len(self._starts) - 1)
        with np.errstate(divide="ignore"):
            seconds: NDArray[np.float64] = self._starts[piece] + (units - self._areas[piece]) / self._rates[piece]
        return seconds

    def _tabulate(self, horizon: float) -> None:
        """Cuts the time up to the horizon into pieces of constant rate; the last piece goes on for ever."""
        edges = {0.0, horizon, *(start for start, _ in self._steps if start < horizon)}
        if self._peaks:
            for start in np.arange(self._peaks.every_s / 2, horizon, self._peaks.every_s).tolist():
                edges |= {start, min(start + self._peaks.duration_s, horizon)}
        ordered = np.array(sorted(edges))
        middles = (ordered[:-1] + ordered[1:]) / 2
        self._horizon = horizon
        self._starts: NDArray[np.float64] = ordered[:-1]
        self._rates: NDArray[np.float64] = np.array([self.rate_at(middle) for middle in middles.tolist()])
        self._areas: NDArray[np.float64] = np.concatenate(([0.0], np.cumsum(self._rates * np.diff(ordered))))


def _gaps(generator: Generator, burstiness: float, n: int) -> NDArray[np.float64]:
    if math.isinf(burstiness):
        return np.ones(n)
    if burstiness == 1:
        return generator.standard_exponential(n)
    return generator.standard_gamma(burstiness, n) / burstiness
