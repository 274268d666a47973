"""The distributions of lengths and times, as samplers on plain values.

Each function returns a sampler: given a generator and n, it draws n values as float64. `tokens` and `nanoseconds` make
whole numbers of them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sim.scenario.bounds import MOST_SECONDS
from sim.workload.random import IntSampler, Sampler

_MOST_TOKENS = 2.0**40
"""What a drawn length is cut to: longer than any model's context, and the sum of a thousand fits 64 bits."""

_Z95 = 1.6448536269514722  # the 95th percentile of the standard normal


def fixed(value: float) -> Sampler:
    """Always `value`."""
    return lambda _generator, n: np.full(n, value, dtype=np.float64)


def uniform(low: float, high: float) -> Sampler:
    """Uniform between `low` and `high`."""
    return lambda generator, n: generator.uniform(low, high, n)


def uniform_integers(low: float, high: float) -> Sampler:
    """Uniform over the whole numbers from `low` to `high`, both included."""
    first = round(low)
    last = max(first, round(high))
    return lambda generator, n: generator.integers(first, last + 1, n).astype(np.float64)


def uniform_ratio_bounds(mean: float, ratio: float) -> tuple[int, int]:
    """Returns the lowest and highest length of `vllm bench serve --random-range-ratio`.

    Its rule (vllm/benchmarks/datasets, release 0.32): whole numbers from floor(mean·(1 − ratio)) to
    ceil(mean·(1 + ratio)), both included; a length is at least 1.
    """
    return max(1, math.floor(mean * (1 - ratio))), max(1, math.ceil(mean * (1 + ratio)))


def normal(mean: float, std: float, minimum: float = -math.inf) -> Sampler:
    """Normal; what falls below `minimum` is set to it."""
    return lambda generator, n: np.maximum(generator.normal(mean, std, n), minimum)


def lognormal(median: float, p95: float, maximum: float = math.inf) -> Sampler:
    """Lognormal with this median and 95th percentile; what exceeds `maximum` is set to it."""
    mu = math.log(median)
    sigma = (math.log(p95) - mu) / _Z95
    return lambda generator, n: np.minimum(generator.lognormal(mu, sigma, n), maximum)


def exponential(mean: float) -> Sampler:
    """Exponential."""
    return lambda generator, n: generator.exponential(mean, n)


def geometric(mean: float, maximum: float = math.inf) -> Sampler:
    """Geometric on 1, 2, 3, … with this mean (≥ 1); what exceeds `maximum` is set to it."""
    return lambda generator, n: np.minimum(generator.geometric(1 / mean, n).astype(np.float64), maximum)


def empirical(values: NDArray[np.float64]) -> Sampler:
    """One of the given values, each equally likely, drawn with replacement."""
    return lambda generator, n: values[generator.integers(0, len(values), n)]


def tokens(sampler: Sampler) -> IntSampler:
    """Rounds to whole tokens, at least one; a length beyond any context is cut, so that it stays a number."""

    def draw(generator: Generator, n: int) -> NDArray[np.int64]:
        return np.clip(np.rint(sampler(generator, n)), 1.0, _MOST_TOKENS).astype(np.int64)

    return draw


def nanoseconds(sampler: Sampler) -> IntSampler:
    """Rounds seconds to whole nanoseconds, never negative; a time beyond the longest run is cut: it never comes."""

    def draw(generator: Generator, n: int) -> NDArray[np.int64]:
        return np.rint(np.clip(sampler(generator, n), 0.0, MOST_SECONDS) * 1e9).astype(np.int64)

    return draw
