"""Over time, the levels of several replicas are added up, and their shares averaged."""

from functools import cache

import numpy as np
import pytest

from reports.context import Context
from reports.source import RunKey, Source
from reports.timeseries import Bins, Steps
from reports.words import Words
from sim.capacity import find_capacity
from sim.records import RunRecord
from sim.scenario.load import scenario_from_text
from sim.simulate import simulate
from tests.reports.worlds import WORLDS


@cache
def source() -> Source:
    changes = ("server.replicas=3", "workload.request_rate=20", "objectives=['ttft.p95 <= 1s']")
    scenario = scenario_from_text(WORLDS["public"], overrides=(*changes, "run.seeds=1"))
    runs: dict[RunKey, RunRecord] = {}

    def keep(run: RunRecord, load: float | None, seed: int) -> None:
        runs[load, seed] = run

    return Source.of_result(scenario, find_capacity(scenario, simulate, store=keep), runs)


def test_levels_over_time_are_those_of_all_replicas_together() -> None:
    detail = source().detail(source().shown_load)
    assert detail is not None
    steps = Steps.of(detail.run)
    bins = Bins.of(steps, detail.run.end_ns)
    whole_s = float(bins.edges_s[1] - bins.edges_s[0])
    running_s = sum(bins.mean(steps.running)) * whole_s
    expected_s = float((steps.running * steps.duration_ns).sum()) / 1e9
    assert running_s == pytest.approx(expected_s, rel=0.02)
    one = max(float(steps.running[steps.replica == number].max()) for number in range(3))
    assert max(bins.mean(steps.running)) > one  # three replicas run more than one can
    assert max(bins.largest_share(steps.kv_share)) <= 1
    assert np.mean(bins.mean_share(steps.kv_share)) < max(bins.largest_share(steps.kv_share))


def test_seats_are_those_of_all_replicas() -> None:
    context = Context.of(source(), Words.of("en"))
    assert context.seats == 3 * 64
