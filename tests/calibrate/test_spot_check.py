"""A scenario's requests go to the server and through the simulation; the comparison says how far apart they are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from calibrate.http_client import Endpoint
from calibrate.live_driver import LiveRun
from calibrate.spot_check import spot_check as check_live
from calibrate.spot_comparison import Repeat, SpotCheck, compare
from calibrate.spot_plot import write_plot
from calibrate.spot_text import as_text
from sim.cli.spot_check import spot_check
from sim.errors import UserError
from sim.records import Outcome, RequestRecord, RunRecord
from sim.scenario.load import load_scenario
from tests.calibrate.fake_server import FakeServer

MS = 1_000_000
SERVER = "{model: Qwen/Qwen3-0.6B, gpu: h100, flags: {max_model_len: 4096, num_gpu_blocks_override: 400}}"
CLOSED = "{kind: closed_loop, num_requests: 9, max_concurrency: 3, classes: [{name: a, prompt_tokens: 30, "
CLOSED += "output_tokens: {uniform: {low: 2, high: 6}}, shared_prefix: {tokens: 20}}]}"
USERS = "{kind: users, users: 2, start: fresh, classes: [{name: a, first_prompt_tokens: 20, next_prompt_tokens: 7, "
USERS += "output_tokens: 5, turns: 3, think_time: 0.01s}]}\nrun: {duration: 0.4s}"


def _scenario(tmp_path: Path, workload: str = CLOSED) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(f"name: check\nserver: {SERVER}\nworkload: {workload}\n", encoding="utf-8")
    return path


def _invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(spot_check)
    return CliRunner().invoke(app, list(arguments))


def test_the_live_requests_are_the_simulated_ones(tmp_path: Path) -> None:
    with FakeServer() as server:
        result = check_live(load_scenario(_scenario(tmp_path)), Endpoint.of(server.base_url), repeats=2)
        check = asyncio.run(result)
    sent = [(len(body["prompt"]), body["max_tokens"]) for body in server.bodies]
    simulated = [(r.num_prompt_tokens, r.num_output_tokens) for r in check.simulated.requests]
    assert sorted(sent[:9]) == sorted(sent[9:]) == sorted(simulated)
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert len({prompt[:20] for prompt in prompts[:9]}) == 1, "the shared prefix is shared"
    assert len({prompt[20:] for prompt in prompts[:9]}) == 9, "the rest is not"
    assert prompts[0][:20] != prompts[9][:20], "a repeat has another text, or it would hit the cache of the first run"


def test_a_follow_up_repeats_the_real_answer(tmp_path: Path) -> None:
    with FakeServer() as server:
        asyncio.run(check_live(load_scenario(_scenario(tmp_path, USERS)), Endpoint.of(server.base_url), repeats=1))
    assert all(body["return_token_ids"] for body in server.bodies)
    first, second = (next(b["prompt"] for b in server.bodies if len(b["prompt"]) == n) for n in (20, 32))
    assert second[20:25] == [7_000, 7_001, 7_002, 7_003, 7_004]
    assert any(second[:20] == body["prompt"] for body in server.bodies), "it begins with the first turn"
    assert len(first) == 20


def _run(scale: float, num_preemptions: float = 0.0) -> Repeat:
    record = RunRecord(("a",), 0, 0, 0, 0, 1, True)
    for i in range(20):
        sent, ttft = i * 100 * MS, round(scale * (50 + i) * MS)
        record.requests.append(
            RequestRecord(
                i,
                0,
                -1,
                0,
                0,
                sent,
                sent,
                10,
                11,
                first_token_ns=sent + ttft,
                finish_ns=sent + ttft + round(scale * 100 * MS),
                num_output_tokens=11,
                outcome=Outcome.FINISHED,
            )
        )
        record.itl.end_ns.append(sent + ttft)
        record.itl.gap_ns.append(round(scale * 10 * MS))
        record.itl.class_id.append(0)
        record.itl.count.append(10)
    return Repeat(LiveRun(record), {"num_preemptions": num_preemptions, "prefix_queries": 200.0, "prefix_hits": 50.0})


def _check(predicted: float, *live: float, preemptions: tuple[float, ...] = (), simulated: int = 0) -> SpotCheck:
    counts = preemptions or (0.0,) * len(live)
    repeats = [_run(scale, count) for scale, count in zip(live, counts, strict=True)]
    record = _run(predicted).live.record
    record.steps.num_preempted.append(simulated)
    record.steps.prefix_queries.append(100)
    record.steps.prefix_hits.append(25)
    return SpotCheck("toy", compare(repeats, record), repeats, record)


def test_errors_are_signed_and_stand_beside_the_spread() -> None:
    check = _check(1.1, 0.98, 1.02)
    row = check.row("ttft", "p50")
    assert row.error_percent == pytest.approx(10.0, abs=0.01)
    assert row.spread_percent == pytest.approx(4.0, abs=0.01)
    assert check.row("itl", "p99").error_percent == pytest.approx(10.0, abs=0.01)
    assert check.row("tpot", "mean").predicted == pytest.approx(0.011)
    assert check.row("hit_rate").error_percent == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("predicted", "live", "tolerance", "passed"),
    [
        (1.08, (1.0, 1.0), 10, True),
        (1.12, (1.0, 1.0), 10, False),
        (0.88, (1.0, 1.0), 10, False),
        (1.12, (0.96, 1.04), 10, True),  # the server differs from itself by 8 %: twice that is allowed
        (1.12, (1.0,), 10, False),  # one run shows no spread
        (1.12, (1.0,), 15, True),
    ],
)
def test_the_verdict_allows_the_tolerance_or_twice_the_spread(
    predicted: float, live: tuple[float, ...], tolerance: float, passed: bool
) -> None:
    check = _check(predicted, *live)
    assert check.verdict(tolerance).passed is passed
    assert ("PASS" if passed else "FAIL") in as_text(check, check.verdict(tolerance))


@pytest.mark.parametrize(
    ("measured", "predicted", "passed"),
    [((20.0, 20.0), 24, True), ((20.0, 20.0), 25, False), ((18.0, 22.0), 28, True), ((0.0, 0.0), 1, True)],
)
def test_preemptions_must_agree_within_a_fifth(measured: tuple[float, ...], predicted: int, passed: bool) -> None:
    check = _check(1.0, 1.0, 1.0, preemptions=measured, simulated=predicted)
    assert check.verdict(10).passed is passed


def test_the_command_prints_a_table_and_draws(tmp_path: Path) -> None:
    plot = tmp_path / "plots" / "overlay.svg"
    with FakeServer() as server:
        arguments = [str(_scenario(tmp_path)), "--base-url", server.base_url, "--plot", str(plot)]
        result = _invoke(*arguments, "--tolerance", "1e9")
        failed = _invoke(*arguments, "--tolerance", "0", "--json", "--repeats", "1")
    assert result.exit_code == 0, result.output
    assert "TTFT ms p50" in result.stdout
    assert "PASS: median error" in result.stdout
    assert "the live server has KV blocks 99" in result.stdout
    assert plot.read_text(encoding="utf-8").lstrip().startswith("<?xml")
    assert failed.exit_code == 1
    document = json.loads(failed.stdout)
    assert document["passed"] is False
    assert document["num_finished"] == [9]


@pytest.mark.parametrize("what", ["404", "401", "close"])
def test_a_server_that_answers_nothing_is_one_line(tmp_path: Path, what: str) -> None:
    with FakeServer(lambda number: what) as server:
        result = _invoke(str(_scenario(tmp_path)), "--base-url", server.base_url)
    assert isinstance(result.exception, UserError)
    assert "no request was answered" in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_server_that_fails_midway_is_compared_as_far_as_it_went_and_fails(tmp_path: Path) -> None:
    with FakeServer(lambda number: "ok" if number < 13 else "404") as server:
        result = _invoke(str(_scenario(tmp_path)), "--base-url", server.base_url, "--tolerance", "1e9")
    assert result.exit_code == 1
    assert "the server refuses all requests: status 404" in result.stdout
    assert "FAIL: a real run ended early" in result.stdout


def test_a_scenario_without_a_load_of_its_own_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    searched = "\nobjectives: [ttft.p95 <= 1s]\nsearch: {vary: users, from: 1, to: 4}"
    path = _scenario(tmp_path, USERS.replace("users: 2, ", "") + searched)
    with FakeServer() as server:
        result = _invoke(str(path), "--base-url", server.base_url)
        assert server.bodies == []
    cure = "Nothing is searched for here; give it with --set workload.users=…"
    assert str(result.exception) == f"{path}: at which load? {cure}"


def test_a_plot_of_another_kind_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with FakeServer() as server:
        result = _invoke(str(_scenario(tmp_path)), "--base-url", server.base_url, "--plot", "x.pdf")
        assert server.bodies == []
    assert "the ending must be .png or .svg" in str(result.exception)
    with pytest.raises(UserError, match="cannot be written"):
        write_plot(_check(1.0, 1.0), Path("/dev/null/x.png"))
