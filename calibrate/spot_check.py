"""Checks a prediction against the live server: the scenario's own requests, sent for real and simulated.

The real run is repeated, with the same requests and other text each time, so that the server's own spread stands beside
the error: no prediction can be expected to be closer than two runs of the real thing are to each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from calibrate.http_client import Endpoint, HttpClient
from calibrate.live_driver import Budget, ExactAnswers, LiveDriver
from calibrate.metrics_scrape import ServerMetrics
from calibrate.spot_comparison import Repeat, SpotCheck, compare
from calibrate.token_text import TokenText
from sim.api_server import ApiServer
from sim.deployment import Deployment, new_run, plan
from sim.engine.engine_core import EngineCore
from sim.engine.process import run as run_engine
from sim.errors import UserError
from sim.records import RunRecord
from sim.scenario.model import Scenario, UsersWorkload
from sim.workload.build import build_workload

Report = Callable[[str], None]


async def spot_check(
    scenario: Scenario,
    endpoint: Endpoint,
    *,
    repeats: int = 2,
    max_requests: int | None = None,
    report: Report | None = None,
) -> SpotCheck:
    """Sends a scenario's requests to the live server and simulates the same ones.

    Args:
        scenario: with the server as it really runs, and one load.
        endpoint: the server.
        repeats: real runs.
        max_requests: sent at most, all repeats together.
        report: gets a line of progress now and then.

    Raises:
        UserError: the server does not answer, or the scenario cannot be simulated.
    """
    deployment = plan(scenario)
    simulated = simulate_exactly(scenario, deployment)
    client = HttpClient(endpoint)
    budget = Budget(max_requests)
    done: list[Repeat] = []
    async with client.connected():
        await client.find_model()
        warnings = _mismatches(deployment, await client.metrics())
        for number in range(repeats):
            name = f"run {number + 1} of {repeats}"
            done.append(await _send(_Sending(scenario, deployment, client, budget, report), name))
            if done[-1].live.stopped is not None:
                break
    return _checked(scenario, endpoint, done, simulated, warnings)


def _checked(
    scenario: Scenario, endpoint: Endpoint, done: list[Repeat], simulated: RunRecord, warnings: list[str]
) -> SpotCheck:
    finished = sum(repeat.live.num_finished for repeat in done)
    if not finished:
        first = next((error for repeat in done for error in repeat.live.errors), "none was sent")
        raise UserError(f"{endpoint.base_url}: no request was answered: {first}")
    for repeat in done:
        warnings += [*repeat.live.record.warnings, *([repeat.live.stopped] if repeat.live.stopped else [])]
    warnings += simulated.warnings
    warm_up_ns = round(1e9 * scenario.run.warm_up)
    rows = compare(done, simulated, warm_up_ns)
    return SpotCheck(scenario.name, rows, done, simulated, list(dict.fromkeys(warnings)), warm_up_ns)


@dataclass(frozen=True, slots=True)
class _Sending:
    """What every repeat needs."""

    scenario: Scenario
    deployment: Deployment
    client: HttpClient
    budget: Budget
    report: Report | None


async def _send(sending: _Sending, name: str) -> Repeat:
    def progress(num_ended: int, num_in_flight: int) -> None:
        if sending.report is not None:
            sending.report(f"{name}: {num_ended} requests answered, {num_in_flight} in flight")

    client, scenario = sending.client, sending.scenario
    workload = _workload(scenario, sending.deployment)
    salt = time.time_ns()
    before = await client.metrics()
    holds_conversations = isinstance(scenario.workload, UsersWorkload)
    driver = LiveDriver(client, budget=sending.budget, want_answers=holds_conversations, on_progress=progress)
    live = await driver.run(workload, TokenText(salt), f"hc-{salt}")
    after = await client.metrics_when_idle()
    counters = after.since(before) if before is not None and after is not None else {}
    return Repeat(live, counters)


def _workload(scenario: Scenario, deployment: Deployment) -> ExactAnswers:
    return ExactAnswers(build_workload(scenario, scenario.run.seed, max_model_len=deployment.flags.max_model_len))


def simulate_exactly(scenario: Scenario, deployment: Deployment) -> RunRecord:
    """Simulates a scenario's requests as they are sent to a real server: each asks for the tokens it will get."""
    workload = _workload(scenario, deployment)
    model = deployment.step_time_model()
    scheduler_config, cache_config = deployment.scheduler_config, deployment.cache_config
    run = new_run(workload, scheduler_config, cache_config, calibrated=model.calibrated)
    engine = EngineCore(scheduler_config, cache_config, model)
    server = ApiServer(workload, engine, run, limits=deployment.limits, latency=deployment.latency)
    run.end_ns = run_engine(engine, server)
    run.warnings += [*deployment.warnings, *workload.warnings, *server.warnings(), *model.out_of_range()]
    return run


def _mismatches(deployment: Deployment, metrics: ServerMetrics | None) -> list[str]:
    """Says where the live server's KV cache is not the one that is simulated."""
    if metrics is None:
        return ["the server has no /metrics page: preemptions and hit rate are not compared"]
    cache = deployment.cache_config
    pairs = {
        "KV blocks": (metrics.num_gpu_blocks, cache.num_gpu_blocks),
        "tokens a block": (metrics.block_size, cache.block_size),
        "prefix caching": (metrics.enable_prefix_caching, cache.enable_prefix_caching),
    }
    found = [
        f"the live server has {what} {real} and the scenario's server {simulated}: they are not the same server"
        for what, (real, simulated) in pairs.items()
        if real is not None and real != simulated
    ]
    if metrics.num_engines > 1:
        found.append(f"the live server has {metrics.num_engines} engines; one is simulated")
    return found
