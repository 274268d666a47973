"""What a simulation-in-the-loop fit compares: a measured run, and the same run simulated with given numbers.

Each target is one number of a run with the relative error at which it counts as one unit of residual. Percentiles of
all three latencies carry the distribution, not only its middle; the first token of a saturated run is trusted little:
requests that end together are replaced together, so that its groups of requests are frozen in where chance put them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrate.comparison import Comparison, Latencies, compare, completions_per_s, predicted_latencies
from calibrate.fit_terms import ModelForm, client_latency
from calibrate.readers.ladder import Key, Rung
from calibrate.readers.measured import MeasuredRun
from calibrate.replay import compare_rung, simulate_requests
from sim.core.kv_cache_interface import FullAttentionSpec
from sim.deployment import Deployment
from sim.engine.fitted import FittedModel
from sim.engine.step_time import StepTimeModel
from sim.records import RunRecord
from sim.workload.trace import Trace

_SHORT_RUN = 400
Band = Literal["low", "middle", "saturated"]

QUANTILES = {5.0: 2.0, 10.0: 2.0, 25.0: 2.0, 50.0: 2.0, 75.0: 2.0, 90.0: 2.0, 95.0: 3.0, 99.0: 5.0}
"""Percentiles compared, and how many per cent of each are one unit of residual. Real servers repeat a percentile to
about 1 %; neighbouring percentiles err together, so each counts for less."""

_TTFT_FACTOR = 2.0
_SATURATED_TTFT_FACTOR = 20.0
_THROUGHPUT_PERCENT = 1.0
_START_UP = 0.1
"""Share of a saturated run at its beginning that is not compared: it fills up first, and real clients and servers
stumble while they open connections."""

_LADDER_PERCENT: dict[Key, float] = {
    ("ttft_ms", "mean"): 4.0,
    ("ttft_ms", "p50"): 6.0,
    ("tpot_ms", "mean"): 1.0,
    ("tpot_ms", "p50"): 1.5,
    ("itl_ms", "p50"): 1.0,
    ("itl_ms", "mean"): 1.0,
    ("e2el_ms", "mean"): 1.0,
    ("e2el_ms", "p50"): 1.5,
    ("output_throughput_per_s", None): 1.0,
    ("request_throughput_per_s", None): 1.0,
}
"""Of a rung's numbers: means and medians only; its tails depend on the start-up burst and few requests."""


@dataclass(frozen=True, slots=True)
class Target:
    """One measured number, and the relative error that is one unit of residual."""

    measured: float
    sigma: float


@dataclass(frozen=True)
class RequestCase:
    """A run whose requests are known one by one."""

    run: MeasuredRun
    deployment: Deployment
    max_concurrency: int | None = None
    window_s: tuple[float, float] | None = None
    num_skipped: int | None = None
    """Requests at the beginning that are not compared; None: the start-up of a saturated run, else none."""
    num_compared: int | None = None
    """How many of the first requests count; None: all. A run cut short ends with fewer in flight than the real one."""

    @property
    def name(self) -> str:
        """For tables."""
        return self.run.name

    @property
    def band(self) -> Band:
        """How loaded the server was: saturated where the client's cap held requests back, else by those in flight."""
        run = self.run
        wanted = run.requests.wanted_ns
        if wanted is not None and np.percentile(run.requests.sent_ns - wanted, 90) > 5e8:
            return "saturated"
        return "low" if self._in_flight() < 16 else "middle"

    def shortened(self, share: float) -> RequestCase:
        """Returns the beginning of the run, for a first search that need not be exact; all of it when it is short."""
        number = max(_SHORT_RUN, round(share * len(self.run)))
        kept = number - round(1.5 * self._in_flight())
        if number >= len(self.run) or kept < number / 2:
            return self
        run = self.run.first(number)
        end = float(run.sent_s[kept])
        skipped = min(self._skipped(), kept // 2)
        return replace(self, run=run, window_s=(0.2 * end, end), num_skipped=skipped, num_compared=kept)

    def _skipped(self) -> int:
        if self.num_skipped is not None:
            return self.num_skipped
        return round(_START_UP * len(self.run)) if self.band == "saturated" else 0

    def _in_flight(self) -> float:
        """Returns the mean number of requests in flight."""
        run = self.run
        e2el = np.zeros(1) if run.e2el_s is None else run.e2el_s[~np.isnan(run.e2el_s)]
        return float(e2el.sum() / max(1e-9, float(run.sent_s[-1] - run.sent_s[0])))

    def targets(self) -> dict[Key, Target]:
        """Returns what was measured."""
        return _targets(self._numbers(_known(self.run)), self.band)

    def simulate(self, model: StepTimeModel, values: Mapping[str, float]) -> RunRecord:
        """Runs the same requests."""
        return simulate_requests(
            self.run.requests, self.deployment, model, client_latency(values), max_concurrency=self.max_concurrency
        )

    def predicted(self, record: RunRecord) -> dict[Key, float]:
        """Returns the simulation's numbers under the keys of `targets`."""
        return self._numbers(predicted_latencies(record))

    def comparison(self, record: RunRecord) -> Comparison:
        """Returns the table for reports."""
        return compare(self.run, predicted_latencies(record), record, window_s=self.window())

    def window(self) -> tuple[float, float]:
        """Returns where completions are counted: without the first tenth, to the last send."""
        if self.window_s is not None:
            return self.window_s
        last = float(self.run.sent_s[-1])
        return 0.1 * last, max(last, 1e-9)

    def _numbers(self, latencies: Latencies) -> dict[Key, float]:
        numbers: dict[Key, float] = {}
        counted = slice(self._skipped(), self.num_compared)
        for metric in ("ttft", "tpot", "e2el"):
            values = getattr(latencies, f"{metric}_s")[counted]
            known = values[~np.isnan(values)]
            if len(known):
                cuts = 1e3 * np.percentile(known, list(QUANTILES))
                numbers |= {(f"{metric}_ms", f"p{q:g}"): float(cut) for q, cut in zip(QUANTILES, cuts, strict=True)}
        throughput = completions_per_s(latencies, self.window())
        if throughput:
            numbers["request_throughput_per_s", None] = throughput
        return numbers


@dataclass(frozen=True)
class LadderCase:
    """A closed-loop run of which only the totals are known; its requests are drawn."""

    rung: Rung
    deployment: Deployment
    length_spread: float
    seed: int = 0

    @property
    def name(self) -> str:
        """For tables."""
        return self.rung.name

    def shortened(self, share: float) -> LadderCase:  # noqa: ARG002 - totals hold for the whole run only
        """Returns the whole run."""
        return self

    @property
    def band(self) -> Band:
        """By the requests in flight."""
        share = self.rung.max_concurrency / self.deployment.scheduler_config.max_num_seqs
        return "low" if share < 0.05 else "middle" if share < 0.5 else "saturated"

    def targets(self) -> dict[Key, Target]:
        """Returns what was measured and is fitted."""
        measured = self.rung.measured
        return {key: Target(measured[key], p / 100) for key, p in _LADDER_PERCENT.items() if measured.get(key)}

    def simulate(self, model: StepTimeModel, values: Mapping[str, float]) -> RunRecord:
        """Runs the drawn requests."""
        requests = self.rung.requests(self.length_spread, self.seed)
        cap = self.rung.max_concurrency
        deployment = with_one_group(self.deployment, requests, cap)
        return simulate_requests(requests, deployment, model, client_latency(values), max_concurrency=cap)

    def predicted(self, record: RunRecord) -> dict[Key, float]:
        """Returns the simulation's numbers."""
        table = self.comparison(record)
        return {(row.metric, row.statistic): row.predicted for row in table.rows if row.predicted is not None}

    def comparison(self, record: RunRecord) -> Comparison:
        """Returns the table for reports; the measured side holds what the rung states."""
        return compare_rung(self.rung, self.rung.requests(self.length_spread, self.seed), record)


Case = RequestCase | LadderCase


def with_one_group(deployment: Deployment, requests: Trace, cap: int) -> Deployment:
    """Returns the server with KV blocks of one kind where they cannot run out: the schedule is the same, found faster.

    Blocks decide what is scheduled only where there are too few of them, or where prefixes are found in them.
    """
    cache = deployment.cache_config
    most = int(np.max(requests.prompt_tokens + requests.output_tokens))
    needed = cap * len(cache.kv_cache_groups) * (-(-most // cache.block_size) + 1)
    if cache.enable_prefix_caching or needed > cache.num_gpu_blocks * (1 - deployment.scheduler_config.watermark):
        return deployment
    return replace(deployment, cache_config=replace(cache, kv_cache_groups=(FullAttentionSpec(),)))


def evaluate(case: Case, form: ModelForm, values: Mapping[str, float]) -> NDArray[np.float64]:
    """Returns the residuals, log(predicted / measured) in units of each target's error, in the order of `targets`."""
    record = case.simulate(model_of(case, form, values), values)
    predicted = case.predicted(record)
    return np.array(
        [
            math.log(max(predicted.get(key, 0.0), 1e-3 * target.measured) / target.measured) / target.sigma
            for key, target in case.targets().items()
        ]
    )


def model_of(case: Case, form: ModelForm, values: Mapping[str, float]) -> FittedModel:
    """Returns the step-time model with these numbers."""
    return FittedModel(form.coefficients(values), async_scheduling=case.deployment.flags.async_scheduling)


def _known(run: MeasuredRun) -> Latencies:
    from calibrate.comparison import measured_latencies

    return measured_latencies(run)


def _targets(numbers: Mapping[Key, float], band: Band) -> dict[Key, Target]:
    targets = {}
    for (metric, statistic), value in numbers.items():
        percent = _THROUGHPUT_PERCENT if statistic is None else QUANTILES[float(statistic[1:])]
        if metric == "ttft_ms":
            percent *= _SATURATED_TTFT_FACTOR if band == "saturated" else _TTFT_FACTOR
        targets[metric, statistic] = Target(value, percent / 100)
    return targets
