"""Runs with known answers: queues of textbooks, and records written by hand."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

import numpy as np

from sim.records import Outcome, RequestRecord, RunRecord
from sim.scenario.load import scenario_from_text
from sim.scenario.model import Scenario

S = 1_000_000_000
MS = 1_000_000

_OPEN_LOOP = """
name: toy
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090}
workload:
  kind: open_loop
  arrivals: poisson
  classes: [{name: only, prompt_tokens: 1, output_tokens: 1}]
objectives: [OBJECTIVES]
search: {vary: request_rate, from: 1, to: 1000}
run: {duration: 1000s, warm_up: 100s, seeds: 5}
"""

_USERS = """
name: toy
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090}
workload:
  kind: users
  classes:
    - {name: only, first_prompt_tokens: 1, next_prompt_tokens: 1, output_tokens: 1, turns: 5, think_time: 10s}
objectives: [OBJECTIVES]
search: {vary: users, from: 1, to: 400}
run: {duration: 1000s, warm_up: 100s, seeds: 5}
"""


def open_loop_scenario(*objectives: str, changes: Iterable[str] = ()) -> Scenario:
    """A scenario that varies the request rate."""
    return _scenario(_OPEN_LOOP, objectives, changes)


def users_scenario(*objectives: str, changes: Iterable[str] = ()) -> Scenario:
    """A scenario that varies the users."""
    return _scenario(_USERS, objectives, changes)


def _scenario(text: str, objectives: Iterable[str], changes: Iterable[str]) -> Scenario:
    return scenario_from_text(
        text.replace("OBJECTIVES", ", ".join(f"'{each}'" for each in objectives)), overrides=changes
    )


def empty_run(*, max_num_seqs: int = 4, num_gpu_blocks: int = 101, num_replicas: int = 1) -> RunRecord:
    """A run in which nothing has happened yet."""
    return RunRecord(
        class_names=("only",),
        num_gpu_blocks=num_gpu_blocks,
        block_size=16,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=100,
        num_replicas=num_replicas,
        calibrated=False,
    )


def request(number: int, sent_ns: int, **fields: object) -> RequestRecord:
    """A request that reached the engine as it was sent."""
    known = {"class_id": 0, "user_id": -1, "turn": 0, "replica": 0, "num_prompt_tokens": 1, "max_tokens": 1}
    known |= {"queued_ns": sent_ns, "sent_ns": sent_ns, "arrival_ns": sent_ns, "request_id": number}
    return RequestRecord(**(known | fields))  # type: ignore[arg-type]


def finished(
    number: int, sent_ns: int, ttft_ns: int, *, decode_ns: int = 0, tokens: int = 1, **fields: object
) -> RequestRecord:
    """A request answered in full: scheduled at once, `tokens` tokens."""
    first = sent_ns + ttft_ns
    known = {
        "scheduled_ns": sent_ns,
        "first_token_ns": first,
        "finish_ns": first + decode_ns,
        "outcome": Outcome.FINISHED,
    }
    return request(number, sent_ns, **(known | {"num_output_tokens": tokens, "max_tokens": tokens} | fields))


def add_step(run: RunRecord, start_ns: int, end_ns: int, *, running: int = 0, waiting: int = 0, **fields: int) -> None:
    """Adds a row to the step log; `free` counts the free blocks."""
    steps = run.steps
    steps.replica.append(fields.get("replica", 0))
    steps.start_ns.append(start_ns)
    steps.end_ns.append(end_ns)
    steps.num_running.append(running)
    steps.num_waiting.append(waiting)
    steps.num_prefill_tokens.append(fields.get("prefill", 0))
    steps.num_decodes.append(fields.get("decodes", running))
    steps.num_free_blocks.append(fields.get("free", run.num_gpu_blocks - 1))
    steps.num_preempted.append(fields.get("preempted", 0))
    steps.prefix_queries.append(fields.get("queries", 0))
    steps.prefix_hits.append(fields.get("hits", 0))


def add_gaps(run: RunRecord, end_ns: int, gap_ns: int, count: int, class_id: int = 0) -> None:
    """Adds a row to the token log."""
    run.itl.end_ns.append(end_ns)
    run.itl.gap_ns.append(gap_ns)
    run.itl.class_id.append(class_id)
    run.itl.count.append(count)


def queue_run(
    arrivals_s: Iterable[float], services_s: Iterable[float], *, servers: int, end_s: float | None = None
) -> RunRecord:
    """First come, first served, by `servers` equal servers: the answer is one token that comes out at the end.

    Args:
        arrivals_s: when each request arrives, in order.
        services_s: how long each takes.
        servers: most requests at a time.
        end_s: when arrivals stop; default: at the last of them.
    """
    run = empty_run(max_num_seqs=servers)
    free_at = [0] * servers
    for number, (arrival, service) in enumerate(zip(arrivals_s, services_s, strict=True)):
        arrived = round(arrival * S)
        start = max(arrived, heapq.heappop(free_at))
        end = start + round(service * S)
        heapq.heappush(free_at, end)
        run.requests.append(finished(number, arrived, end - arrived, scheduled_ns=start))
    log_steps(run)
    run.end_ns = max((each.finish_ns for each in run.requests), default=0)
    run.arrivals_end_ns = round(end_s * S) if end_s is not None else max(each.sent_ns for each in run.requests)
    return run


def log_steps(run: RunRecord) -> None:
    """Writes a step for each stretch in which nobody comes, starts or goes."""
    changes = sorted(
        change
        for each in run.requests
        for change in (
            (each.arrival_ns, 0, 1),
            (each.scheduled_ns, 1, -1),
            (each.finish_ns, -1, 0),
        )
    )
    running = waiting = last = 0
    for at, more_running, more_waiting in changes:
        if at > last and running + waiting:
            add_step(run, last, at, running=running, waiting=waiting, free=100 - min(100, running))
        running, waiting, last = running + more_running, waiting + more_waiting, at


def simulate_mm(
    scenario: Scenario, *, seed: int, load: float | None, service_s: float = 0.1, servers: int = 1
) -> RunRecord:
    """M/M/c: Poisson arrivals at `load` per second, exponential service; the same draws at every load."""
    assert load is not None
    assert scenario.run.duration is not None
    rng = np.random.default_rng(seed)
    count = math.ceil(scenario.run.duration * load * 1.2 + 50)
    arrivals = np.cumsum(rng.exponential(size=max(count, 20000))[:count]) / load
    services = np.random.default_rng(seed + 10_000).exponential(size=count) * service_s
    kept = arrivals <= scenario.run.duration
    return queue_run(arrivals[kept], services[kept], servers=servers, end_s=scenario.run.duration)


def simulate_repair(
    scenario: Scenario, *, seed: int, load: float | None, service_s: float = 0.5, think_s: float = 10.0
) -> RunRecord:
    """M/M/1//N, the machine-repair model: `load` users think, ask one server, and think again."""
    assert load is not None
    assert scenario.run.duration is not None
    streams = [np.random.default_rng([seed, user]) for user in range(int(load))]
    due = [(float(stream.exponential(think_s)), user) for user, stream in enumerate(streams)]
    heapq.heapify(due)
    arrivals, services, users, free_at = [], [], [], 0.0
    while due and due[0][0] <= scenario.run.duration:
        at, user = heapq.heappop(due)
        service = float(streams[user].exponential(service_s))
        arrivals.append(at)
        services.append(service)
        users.append(user)
        free_at = max(free_at, at) + service
        heapq.heappush(due, (free_at + float(streams[user].exponential(think_s)), user))
    if not arrivals:
        run = empty_run()
        run.end_ns = run.arrivals_end_ns = round(scenario.run.duration * S)
        return run
    return queue_run(arrivals, services, servers=1, end_s=scenario.run.duration)


def repair_mean_response_s(users: int, service_s: float = 0.5, think_s: float = 10.0) -> float:
    """Mean response time of M/M/1//N by exact mean value analysis (Reiser and Lavenberg 1980)."""
    queue = 0.0
    response = service_s
    for population in range(1, users + 1):
        response = service_s * (1 + queue)
        queue = population / (response + think_s) * response
    return response
