"""gpt-oss-120b on one H200: the published ladder, each rung predicted from the others, and what lies beyond it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from calibrate.readers.ladder import Rung, read_ladder
from calibrate.replay import Replay, replay_rung
from calibrate.replay_server import choose_server
from sim.engine.profile import load_profile
from tests.accuracy.shared import Bars, measurements, of_comparison, of_held_out, spreads

pytestmark = pytest.mark.accuracy

NAME = "gpt-oss-120b-h200"
SCORED = (("ttft_ms", "mean"), ("tpot_ms", "mean"), ("itl_ms", "p50"), ("e2el_ms", "mean"))
CONCURRENCIES = (1, 4, 16, 64)


@cache
def rungs() -> dict[int, Rung]:
    return {rung.max_concurrency: rung for rung in read_ladder(measurements("gptoss120b-h200") / "ladder.csv")}


@cache
def replayed(concurrency: int) -> Replay:
    """Replays a rung, or one of more requests in flight, of the same lengths."""
    rung = rungs().get(concurrency)
    if rung is None:
        name, number = f"C={concurrency}", 10 * concurrency
        rung = replace(rungs()[64], name=name, max_concurrency=concurrency, num_requests=number, measured={})
    return replay_rung(rung, choose_server(load_profile(NAME)).plan(), length_spread=1 / 9)


def set_bars(bars: Bars) -> None:
    bars.median_and_worst(SCORED, median=4, worst=12)
    bars.each(("output_throughput_per_s", None), most=5)
    bars.check()


@pytest.mark.parametrize("concurrency", CONCURRENCIES)
def test_the_shipped_profile_predicts_the_rung(concurrency: int) -> None:
    table = replayed(concurrency).comparison
    set_bars(of_comparison(f"C={concurrency}", table, spreads(load_profile(NAME).errors)))
    assert table.num_preemptions == 0


@pytest.mark.parametrize("concurrency", CONCURRENCIES)
def test_the_rung_was_predicted_from_the_others(concurrency: int) -> None:
    set_bars(of_held_out(load_profile(NAME), f"sweep_c{concurrency}"))


def test_128_in_flight_are_beyond_the_data_and_fit_in_the_pool() -> None:
    result = replayed(128)
    assert result.comparison.num_preemptions == 0
    assert any("these step times are extrapolated" in sentence for sentence in result.out_of_range)


def test_256_in_flight_are_preempted_now_and_then() -> None:
    result = replayed(256)
    assert result.comparison.num_preemptions > 0
    assert any("these step times are extrapolated" in sentence for sentence in result.out_of_range)
