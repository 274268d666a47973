"""From a scenario's distributions to samplers, the files of empirical ones included."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.errors import UserError
from sim.scenario.model import (
    Distribution,
    DurationDistribution,
    Empirical,
    Exponential,
    Fixed,
    Geometric,
    Lognormal,
    Normal,
    Scenario,
    Uniform,
    UniformRatio,
)
from sim.workload import distributions
from sim.workload.csv_columns import Column, numbers, read_columns, read_header
from sim.workload.random import IntSampler, Sampler
from sim.workload.text_files import open_lines

_EXPECTED = "a number, at least 0"


def token_sampler(distribution: Distribution, scenario: Scenario) -> IntSampler:
    """Returns a sampler of whole numbers, at least 1; the scenario says where files lie.

    Raises:
        UserError: the file of an empirical distribution cannot be read.
    """
    match distribution:
        case Uniform(low=low, high=high):
            return distributions.tokens(distributions.uniform_integers(low, high))
        case UniformRatio(mean=mean, ratio=ratio):
            bounds = distributions.uniform_ratio_bounds(mean, ratio)
            return distributions.tokens(distributions.uniform_integers(*bounds))
        case Geometric(mean=mean, max=most):
            return distributions.tokens(distributions.geometric(mean, _or_infinite(most)))
    return distributions.tokens(_sampler(distribution, scenario))


def time_sampler(distribution: DurationDistribution, scenario: Scenario) -> IntSampler:
    """Returns a sampler of nanoseconds, at least 0; the scenario says where files lie.

    Raises:
        UserError: the file of an empirical distribution cannot be read.
    """
    if isinstance(distribution, Uniform):
        return distributions.nanoseconds(distributions.uniform(distribution.low, distribution.high))
    return distributions.nanoseconds(_sampler(distribution, scenario))


def read_values(path: Path, column: str | None) -> NDArray[np.float64]:
    """Reads the values of an empirical distribution: one number a line, or a column of a CSV file with a header.

    Raises:
        UserError: the file cannot be read so; the message names line and column.
    """
    if column is not None:
        return read_columns(path, {column: Column((column,), numbers, _EXPECTED)})[column]
    header = read_header(path)
    if len(header) > 1:
        raise UserError(f"{path}:1:1: several columns; name one of them with 'column': {', '.join(header)}")
    if not _is_number(header[0]):
        return read_values(path, header[0])
    with open_lines(path) as lines:
        values = []
        for line in lines:
            if not line.isspace():
                if not _is_number(line):
                    raise UserError(f"{path}:{lines.number}:1: got {line.strip()!r}; expected {_EXPECTED}")
                values.append(float(line))
    return np.array(values)


def _sampler(distribution: Distribution | DurationDistribution, scenario: Scenario) -> Sampler:
    match distribution:
        case Fixed(value=value):
            return distributions.fixed(value)
        case Normal(mean=mean, std=std, min=least):
            return distributions.normal(mean, std, least)
        case Lognormal(median=median, p95=p95, max=most):
            return distributions.lognormal(median, p95, _or_infinite(most))
        case Exponential(mean=mean):
            return distributions.exponential(mean)
        case Empirical(file=file, column=column):
            return distributions.empirical(_values(scenario.resolve(file), column))
        case _:
            raise AssertionError(f"a distribution without a sampler: {distribution!r}")


def _values(path: Path, column: str | None) -> NDArray[np.float64]:
    try:
        stat = path.stat()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    return _cached_values(path, column, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _cached_values(path: Path, column: str | None, _mtime_ns: int, _size: int) -> NDArray[np.float64]:
    """Reads a file once for all runs of a search; a changed file is read anew."""
    return read_values(path, column)


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _is_number(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and value >= 0
