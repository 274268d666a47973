"""Metrics over time in Prometheus' formats: the text a scrape returns, and an OpenMetrics file to be loaded afterwards.

An `Exposition` holds every event with its time, so that the metrics of any moment can be written.
`promtool tsdb create-blocks-from openmetrics` loads the file, and a dashboard shows it like a server's own history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.results.percentiles import IntArray

FloatArray = npt.NDArray[np.float64]

INFO = "vllm:cache_config_info"

START_UNIX_S = 1_767_225_600
"""Where a run begins in an OpenMetrics file unless told otherwise: 2026-01-01T00:00:00Z; files can be compared."""


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric: its name without the suffix of a counter, what it says, and its type."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Gauge(_Family):
    """A level that holds from one time to the next."""

    times_ns: IntArray
    values: FloatArray


@dataclass(frozen=True, slots=True)
class Counter(_Family):
    """A sum of amounts, each at its time; one a set of further labels."""

    series: tuple[tuple[str, IntArray, IntArray], ...]  # further labels, times, amounts


@dataclass(frozen=True, slots=True)
class Histogram(_Family):
    """Observed values, each at its time and so many times over."""

    buckets: tuple[float, ...]
    times_ns: IntArray
    values: FloatArray
    counts: IntArray


@dataclass(frozen=True, slots=True)
class Exposition:
    """Every metric of a run.

    Attributes:
        families: the metrics.
        labels: of every sample: model and engine.
        info: the labels of `vllm:cache_config_info`.
        end_ns: when the run ends.
    """

    families: tuple[Gauge | Counter | Histogram, ...]
    labels: str
    info: str
    end_ns: int

    def text(self, at_ns: int) -> str:
        """Returns what a scrape at a moment of the run returns (text format 0.0.4)."""
        lines: list[str] = []
        for family in self.families:
            name = family.name + ("_total" if isinstance(family, Counter) else "")
            lines += [f"# HELP {name} {family.text}", f"# TYPE {name} {_type(family)}"]
            for group in self._groups(family, (at_ns,)):
                lines += [f"{series.name} {series.values[0]}" for series in group]
        lines += [f"# HELP {INFO} Information of the LLMEngine CacheConfig", f"# TYPE {INFO} gauge"]
        lines.append(f"{INFO}{{{self.info}}} 1.0")
        return "\n".join(lines) + "\n"

    def openmetrics(self, *, interval_s: float = 15.0, start_unix_s: float = START_UNIX_S) -> Iterator[str]:
        """Yields the parts of an OpenMetrics file with a sample every `interval_s` of the run, the end included.

        Args:
            interval_s: between two samples, in the run's time.
            start_unix_s: the time stamp of the run's start.
        """
        step_ns = round(interval_s * 1e9)
        times = [*range(0, self.end_ns, step_ns), self.end_ns]
        stamps = [f"{start_unix_s + time / 1e9:.3f}" for time in times]
        for family in self.families:
            yield f"# TYPE {family.name} {_type(family)}\n# HELP {family.name} {family.text}\n"
            for group in self._groups(family, times):  # time within a group may not go backwards
                for index, stamp in enumerate(stamps):
                    yield "".join(f"{series.name} {series.values[index]} {stamp}\n" for series in group)
        yield f"# TYPE {INFO} gauge\n"
        yield "".join(f"{INFO}{{{self.info}}} 1.0 {stamp}\n" for stamp in stamps)
        yield "# EOF\n"

    def _groups(self, family: Gauge | Counter | Histogram, at_ns: Sequence[int]) -> Iterator[list[_Series]]:
        """Yields the series of a metric, those that belong together (the buckets of a histogram) as one group."""
        match family:
            case Gauge():
                place = np.searchsorted(family.times_ns, at_ns, side="right")
                yield [self._series(family.name, "", np.concatenate([[0.0], family.values])[place])]
            case Counter():
                for more, times, amounts in family.series:
                    yield [self._series(f"{family.name}_total", more, _cumulative(times, amounts, at_ns))]
            case Histogram():
                yield self._histogram(family, at_ns)

    def _histogram(self, family: Histogram, at_ns: Sequence[int]) -> list[_Series]:
        num_buckets = len(family.buckets) + 1
        bucket = np.searchsorted(np.array(family.buckets), family.values, side="left")
        when = np.searchsorted(np.array(at_ns), family.times_ns, side="left")
        known = when < len(at_ns)
        cells = when[known] * num_buckets + bucket[known]
        table = np.bincount(cells, weights=family.counts[known], minlength=len(at_ns) * num_buckets)
        table = table.reshape(len(at_ns), num_buckets).cumsum(axis=0).cumsum(axis=1)
        weighted = family.values[known] * family.counts[known]
        sums = np.bincount(when[known], weights=weighted, minlength=len(at_ns)).cumsum()
        bounds = [*(f"{float(bound)}" for bound in family.buckets), "+Inf"]
        group = [
            self._series(f"{family.name}_bucket", f'le="{bound}"', table[:, index])
            for index, bound in enumerate(bounds)
        ]
        group.append(self._series(f"{family.name}_count", "", table[:, -1]))
        group.append(self._series(f"{family.name}_sum", "", sums))
        return group

    def _series(self, name: str, more: str, values: FloatArray | IntArray) -> _Series:
        labels = f"{self.labels},{more}" if more else self.labels
        return _Series(f"{name}{{{labels}}}", [_written(float(value)) for value in values])


@dataclass(frozen=True, slots=True)
class _Series:
    """A name with its labels, and what is written at each time."""

    name: str
    values: list[str]


def _cumulative(times: IntArray, amounts: IntArray, at_ns: Sequence[int]) -> FloatArray:
    sums = np.concatenate([[0], np.cumsum(amounts)])
    return sums[np.searchsorted(times, at_ns, side="right")].astype(np.float64)


def _type(family: Gauge | Counter | Histogram) -> str:
    return {Gauge: "gauge", Counter: "counter", Histogram: "histogram"}[type(family)]


def _written(value: float) -> str:
    """Writes a sample as prometheus_client does: a float, whole numbers with .0."""
    return repr(round(value, 9))
