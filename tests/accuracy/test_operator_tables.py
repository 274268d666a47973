"""Llama-3.1-8B on one RTX 4090 from operator tables alone: an overload run that nothing was fitted to."""

from __future__ import annotations

import csv
from functools import cache

import pytest

from calibrate.readers import read_runs
from calibrate.replay import Replay, replay
from calibrate.replay_server import choose_server
from sim.engine.profile import load_profile
from tests.accuracy.shared import LATENCIES, measurements, of_comparison

pytestmark = pytest.mark.accuracy

MEANS = tuple((metric, "mean") for metric in ("ttft_ms", "tpot_ms", "e2el_ms"))


@cache
def replayed() -> Replay:
    folder = measurements("llmservingsim")
    prompts = folder / "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"
    (run,) = read_runs(folder / "rtx4090-llama-3.1-8b" / "requests.jsonl", prompts=prompts)
    return replay(run, choose_server(load_profile("llama-3.1-8b-rtx-4090")).plan())


def test_means_duration_and_distribution_are_within_three_per_cent() -> None:
    bars = of_comparison("RTX 4090, 300 at 10/s", replayed().comparison, {})
    for key in (*MEANS, ("duration_s", None), *LATENCIES):
        bars.each(key, most=3)
    bars.check()


def test_the_fullest_moments_are_met() -> None:
    table = replayed().comparison
    bars = of_comparison("RTX 4090, 300 at 10/s", table, {})
    bars.number("most running", table.max_running, 49, percent=5)
    bars.number("most waiting", table.max_waiting, 234, percent=5)
    bars.check()


def test_running_and_waiting_follow_the_measured_ones_over_time() -> None:
    path = measurements("llmservingsim") / "rtx4090-llama-3.1-8b" / "timeseries.csv"
    with path.open() as file:
        ticks = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    steps = replayed().record.steps
    ends = [end / 1e9 for end in steps.end_ns]
    away = {"running": 0.0, "waiting": 0.0}
    place = 0
    for tick in ticks[:-1]:
        while place + 1 < len(ends) and ends[place] < tick["t"]:
            place += 1
        away["running"] += abs(steps.num_running[place] - tick["running"]) / len(ticks)
        away["waiting"] += abs(steps.num_waiting[place] - tick["waiting"]) / len(ticks)
    assert away["running"] <= 2.0
    assert away["waiting"] <= 4.0
