"""The way from the client to the engine: requests reach it in the order in which they were sent, one after another."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.recorded import LinearCost
from sim.engine.step_time import ClientLatency
from tests.cases.build import by_id, sent, serve

MS = 1_000_000
COST = LinearCost(900, 11, 70, 30)
LATENCIES = st.builds(
    ClientLatency,
    request_ns=st.integers(0, 5 * MS),
    per_prompt_token_ns=st.floats(0, 20_000),
    serial_ns=st.integers(0, 3 * MS),
)


def test_a_long_prompt_is_not_overtaken_by_a_short_one_sent_with_it() -> None:
    latency = ClientLatency(request_ns=2 * MS, per_prompt_token_ns=10_000)
    record = serve([sent(0, 400, 4), sent(1, 100, 4), sent(2, 500, 4)], COST, latency=latency)
    assert [by_id(record)[i].arrival_ns for i in range(3)] == [6 * MS, 6 * MS, 7 * MS]


def test_requests_sent_at_once_come_one_after_another_and_the_first_is_computed_alone() -> None:
    latency = ClientLatency(request_ns=2 * MS, serial_ns=MS // 2)
    record = serve([sent(i, 100, 4) for i in range(5)], COST, latency=latency)
    assert [by_id(record)[i].arrival_ns for i in range(5)] == [2 * MS + i * MS // 2 for i in range(5)]
    assert record.steps.num_prefill_tokens[0] == 100
    together = serve([sent(i, 100, 4) for i in range(5)], COST, latency=ClientLatency(request_ns=2 * MS))
    assert together.steps.num_prefill_tokens[0] == 500


def test_a_request_sent_long_after_the_one_before_waits_for_nobody() -> None:
    latency = ClientLatency(request_ns=2 * MS, serial_ns=3 * MS)
    record = serve([sent(0, 100, 4), sent(1, 100, 4, 10 * MS), sent(2, 100, 4, 11 * MS)], COST, latency=latency)
    assert [by_id(record)[i].arrival_ns for i in range(3)] == [2 * MS, 12 * MS, 15 * MS]


@given(LATENCIES, st.lists(st.tuples(st.integers(0, 20 * MS), st.integers(1, 600)), min_size=1, max_size=12))
def test_arrivals_keep_the_order_of_sending_and_their_distance(
    latency: ClientLatency, requests: list[tuple[int, int]]
) -> None:
    ordered = sorted(requests)
    record = serve([sent(i, prompt, 2, at_ns) for i, (at_ns, prompt) in enumerate(ordered)], COST, latency=latency)
    arrivals = [by_id(record)[i].arrival_ns for i in range(len(ordered))]
    for (at_ns, prompt), arrival_ns in zip(ordered, arrivals, strict=True):
        assert arrival_ns >= at_ns + latency.request_ns + round(latency.per_prompt_token_ns * prompt)
    assert all(later - earlier >= latency.serial_ns for earlier, later in pairwise(arrivals))
    assert arrivals[0] == ordered[0][0] + latency.request_ns + round(latency.per_prompt_token_ns * ordered[0][1])


@pytest.mark.parametrize("reference", [True, False])
def test_the_fast_path_and_the_reference_agree_on_arrivals_one_by_one(reference: bool) -> None:
    latency = ClientLatency(request_ns=MS, per_prompt_token_ns=700.0, serial_ns=MS // 3)
    requests = [sent(i, 40 + 13 * i, 20 + i) for i in range(24)]
    flags: dict[str, Any] = {"num_gpu_blocks": 40, "max_num_batched_tokens": 128, "max_num_seqs": 32}
    record = serve(requests, COST, latency=latency, reference=reference, **flags)
    other = serve(requests, COST, latency=latency, reference=not reference, **flags)
    assert record.steps == other.steps
    assert sum(record.steps.num_preempted) > 0
