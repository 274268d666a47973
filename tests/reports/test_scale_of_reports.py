"""A run of 100,000 requests and a million steps is rendered in seconds, into a file that can be mailed."""

import time

import numpy as np

from reports.html import render_html
from reports.model import build_report
from reports.source import Source
from reports.words import Words
from sim.capacity import find_capacity
from sim.records import ItlLog, Outcome, RequestRecord, RunRecord, StepLog
from sim.scenario.load import override
from sim.scenario.model import Scenario
from tests.sim.results.toys import MS, S, empty_run, users_scenario

NUM_REQUESTS, NUM_STEPS = 100_000, 500_000


def large_run(scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
    """Requests every 10 ms that take a second each, and a step every 2 ms."""
    run = empty_run(max_num_seqs=256, num_gpu_blocks=10_001)
    run.requests += [
        RequestRecord(
            request_id=n, class_id=0, user_id=n % 300, turn=n // 300 % 8, replica=0, queued_ns=n * 10 * MS,
            sent_ns=n * 10 * MS, num_prompt_tokens=100 + n % 900, max_tokens=50, arrival_ns=n * 10 * MS,
            scheduled_ns=n * 10 * MS + 5 * MS, first_token_ns=n * 10 * MS + (50 + n % 500) * MS,
            finish_ns=n * 10 * MS + S, num_output_tokens=50, outcome=Outcome.FINISHED,
        )
        for n in range(NUM_REQUESTS)
    ]  # fmt: skip
    ends = (np.arange(NUM_STEPS) + 1) * 2 * MS
    columns = {name: np.full(NUM_STEPS, 3, np.int64) for name in StepLog.__dataclass_fields__}
    columns |= {"replica": np.zeros(NUM_STEPS, np.int64), "start_ns": ends - 2 * MS, "end_ns": ends}
    columns |= {"num_running": np.arange(NUM_STEPS) % 97, "num_free_blocks": 10_000 - np.arange(NUM_STEPS) % 9000}
    for name, values in columns.items():
        getattr(run.steps, name).frombytes(values.astype(np.int64).tobytes())
    gaps = {"end_ns": ends, "gap_ns": 2 * MS + np.arange(NUM_STEPS) % MS, "class_id": 0 * ends, "count": 0 * ends + 10}
    for name in ItlLog.__dataclass_fields__:
        getattr(run.itl, name).frombytes(gaps[name].astype(np.int64).tobytes())
    run.arrivals_end_ns = run.end_ns = NUM_REQUESTS * 10 * MS + S
    return run


def test_a_large_run_is_rendered_fast_and_small() -> None:
    scenario = override(
        users_scenario("ttft.p95 <= 500ms", changes=["run.seeds=1"]), {"workload.users": 300, "search": None}
    )
    runs: dict[tuple[float | None, int], RunRecord] = {}
    result = find_capacity(scenario, large_run, store=lambda run, load, seed: runs.__setitem__((load, seed), run))
    source = Source.of_result(scenario, result, runs)
    words = Words.of("en")
    began = time.process_time()  # of this process: other work on the machine does not count
    page = render_html(build_report([source], words), words)
    assert time.process_time() - began < 5
    assert len(page.encode()) < 2_000_000
    assert "100,000 requests" in page
