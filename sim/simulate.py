"""One simulated run of a scenario: build the world, run it, return what it recorded. Start reading here."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from sim.api_server import ApiServer
from sim.deployment import new_run, plan
from sim.engine.engine_core import EngineCore
from sim.engine.process import run, run_server
from sim.engine.profile import Profile
from sim.engine.static_batching import StaticConfig, StaticEngine
from sim.engine.step_split import StepMeter
from sim.fleet.fleet import Fleet
from sim.ollama_deployment import plan_ollama
from sim.ollama_server import OllamaServer
from sim.records import RunRecord, StepSplit
from sim.scenario.model import Scenario
from sim.static_server import StaticServer
from sim.workload.build import build_workload


def simulate(
    scenario: Scenario,
    *,
    seed: int,
    load: float | None = None,
    reference: bool = False,
    profile: Profile | None = None,
    step_split: bool = False,
) -> RunRecord:
    """Simulates one run.

    Args:
        scenario: server and workload.
        seed: names the random numbers; equal seeds give equal requests at every load.
        load: the value of what `search.vary` names (users, requests/s, concurrency, context tokens); None: the
            workload's own.
        reference: use the reference scheduler even where the fast path applies.
        profile: step times in place of those that the scenario names (not of Ollama).
        step_split: keep what each step is made of (vLLM alone); takes a third more time.

    Returns:
        A record a request and a row a step, in virtual time from 0.

    Raises:
        UserError: the server would not start, or the workload's files are at fault.
    """
    with _few_collections():
        match scenario.server.kind:
            case "vllm":
                return _vllm(scenario, seed, load, reference, profile, step_split=step_split)
            case "ollama":
                return _ollama(scenario, seed, load)
            case "static":
                return _static(scenario, seed, load, profile)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Lets Python look for cyclic garbage every 100,000 new objects, not every 700: runs leave next to none."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _vllm(
    scenario: Scenario, seed: int, load: float | None, reference: bool, profile: Profile | None, *, step_split: bool
) -> RunRecord:
    deployment = plan(scenario, profile)
    scheduler_config, cache_config = deployment.scheduler_config, deployment.cache_config
    workload = build_workload(scenario, seed, load, deployment.flags.max_model_len)
    step_time_model = deployment.step_time_model()
    record = new_run(workload, scheduler_config, cache_config, calibrated=step_time_model.calibrated)
    if step_split:
        record.step_split = StepSplit(step_time_model.name)
    if scenario.server.is_fleet or scenario.server.slow_gpus:
        record.warnings += [*deployment.warnings, *workload.warnings]
        Fleet(deployment, workload, record, reference=reference).run()
        return record
    if record.step_split is not None:
        step_time_model = StepMeter(step_time_model, record.step_split)
    engine = EngineCore(scheduler_config, cache_config, step_time_model, reference=reference)
    server = ApiServer(workload, engine, record, limits=deployment.limits, latency=deployment.latency)
    record.end_ns = run(engine, server, server)
    record.arrivals_end_ns = workload.arrivals_end_ns
    record.warnings += [
        *deployment.warnings, *workload.warnings, *server.warnings(), *step_time_model.out_of_range()
    ]  # fmt: skip
    return record


def _ollama(scenario: Scenario, seed: int, load: float | None) -> RunRecord:
    deployment = plan_ollama(scenario)
    workload = build_workload(scenario, seed, load)  # prompts may exceed num_ctx: Ollama cuts them
    largest = max((model.placement for model in deployment.models), key=lambda each: each.num_parallel * each.num_ctx)
    record = RunRecord(
        class_names=workload.class_names,
        num_gpu_blocks=largest.num_parallel * largest.num_ctx + 1,  # a token of context is a block of its own
        block_size=1,
        max_num_seqs=largest.num_parallel,
        max_num_batched_tokens=largest.num_batch,
        num_replicas=len(deployment.models),  # each model has a runner of its own
        calibrated=deployment.calibrated,
    )
    server = OllamaServer(
        workload,
        deployment.engine(),
        record,
        model_of_class=deployment.model_of_class(workload.class_names),
        latency=deployment.latency,
        tells_cached=deployment.rules.tells_cached,
    )
    record.end_ns = run_server(server)
    server.finish()
    record.arrivals_end_ns = workload.arrivals_end_ns
    out_of_range = [text for model in deployment.models for text in model.step_time_model.out_of_range()]
    record.warnings += [*deployment.warnings, *workload.warnings, *server.warnings(), *out_of_range]
    return record


def _static(scenario: Scenario, seed: int, load: float | None, profile: Profile | None) -> RunRecord:
    deployment, static = plan(scenario, profile), scenario.server.static
    max_model_len, memory = deployment.flags.max_model_len, deployment.memory
    workload = build_workload(scenario, seed, load, max_model_len)
    step_time_model = deployment.step_time_model()
    config = StaticConfig(
        batch_size=static.batch_size,
        max_wait_ns=round(static.max_wait * 1e9),
        reservation=static.reservation,
        padding=static.padding,
        max_model_len=max_model_len,
        kv_tokens=memory.kv_tokens,
        block_size=memory.block_size,
    )
    record = RunRecord(
        class_names=workload.class_names,
        num_gpu_blocks=-(-memory.kv_tokens // memory.block_size) + 1,
        block_size=memory.block_size,
        max_num_seqs=static.batch_size,
        max_num_batched_tokens=static.batch_size * max_model_len,
        num_replicas=1,
        calibrated=step_time_model.calibrated,
    )
    engine = StaticEngine(config, step_time_model)
    server = StaticServer(workload, engine, record, latency=deployment.latency, streaming=static.streaming)
    record.end_ns = run_server(server)
    record.arrivals_end_ns = workload.arrivals_end_ns
    record.warnings += [*deployment.warnings, *workload.warnings, *step_time_model.out_of_range()]
    return record
