"""One simulated run of a scenario: build the world, run it, return what it recorded. Start reading here."""

from __future__ import annotations

from sim.api_server import ApiServer
from sim.deployment import plan
from sim.engine.engine_core import EngineCore
from sim.engine.process import run
from sim.records import RunRecord
from sim.scenario.model import Scenario
from sim.workload.build import build_workload


def simulate(scenario: Scenario, *, seed: int, load: float | None = None, reference: bool = False) -> RunRecord:
    """Simulates one run.

    Args:
        scenario: server and workload.
        seed: names the random numbers; equal seeds give equal requests at every load.
        load: the value of what `search.vary` names (users, requests/s, concurrency, context tokens); None: the
            workload's own.
        reference: use the reference scheduler even where the fast path applies.

    Returns:
        A record a request and a row a step, in virtual time from 0.

    Raises:
        UserError: the server would not start, or the workload's files are at fault.
    """
    deployment = plan(scenario)
    scheduler_config = deployment.scheduler_config
    workload = build_workload(scenario, seed, load, deployment.flags.max_model_len)
    step_time_model = deployment.step_time_model()
    record = RunRecord(
        class_names=workload.class_names,
        num_gpu_blocks=deployment.cache_config.num_gpu_blocks,
        block_size=deployment.cache_config.block_size,
        max_num_seqs=scheduler_config.num_seats,
        max_num_batched_tokens=scheduler_config.max_num_batched_tokens,
        num_replicas=1,
        calibrated=step_time_model.calibrated,
    )
    engine = EngineCore(scheduler_config, deployment.cache_config, step_time_model, reference=reference)
    server = ApiServer(workload, engine, record, limits=deployment.limits, latency=deployment.latency)
    record.end_ns = run(engine, server)
    record.arrivals_end_ns = workload.arrivals_end_ns
    record.warnings += [
        *deployment.warnings, *workload.warnings, *server.warnings(), *step_time_model.out_of_range()
    ]  # fmt: skip
    return record
