"""The closed loop is the client of vllm bench: a semaphore between the spawn of a request and its sending."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.records import Outcome
from sim.workload.build import build_workload
from tests.sim.workload.made import ONE_SHOT, closed_loop, scenario
from tests.sim.workload.server import SECOND, serve

loads = st.fixed_dictionaries(
    {
        "max_concurrency": st.integers(1, 20),
        "request_rate": st.sampled_from(["inf", 0.5, 3.0, 100.0]),
        "burstiness": st.sampled_from([0.3, 1.0, 4.0]),
        "num_requests": st.integers(1, 100),
    }
)


@settings(max_examples=40)
@given(workload=loads, service=st.integers(1, 5), slots=st.none() | st.integers(1, 5), seed=st.integers(0, 99))
def test_at_most_c_are_in_flight_and_they_are_sent_in_the_order_of_spawning(
    workload: dict[str, Any], service: int, slots: int | None, seed: int
) -> None:
    run = serve(build_workload(closed_loop(**workload), seed), service * SECOND, slots)
    assert len(run.sent) == workload["num_requests"]
    assert max(run.in_flight) < workload["max_concurrency"]
    spawns, sends = [request.queued_ns for request in run.sent], [request.sent_ns for request in run.sent]
    assert (spawns, sends) == (sorted(spawns), sorted(sends))
    assert all(spawn <= send for spawn, send in zip(spawns, sends, strict=True))


@settings(max_examples=40)
@given(workload=loads, service=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_request_waits_only_while_c_others_are_in_flight(workload: dict[str, Any], service: int, seed: int) -> None:
    """A request that was held back is sent at the very moment when another ends."""
    run = serve(build_workload(closed_loop(**workload), seed), service * SECOND)
    ends = {served.done_ns for served in run.served}
    assert all(request.sent_ns == request.queued_ns or request.sent_ns in ends for request in run.sent)


@settings(max_examples=25, deadline=None)
@given(workload=loads, service=st.integers(1, 4))
def test_send_times_are_those_of_an_asyncio_semaphore(workload: dict[str, Any], service: int) -> None:
    """The same spawns through a real asyncio.Semaphore, on a clock that jumps from one timer to the next."""
    run = serve(build_workload(closed_loop(**workload), 1), service * SECOND)
    spawns = [request.queued_ns for request in run.sent]
    sends = _asyncio_sends(spawns, workload["max_concurrency"], service * SECOND)
    assert [request.sent_ns for request in run.sent] == sends


def _asyncio_sends(spawns: list[int], permits: int, service_ns: int) -> list[int]:
    """Runs the client of vllm bench in virtual nanoseconds and returns when each request was sent."""

    class JumpingLoop(asyncio.SelectorEventLoop):
        now = 0

        def time(self) -> float:
            return self.now

        def _run_once(self) -> None:
            if not self._ready and self._scheduled:  # type: ignore[attr-defined]
                self.now = self._scheduled[0].when()  # type: ignore[attr-defined]
            super()._run_once()  # type: ignore[misc]

    loop = JumpingLoop()
    loop._clock_resolution = 0.5  # type: ignore[attr-defined]  # timers due within this are due now; units are 1 ns
    sends = [0] * len(spawns)

    async def request(number: int, semaphore: asyncio.Semaphore) -> None:
        async with semaphore:
            sends[number] = loop.now
            await _until(loop, loop.now + service_ns)

    async def client() -> None:
        semaphore = asyncio.Semaphore(permits)
        tasks = []
        for number, spawn in enumerate(spawns):
            if spawn > loop.now:
                await _until(loop, spawn)
            tasks.append(asyncio.create_task(request(number, semaphore)))
        await asyncio.gather(*tasks)

    try:
        loop.run_until_complete(client())
    finally:
        loop.close()
    return sends


async def _until(loop: asyncio.AbstractEventLoop, when: int) -> None:
    future = loop.create_future()
    loop.call_at(when, future.set_result, None)
    await future


def test_a_finite_rate_spawns_the_last_request_at_number_over_rate() -> None:
    sent = serve(build_workload(closed_loop(num_requests=100, request_rate=4, burstiness=0.5), 3)).sent
    assert sent[-1].queued_ns == pytest.approx(25 * SECOND, abs=1)


def test_without_a_cap_nothing_waits() -> None:
    run = serve(build_workload(closed_loop(request_rate=50), 0), 60 * SECOND, slots=1)
    assert len(run.sent) == 200
    assert all(request.sent_ns == request.queued_ns for request in run.sent)


def test_requests_are_the_same_at_every_concurrency() -> None:
    one, many = (serve(build_workload(closed_loop(), 0, load=load)).sent for load in (1, 64))
    assert [request.prompt for request in one] == [request.prompt for request in many]
    assert [request.output_tokens for request in one] == [request.output_tokens for request in many]


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.TIMED_OUT, Outcome.REFUSED])
def test_a_failed_request_gives_its_permit_back_and_is_not_sent_again(outcome: Outcome) -> None:
    run = serve(build_workload(closed_loop(max_concurrency=2), 0), fate=lambda _: outcome)
    assert len(run.sent) == 200


def test_a_client_gives_up_after_its_timeout() -> None:
    run = serve(build_workload(closed_loop(max_concurrency=4, client_timeout="2s"), 0), 60 * SECOND)
    assert len(run.served) == 200
    assert all(served.done_ns - served.request.sent_ns == 2 * SECOND for served in run.served)


def test_the_run_ends_with_its_last_answer() -> None:
    workload = build_workload(closed_loop(max_concurrency=4), 0)
    assert serve(workload).served[-1].done_ns == workload.arrivals_end_ns == 50 * SECOND


@pytest.mark.parametrize("client_timeout", [None, "2s"])
def test_nothing_is_sent_after_the_end_of_the_run(client_timeout: str | None) -> None:
    """What still waits for a permit then is never sent: it is not sent late, as of the moment it was spawned."""
    data = {"kind": "closed_loop", "num_requests": 200, "max_concurrency": 2, "classes": [ONE_SHOT]}
    case = scenario({**data, "client_timeout": client_timeout}, run={"duration": "10s"})
    run = serve(build_workload(case, 0), 3 * SECOND)
    every = 2 if client_timeout else 3
    assert [request.sent_ns for request in run.sent] == [
        start * SECOND for start in range(0, 10, every) for _ in range(2)
    ]
