"""The live client against a server that misbehaves: one clear line, what came is kept, and it ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrate.http_client import Endpoint, HttpClient
from calibrate.live_driver import Budget, LiveDriver, LiveRun
from calibrate.observe import Limits, Observation, observe
from calibrate.plan import Phase, PlannedRequest, make_plan, time_shares
from calibrate.token_text import TokenText
from sim.errors import UserError
from sim.records import Outcome
from sim.workload.client import Workload
from tests.calibrate.fake_server import FakeServer

SIX = Phase("six", "low", tuple(PlannedRequest(20 + i, 6) for i in range(6)), 2)


def _drive(server: FakeServer, workload: Workload | None = None, **options: Any) -> LiveRun:
    async def run() -> LiveRun:
        client = HttpClient(Endpoint.of(server.base_url))
        async with client.connected():
            await client.find_model()
            driver = LiveDriver(client, **options)
            return await driver.run(workload or SIX.workload(), TokenText(1), "hc", limit_s=20)

    return asyncio.run(run())


def _observe(server: FakeServer, folder: Path, **limits: Any) -> Observation:
    limits = {"max_requests": 60, "max_time_s": 20.0, "max_concurrency": 4, **limits}
    endpoint = Endpoint.of(server.base_url)
    return asyncio.run(observe(endpoint, Limits(**limits), folder, steps=None, report=lambda text: None))


def test_requests_are_sent_as_token_ids_of_exact_length_and_timed_as_they_stream() -> None:
    with FakeServer() as server:
        live = _drive(server)
    assert sorted(len(body["prompt"]) for body in server.bodies) == [20, 21, 22, 23, 24, 25]
    assert {(body["max_tokens"], body["ignore_eos"], body["model"]) for body in server.bodies} == {(6, True, "tiny")}
    assert sorted(server.names) == [f"hc-{i}" for i in range(6)] == sorted(live.names)
    assert live.num_finished == 6
    assert live.stopped is None
    for request in live.record.requests:
        assert 0 <= request.sent_ns < request.first_token_ns < request.finish_ns
        assert request.num_output_tokens == 6
    assert sum(live.record.itl.count) == 6 * 5


def test_no_more_are_in_flight_than_the_plan_allows() -> None:
    with FakeServer() as server:
        live = _drive(server)
    spans = [(r.sent_ns, r.finish_ns) for r in live.record.requests]
    assert max(sum(a <= begin < b for a, b in spans) for begin, _ in spans) == 2


def test_the_budget_is_never_exceeded() -> None:
    with FakeServer() as server:
        live = _drive(server, budget=Budget(4))
    assert len(server.bodies) == 4
    assert live.num_finished == 4
    assert live.stopped == "the number of requests is used up"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_for_good_ends_the_run_and_keeps_what_came(status: int) -> None:
    with FakeServer(lambda number: "ok" if number < 3 else str(status)) as server:
        live = _drive(server)
    assert live.stopped == f"the server refuses all requests: status {status}: refused with {status}"
    assert live.num_finished >= 2
    assert len(server.bodies) <= 5


def test_a_full_server_is_counted_and_the_run_goes_on() -> None:
    with FakeServer(lambda number: "503" if number in (1, 3) else "ok") as server:
        live = _drive(server)
    assert live.stopped is None
    assert [r.outcome for r in live.record.requests].count(Outcome.REJECTED) == 2
    assert live.num_finished == 4
    assert live.record.warnings == ["2 requests: status 503: refused with 503"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("cut", "closed the connection|broke off"),
        ("garbage", "an event of the stream cannot be read"),
        ("close", "closed the connection"),
        ("500", "status 500: refused with 500"),
    ],
)
def test_a_server_that_only_fails_is_given_up_after_five(what: str, words: str) -> None:
    phase = Phase("many", "low", SIX.requests * 10, 1)
    with FakeServer(lambda number: what) as server:
        live = _drive(server, phase.workload())
    assert len(set(server.names)) == len(live.names) == 5
    assert live.stopped is not None
    assert live.stopped.startswith("5 requests failed in a row")
    (error,) = live.errors
    assert any(word in error for word in words.split("|"))


def test_a_request_that_meets_a_closed_connection_is_sent_again_on_a_new_one() -> None:
    phase = Phase("some", "low", SIX.requests, 1)
    with FakeServer(lambda number: "once") as server:
        live = _drive(server, phase.workload())
    assert (live.num_finished, live.stopped) == (6, None)
    assert set(server.names) == {f"hc-{i}" for i in range(6)}
    again = len(server.names) - 6
    assert 1 <= again <= 5
    assert live.record.warnings == [
        f"{again} requests: sent again, as the server had closed the connection before; the client was late"
    ]


def test_a_client_that_loses_patience_gives_up_its_request_alone() -> None:
    class Impatient:
        """The six requests, each with a tenth of a second of patience."""

        def __init__(self) -> None:
            self.inner = SIX.workload()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def pop_due(self, now_ns: int) -> Any:
            return [replace(request, timeout_ns=100_000_000) for request in self.inner.pop_due(now_ns)]

    with FakeServer(lambda number: "hang" if number == 2 else "ok") as server:
        live = _drive(server, Impatient())
    outcomes = [request.outcome for request in live.record.requests]
    assert outcomes.count(Outcome.TIMED_OUT) == 1
    assert outcomes.count(Outcome.FINISHED) == 5


def test_ctrl_c_ends_a_run_at_once_and_keeps_what_came() -> None:
    with FakeServer(lambda number: "hang" if number >= 3 else "ok") as server:

        def press() -> None:
            while len(server.bodies) < 5:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        keyboard = threading.Thread(target=press)
        keyboard.start()
        live = _drive(server)
        keyboard.join()
    assert live.stopped == "interrupted"
    assert live.num_finished == 3
    assert len(server.bodies) == 5


def test_answers_shorter_than_asked_for_are_said() -> None:
    with FakeServer(lambda number: "short" if number == 0 else "ok") as server:
        live = _drive(server)
    assert live.record.warnings == [
        "1 requests: fewer tokens were generated than asked for, or they came several at a time"
    ]


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (FakeServer(models_status=401), "refused (401); set OPENAI_API_KEY"),
        (FakeServer(models_status=404), "not the models of an OpenAI-compatible server (status 404)"),
        (FakeServer(models=""), "not the models of an OpenAI-compatible server"),
        (FakeServer(models='{"data": [{"id": "ti'), "not the models of an OpenAI-compatible server"),
        (FakeServer(models={"data": []}), "not the models of an OpenAI-compatible server"),
        (FakeServer(models={"data": [{"id": "a"}, {"id": "b"}]}), "serves several; choose one of: a, b"),
    ],
)
def test_a_server_that_cannot_be_used_is_said_in_one_line(server: FakeServer, message: str) -> None:
    with server, pytest.raises(UserError) as error:
        _drive(server)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_that_is_not_served_is_named_with_those_that_are() -> None:
    async def find(url: str) -> None:
        client = HttpClient(Endpoint.of(url, "large"))
        async with client.connected():
            await client.find_model()

    with FakeServer() as server, pytest.raises(UserError, match=r"--model: 'large' is not served at .*; it has: tiny"):
        asyncio.run(find(server.base_url))


def test_a_server_that_is_down_is_said_so(tmp_path: Path) -> None:
    with FakeServer() as server:
        pass
    with pytest.raises(UserError, match="no server answers there"):
        _observe(server, tmp_path)
    with pytest.raises(UserError, match="expected a URL such as http"):
        Endpoint.of("localhost:8000")


def test_an_observation_keeps_every_phase_and_stays_within_its_limits(tmp_path: Path) -> None:
    with FakeServer() as server:
        observation = _observe(server, tmp_path)
    assert len(server.bodies) <= 60
    assert observation.stopped == "the number of requests is used up" or observation.stopped is None
    assert observation.metrics is not None
    assert observation.metrics.num_gpu_blocks == 99
    files = sorted(path.name for path in tmp_path.glob("requests-*.json"))
    assert "requests-single.json" in files
    assert "requests-saturated.json" in files
    assert (tmp_path / "observation.json").exists()
    single = observation.phases[0]
    # At least what the clients saw: the server may have counted a request that its client gave up.
    assert single.counters["output_tokens"] >= sum(r.num_output_tokens for r in single.live.record.requests)


def test_a_server_that_dies_in_the_middle_leaves_what_was_seen(tmp_path: Path) -> None:
    with FakeServer(lambda number: "ok" if number < 12 else "close") as server:
        observation = _observe(server, tmp_path)
    assert observation.stopped is not None
    assert "failed in a row" in observation.stopped
    assert observation.phases[0].live.num_finished == len(observation.phases[0].phase.requests)
    assert (tmp_path / "requests-single.json").exists()


def test_a_server_that_answers_nothing_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with FakeServer(lambda number: "404") as server, pytest.raises(UserError, match="status 404: refused with 404"):
        _observe(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_equal_streams_are_equal_text_and_another_salt_is_another_text() -> None:
    text, other = TokenText(1), TokenText(2)
    assert text.prompt([(5, 40), (6, 10)])[:40] == text.prompt([(5, 4_000)])[:40]
    assert text.prompt([(5, 3_000)])[:1_024] == TokenText(1).prompt([(5, 1_024)])
    assert text.prompt([(5, 40)]) != other.prompt([(5, 40)])
    assert text.prompt([(5, 40)]) != text.prompt([(6, 40)])
    assert set(text.prompt([(7, 5_000)])) <= set(range(1_000, 10_000))


def test_a_follow_up_holds_the_answer_that_was_really_given() -> None:
    text = TokenText(1)
    text.set_answer(9, [11, 12, 13])
    assert text.prompt([(9, 2)]) == [11, 12]
    assert len(text.prompt([(9, 5)])) == 5  # more than was answered: text of its own


@pytest.mark.parametrize("max_model_len", [8, 40, 600, 4_096, 131_072])
@pytest.mark.parametrize("max_concurrency", [1, 2, 3, 32])
def test_every_planned_request_fits_the_server(max_model_len: int, max_concurrency: int) -> None:
    plan = make_plan(max_model_len, max_concurrency)
    for phase in plan:
        assert all(0 < request.num_tokens <= max_model_len for request in phase.requests), phase.name
        assert all(request.own_tokens and request.output_tokens for request in phase.requests)
    assert len({phase.name for phase in plan}) == len(plan)
    assert [phase.band for phase in plan].count("saturated") == 1
    assert sum(time_shares(plan, 100.0)) == pytest.approx(100.0)


def test_a_burst_is_cut_to_what_the_time_allows() -> None:
    (burst,) = [phase for phase in make_plan(2_048, 32) if phase.is_burst and len(phase.requests) > 1]
    total = sum(request.num_tokens for request in burst.requests)
    assert burst.within(60, None) is burst
    assert len(burst.within(60, total).requests) == 64
    half = burst.within(60, total / 120)
    assert 20 < len(half.requests) < 44
    assert half.is_burst
    assert len(burst.within(0.1, 1.0).requests) == 8


def test_a_slow_server_is_not_sent_the_whole_plan(tmp_path: Path) -> None:
    with FakeServer() as server:
        observation = _observe(server, tmp_path, max_time_s=0.01)
    assert [result.phase.band for result in observation.phases].count("saturated") == 1
    assert len(observation.phases) < 5


def test_a_plan_has_the_same_requests_every_time() -> None:
    first, second = (list(itertools.chain(*(p.requests for p in make_plan(2_048, 8)))) for _ in range(2))
    assert first == second
