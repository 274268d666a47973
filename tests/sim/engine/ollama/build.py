"""Ollama servers for tests: stated costs instead of measured ones, requests made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.engine.ollama.engine import OllamaEngine
from sim.engine.ollama.placement import Host, Placement
from sim.engine.ollama.runner import RunnerConfig
from sim.engine.ollama.scheduler import ModelConfig, Scheduler
from sim.engine.process import run_server
from sim.engine.recorded import LinearCost
from sim.engine.step_time import ClientLatency, StepTimeModel
from sim.ollama_server import OllamaServer
from sim.records import OllamaResponse, Outcome, RequestRecord, RunRecord
from sim.workload.client import ClientRequest, Workload
from tests.cases.build import MS, Listed, sent

GIB = 2**30
CARD = Host(gpu_bytes=24 * GIB, num_gpus=1, ram_bytes=64 * GIB)
STEP_MS = 10
COST = LinearCost(1000 * STEP_MS)  # every batch takes 10 ms, whatever is in it


def placed(
    num_parallel: int = 1, num_ctx: int = 4096, num_batch: int = 512, *, gib: float = 6.0, predicted_gib: float = 0.0
) -> Placement:
    return Placement(
        num_parallel=num_parallel,
        num_ctx=num_ctx,
        num_batch=num_batch,
        file_bytes=gib * GIB,
        context_bytes=0.0,
        bytes_per_token=0.0,
        predicted_bytes=(predicted_gib or gib) * GIB,
        gpu_bytes=gib * GIB,
        ram_bytes=0.0,
        num_layers=33,
        num_gpu_layers=33,
    )


def model(
    name: str = "one",
    placement: Placement | None = None,
    *,
    load_ms: int = 2000,
    keep_alive_ms: int | None = 300_000,
    cost: StepTimeModel = COST,
    path: str | None = None,
    **runner: Any,
) -> ModelConfig:
    """Returns a model; `runner` sets fields of RunnerConfig."""
    return ModelConfig(
        name=name,
        path=path or name,
        runner=RunnerConfig(placement=placement or placed(), **{"batching": "decode_first", **runner}),
        keep_alive_ns=None if keep_alive_ms is None else keep_alive_ms * MS,
        load_ns=load_ms * MS,
        reload_ns=load_ms * MS,
        step_time_model=cost,
    )


def serve(
    requests: Sequence[ClientRequest] | Workload,
    models: Sequence[ModelConfig] = (),
    *,
    warm: bool = True,
    host: Host = CARD,
    **scheduler: Any,
) -> RunRecord:
    """Runs requests; one of class k asks for model k. `scheduler` sets what the scheduler takes."""
    models = list(models) or [model()]
    settings = {"queue_rule": "source", "max_queue": 512, "max_loaded_models": 3, "fit_share": 0.8, **scheduler}
    largest = max((each.placement for each in models), key=lambda each: each.num_parallel * each.num_ctx)
    run = RunRecord(
        class_names=tuple(each.name for each in models),
        num_gpu_blocks=largest.num_parallel * largest.num_ctx + 1,
        block_size=1,
        max_num_seqs=largest.num_parallel,
        max_num_batched_tokens=largest.num_batch,
        num_replicas=len(models),
        calibrated=False,
    )
    workload: Any = requests if hasattr(requests, "pop_due") else Listed(requests)  # type: ignore[arg-type]
    server = OllamaServer(
        workload,
        OllamaEngine(Scheduler(models, host, **settings), warm=warm),
        run,
        model_of_class=tuple(range(len(models))),
        latency=ClientLatency(),
        tells_cached=True,
    )
    run.end_ns = run_server(server)
    server.finish()
    return run


def ask(
    number: int,
    model_id: int = 0,
    at_ms: float = 0,
    *,
    prompt: int | tuple[tuple[int, int], ...] = 100,
    output: int = 10,
    timeout_ms: int | None = None,
    **fields: Any,
) -> ClientRequest:
    """Returns a request for a model; 100 tokens in and 10 out take 10 batches, 100 ms, on an idle server."""
    timeout_ns = None if timeout_ms is None else timeout_ms * MS
    request = sent(number, prompt, output, round(at_ms * MS), timeout_ns=timeout_ns, **fields)
    return replace(request, class_id=model_id)


def answers(run: RunRecord) -> dict[int, OllamaResponse]:
    assert run.ollama is not None
    return {response.request_id: response for response in run.ollama.responses}


def records(run: RunRecord) -> dict[int, RequestRecord]:
    return {record.request_id: record for record in run.requests}


def count(run: RunRecord, outcome: Outcome) -> int:
    return sum(record.outcome is outcome for record in run.requests)
