"""The engine in virtual time: when steps run, when requests get in, and when tokens come out."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.request import Request
from sim.engine import engine_core
from sim.engine.engine_core import EngineCore, InFlightBatch, StepOutputs, batch_composition
from sim.engine.process import run
from sim.engine.recorded import LinearCost
from sim.engine.step_time import Batch
from sim.errors import UserError
from tests.factories import FUZZ, create_request

MS = 1_000_000


@dataclass
class Step:
    """A step as it was scheduled, with what was priced."""

    scheduled_ns: int
    start_ns: int
    end_ns: int
    tokens: dict[int, int]
    batch: Batch


@dataclass
class ScriptedClients:
    """Sends given requests at their arrival times, gives up at given times, and notes all that happens."""

    engine: EngineCore
    requests: list[Request]
    aborts: dict[int, int] = field(default_factory=dict)  # time -> request id
    steps: list[Step] = field(default_factory=list)
    token_ns: dict[int, list[int]] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)  # (nanoseconds, how many)

    def __post_init__(self) -> None:
        self.arrivals = [(request.arrival_time, request.request_id) for request in self.requests]
        heapq.heapify(self.arrivals)
        self.by_id = {request.request_id: request for request in self.requests}
        self.token_ns = {request.request_id: [] for request in self.requests}
        self.engine.on_schedule = self.on_schedule

    def deliver(self, now_ns: int) -> None:
        while self.arrivals and self.arrivals[0][0] <= now_ns:
            self.engine.scheduler.add_request(self.by_id[heapq.heappop(self.arrivals)[1]])
        self.abort_due(now_ns)

    def abort_due(self, now_ns: int) -> None:
        for time in [time for time in self.aborts if time <= now_ns]:
            self.engine.scheduler.abort_requests([self.by_id[self.aborts.pop(time)]])

    def next_event_ns(self) -> int | None:
        return self.arrivals[0][0] if self.arrivals else None

    def publish(self, batch: InFlightBatch, outputs: StepOutputs) -> None:
        for request in [*(request for request, _ in outputs.tokens), *outputs.pooled]:
            self.token_ns[request.request_id].append(batch.end_ns)
        self.gaps += [(gap, count) for (_, gap), count in outputs.gaps.items()]

    def on_schedule(self, batch: InFlightBatch) -> None:
        if not batch.output.is_empty:
            tokens = {r.request_id: n for r, n in self.engine.scheduler.scheduled_tokens(batch.output)}
            composition = batch_composition(batch.output)
            self.steps.append(Step(batch.scheduled_ns, batch.start_ns, batch.end_ns, tokens, composition))


def simulate(
    requests, cost, *, aborts=None, reference=True, num_gpu_blocks=1_000, block_size=16, caching=True, **flags
):
    config = SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64} | flags)
    cache_config = CacheConfig(num_gpu_blocks, block_size, caching)
    engine = EngineCore(config, cache_config, cost, reference=reference, list_pooled=True)
    clients = ScriptedClients(engine, requests, dict(aborts or {}))
    end_ns = run(engine, clients)
    return clients, end_ns


TEN_MS = LinearCost(base=10_000)


def test_steps_run_one_after_another_and_tokens_come_out_at_their_ends():
    clients, end_ns = simulate([create_request(max_tokens=3, arrival_time=5 * MS)], TEN_MS)
    assert [(s.start_ns, s.end_ns) for s in clients.steps] == [
        (5 * MS, 15 * MS),
        (15 * MS, 25 * MS),
        (25 * MS, 35 * MS),
    ]
    assert clients.token_ns == {0: [15 * MS, 25 * MS, 35 * MS]}
    assert end_ns == 35 * MS


def test_a_request_that_arrives_during_a_step_is_scheduled_when_it_ends():
    requests = [create_request(0, max_tokens=2), create_request(1, max_tokens=1, arrival_time=3 * MS)]
    clients, _ = simulate(requests, TEN_MS)
    assert [step.tokens for step in clients.steps] == [{0: 10}, {0: 1, 1: 10}]


def test_asynchronously_a_step_is_scheduled_when_the_one_before_it_starts():
    clients, _ = simulate([create_request(max_tokens=4)], TEN_MS, async_scheduling=True)
    steps = clients.steps
    assert [step.scheduled_ns for step in steps] == [0, 0, 10 * MS, 20 * MS]
    assert [step.scheduled_ns for step in steps[1:]] == [step.start_ns for step in steps[:-1]]
    assert clients.token_ns[0] == [10 * MS, 20 * MS, 30 * MS, 40 * MS]


def test_asynchronously_an_arrival_waits_one_step_longer():
    requests = [create_request(0, max_tokens=3), create_request(1, max_tokens=1, arrival_time=3 * MS)]
    clients, _ = simulate(requests, TEN_MS, async_scheduling=True)
    assert [step.tokens for step in clients.steps] == [{0: 10}, {0: 1}, {0: 1, 1: 10}]


def test_an_idle_engine_sleeps_until_the_next_arrival():
    requests = [create_request(0, max_tokens=1), create_request(1, max_tokens=1, arrival_time=500 * MS)]
    clients, end_ns = simulate(requests, TEN_MS)
    assert [step.start_ns for step in clients.steps] == [0, 500 * MS]
    assert end_ns == 510 * MS


def test_the_clock_does_not_go_back_for_what_a_client_did_during_a_step():
    """A client gives up at 5 ms and asks again at once; the engine sees both at 10 ms, when its step ends."""
    delivered = []

    class Impatient(ScriptedClients):
        def deliver(self, now_ns):
            delivered.append(now_ns)
            super().deliver(now_ns)
            if delivered == [0, 10 * MS]:
                heapq.heappush(self.arrivals, (5 * MS, 1))

    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64)
    engine = EngineCore(config, CacheConfig(1_000), TEN_MS)
    clients = Impatient(engine, [create_request(0, max_tokens=1)])
    clients.by_id[1], clients.token_ns[1] = create_request(1, max_tokens=1, arrival_time=5 * MS), []
    assert run(engine, clients) == 20 * MS
    assert delivered == sorted(delivered)
    assert [(step.scheduled_ns, step.end_ns) for step in clients.steps] == [(0, 10 * MS), (10 * MS, 20 * MS)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_server_whose_steps_take_406_ms_serves_no_more_than_2_46_requests_a_second_of_one_step_each(is_async):
    requests = [create_request(i, max_tokens=1, arrival_time=0) for i in range(50)]
    cost = LinearCost(base=406_000)
    clients, end_ns = simulate(requests, cost, max_num_seqs=1, async_scheduling=is_async)
    assert end_ns == 50 * 406 * MS
    assert round(len(requests) / (end_ns / 1e9), 2) == 2.46
    assert all(len(times) == 1 for times in clients.token_ns.values())


def test_a_client_that_gave_up_during_a_step_gets_nothing_of_it():
    requests = [create_request(i, max_tokens=max_tokens, arrival_time=0) for i, max_tokens in enumerate((5, 2))]
    clients, _ = simulate(requests, TEN_MS, aborts={15 * MS: 0})
    assert clients.token_ns == {0: [10 * MS], 1: [10 * MS, 20 * MS]}


def test_a_request_larger_than_the_whole_pool_is_a_broken_invariant_when_nothing_else_can_happen():
    with pytest.raises(AssertionError, match="nothing can ever be scheduled"):
        simulate([create_request(num_tokens=60)], TEN_MS, num_gpu_blocks=3)


def test_a_client_that_gives_up_frees_an_engine_that_was_stuck():
    requests = [create_request(0, 60), create_request(1, 5, max_tokens=1, arrival_time=7 * MS)]
    clients, _ = simulate(requests, TEN_MS, num_gpu_blocks=3, aborts={7 * MS: 0})
    assert clients.token_ns == {0: [], 1: [17 * MS]}


@pytest.mark.parametrize("reference", [True, False])
def test_requests_that_preempt_each_other_for_ever_end_the_run_in_a_line(reference, monkeypatch):
    monkeypatch.setattr(engine_core, "MOST_PREEMPTED_IN_VAIN", 500)
    lengths = [(7, 9), (8, 9), (10, 1), (9, 1), (5, 1)]
    requests = [create_request(i, n, max_tokens=most, arrival_time=0) for i, (n, most) in enumerate(lengths)]
    flags = {"max_num_seqs": 6, "max_num_batched_tokens": 8, "max_model_len": 16, "block_size": 4, "num_gpu_blocks": 6}
    with pytest.raises(UserError, match=r"preempt each other for ever.*: 501 preemptions since the last token\. With "):
        simulate(requests, TEN_MS, reference=reference, policy="priority", scheduler_reserve_full_isl=False,
                 async_scheduling=True, long_prefill_token_threshold=3, caching=False, **flags)  # fmt: skip


def test_the_composition_of_a_step_counts_decodes_and_chunks():
    requests = [create_request(0, 20, max_tokens=9), create_request(1, 30, max_tokens=9, arrival_time=1)]
    clients, _ = simulate(requests, TEN_MS, max_num_batched_tokens=20)
    assert clients.steps[1].batch == Batch.of([20], [(19, 0)])
    assert clients.steps[2].batch == Batch.of([21], [(11, 19)])
    assert clients.steps[3].batch == Batch.of([22, 30])


def test_gaps_are_the_times_between_tokens():
    requests = [create_request(0, max_tokens=3), create_request(1, max_tokens=2, arrival_time=12 * MS)]
    clients, _ = simulate(requests, TEN_MS)
    assert clients.gaps == [(10 * MS, 1), (10 * MS, 1), (10 * MS, 1)]


@st.composite
def draw_run(draw):
    """Draws requests, the price of steps, and flags: small enough to be under pressure."""
    num_requests = draw(st.integers(1, 12))
    times = st.integers(0, 60)
    requests = [
        {
            "request_id": i,
            "prompt": [(100, draw(st.sampled_from([0, 8, 20]))), (i, draw(st.integers(1, 20)))],
            "max_tokens": draw(st.integers(1, 40)),
            "eos_tokens": draw(st.sampled_from([None, None, 2, 11])),
            "arrival_time": draw(times) * MS,
            "class_id": i % 2,
        }
        for i in range(num_requests)
    ]
    given_up = draw(st.sets(st.integers(0, num_requests - 1), max_size=3))
    aborts = {requests[i]["arrival_time"] + draw(times) * MS + i: i for i in given_up}
    cost = LinearCost(
        draw(st.sampled_from([1, 2_000])), draw(st.sampled_from([0, 100])), draw(st.sampled_from([0, 30])), 1_000
    )
    flags = {
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([8, 24, 64])),
        "async_scheduling": draw(st.booleans()),
        "block_size": draw(st.sampled_from([2, 4, 16])),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
    }
    flags["num_gpu_blocks"] = 1 + 64 // flags["block_size"] + draw(st.integers(0, 6))
    return requests, aborts, cost, flags


def simulate_drawn(drawn, reference):
    requests, aborts, cost, flags = drawn
    return simulate(
        [create_request(**fields) for fields in requests], cost, aborts=aborts, reference=reference, **flags
    )


@settings(max_examples=60 * FUZZ)
@given(draw_run())
def test_time_causality_and_work_conservation_hold_on_every_run(drawn):
    clients, end_ns = simulate_drawn(drawn, reference=True)
    previous_end = 0
    unfinished_until = {r.request_id: max(clients.token_ns[r.request_id], default=0) for r in clients.requests}
    for step in clients.steps:
        assert step.scheduled_ns <= step.start_ns < step.end_ns, "I3: the clock is monotone"
        assert step.start_ns >= previous_end, "I3: one step at a time"
        if step.start_ns > previous_end:  # the device idled: nobody was there to be served
            waiting = [r for r in clients.requests if r.arrival_time < step.start_ns < unfinished_until[r.request_id]]
            assert not waiting, "I10: an engine with work never idles"
        previous_end = step.end_ns
        assert sum(step.tokens.values()) <= drawn[3]["max_num_batched_tokens"], "I5: the budget holds"
        for request_id in step.tokens:
            assert clients.by_id[request_id].arrival_time <= step.scheduled_ns, "I4: no step before the arrival"
    assert end_ns >= previous_end
    ends = {step.end_ns for step in clients.steps}
    for request in clients.requests:
        times = clients.token_ns[request.request_id]
        assert times == sorted(set(times)), "I3: one token at a time"
        assert set(times) <= ends, "I4: tokens come out when steps end"
        assert all(time > request.arrival_time for time in times), "I4: no token before the arrival"


@settings(max_examples=60 * FUZZ)
@given(draw_run())
def test_the_fast_path_runs_the_same_steps_and_gives_the_same_tokens_and_gaps(drawn):
    reference, reference_end = simulate_drawn(drawn, reference=True)
    fast, fast_end = simulate_drawn(drawn, reference=False)
    assert [(s.start_ns, s.end_ns, s.tokens) for s in fast.steps] == [
        (s.start_ns, s.end_ns, s.tokens) for s in reference.steps
    ]
    for ours, theirs in zip(fast.steps, reference.steps, strict=True):
        assert (ours.batch.num_decodes, ours.batch.decode_context) == (
            theirs.batch.num_decodes,
            theirs.batch.decode_context,
        )
        assert ours.batch.chunks == theirs.batch.chunks
    assert fast.token_ns == reference.token_ns
    assert sum_by_gap(fast.gaps) == sum_by_gap(reference.gaps)
    assert fast_end == reference_end


def sum_by_gap(gaps):
    sums: dict[int, int] = {}
    for gap, count in gaps:
        sums[gap] = sums.get(gap, 0) + count
    return sums


@given(draw_run())
@settings(max_examples=15)
def test_the_same_run_twice_is_the_same_run(drawn):
    first, _ = simulate_drawn(drawn, reference=False)
    second, _ = simulate_drawn(drawn, reference=False)
    assert first.steps == second.steps
    assert first.token_ns == second.token_ns
