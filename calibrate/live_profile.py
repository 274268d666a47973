"""A profile from an observation.

With the engine's own record, the step times are fitted to the steps (`fit_steps.py`), the client's latency is what was
seen, and every phase is simulated to show the errors. Without one, the requests are fitted by simulation in the loop.

A fit to steps is robust: it says what a step takes when nothing comes between. It is scaled so that all steps together
take as long as they took (pauses cut): a server that is slow now and then is slow in the mean, not in the median.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.comparison import Latencies, predicted_latencies
from calibrate.fit import FitOptions, fit, step_outcome, step_terms
from calibrate.fit_steps import fit_steps
from calibrate.fit_terms import STEP_TERMS, ModelForm
from calibrate.live_latency import MeasuredLatency, measure_latency
from calibrate.observe import Observation, PhaseResult, requests_file
from calibrate.recorded_engine import engine_configs
from calibrate.replay_server import ServerChoice
from calibrate.step_record import StepRecord, step_durations_ns
from sim.api_server import AdmissionLimits, ApiServer
from sim.deployment import new_run
from sim.engine.engine_core import EngineCore
from sim.engine.process import run as run_engine
from sim.engine.profile import ClientSide, ErrorTable, MeasuredError, Profile
from sim.engine.profile_terms import Covariance, Estimate, FittedStepTime
from sim.engine.step_time import Batch, ClientLatency, StepTimeModel
from sim.errors import UserError
from sim.records import Outcome, RunRecord
from sim.scenario.model import Flags, Server
from sim.workload.client import Workload

_PAUSE = 10.0  # a step that takes so many times longer than predicted was held up by something else
_LEAST_STEPS = 50
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_OTHER_NAMES = {"policy": "scheduling_policy", "num_gpu_blocks": "num_gpu_blocks_override"}


@dataclass(frozen=True, slots=True)
class LiveProfile:
    """A profile of a live server, and the report on its fit."""

    profile: Profile
    report: list[str]


def make_profile(
    observation: Observation,
    folder: Path,
    *,
    name: str,
    model: str,
    gpu: str,
    progress: Callable[[str], None] = lambda _: None,
) -> LiveProfile:
    """Returns the profile of an observed server.

    Args:
        observation: what was seen.
        folder: where its requests were written.
        name: of the profile.
        model: as scenarios name it.
        gpu: the GPU's name.
        progress: told what a fit to requests is doing.

    Raises:
        UserError: there is too little to fit to, or (without a step record, or with that of a pipeline, whose steps
            overlap) the model is not known.
    """
    source = f"headcount calibrate: {len(observation.phases)} phases, {observation.num_requests} requests"
    record = observation.steps
    if record is not None and record.num_stages == 1:
        return _from_steps(observation, record, FitOptions(name=name, source=source), model, gpu)
    server = _seen_server(observation, model, gpu) if record is None else _recorded_server(record, model, gpu)
    options = FitOptions(name=name, source=source, leave_one_out=False)
    return _from_requests(observation, folder, server, options, progress)


def _from_requests(
    observation: Observation,
    folder: Path,
    server: ServerChoice,
    options: FitOptions,
    progress: Callable[[str], None],
) -> LiveProfile:
    """Fits to requests; what hits the prefix cache is left out, since the tables do not say what was shared."""
    phases = [result.phase for result in observation.phases if result.live.num_finished]
    files = [requests_file(folder, p) for p in phases if not any(r.prefix_tokens for r in p.requests)]
    if not files:
        raise UserError("no request was answered: there is nothing to fit to")
    outcome = fit(files, server, options, progress)
    return LiveProfile(outcome.profile, outcome.report)


def _from_steps(observation: Observation, record: StepRecord, options: FitOptions, model: str, gpu: str) -> LiveProfile:
    steps = steps_of(observation.phases, record)
    if len(steps) < _LEAST_STEPS:
        raise UserError(f"only {len(steps)} steps were recorded; a fit wants {_LEAST_STEPS}: send more requests")
    server = _recorded_server(record, model, gpu)
    form = ModelForm(graph_sizes=tuple(sorted(record.server.get("graph_sizes", ()))))
    found = fit_steps(steps, step_terms(server, (*STEP_TERMS, "overlap"), steps), form)
    outcome = step_outcome(found, server, options, [record.path])
    profile = _scaled(outcome.profile, steps)
    latency = measure_latency(observation.phases, record)
    profile = profile.model_copy(update={"client_latency": _client_side(latency)})
    tables = [table for result in observation.phases if (table := phase_errors(result, record, profile))]
    profile = profile.model_copy(update={"errors": (*profile.errors, *tables)})
    return LiveProfile(profile, outcome.report)


def _scaled(profile: Profile, steps: Sequence[tuple[Batch, int]]) -> Profile:
    """Returns the profile with all its step times longer or shorter by the factor that makes their sum the measured."""
    model = profile.step_time_model(profile.server.async_scheduling)
    predicted = np.array([model.step_time(batch) for batch, _ in steps], dtype=np.float64)
    durations = np.array([duration for _, duration in steps], dtype=np.float64)
    factor = float(np.minimum(durations, _PAUSE * predicted).sum() / predicted.sum())
    step_time = profile.step_time
    assert isinstance(step_time, FittedStepTime)
    changed: dict[str, Any] = {}
    for name in type(step_time).model_fields:
        estimate = getattr(step_time, name)
        if isinstance(estimate, Estimate) and name != "overlap":
            stderr = None if estimate.stderr is None else factor * estimate.stderr
            changed[name] = Estimate(value=factor * estimate.value, stderr=stderr, remark=estimate.remark)
    if step_time.covariance is not None:
        changed["covariance"] = _scaled_covariance(step_time.covariance, factor)
    note = f"step times were scaled by {factor:.4f}, so that all steps together take as long as they took"
    update = {"step_time": step_time.model_copy(update=changed), "notes": (*profile.notes, note)}
    return profile.model_copy(update=update)


def _scaled_covariance(covariance: Covariance, factor: float) -> Covariance:
    factors = [1.0 if name == "overlap" else factor for name in covariance.names]
    rows = tuple(
        tuple(cell * factors[i] * factors[j] for j, cell in enumerate(row)) for i, row in enumerate(covariance.matrix)
    )
    return Covariance(names=covariance.names, matrix=rows)


def _recorded_server(record: StepRecord, model: str, gpu: str) -> ServerChoice:
    """Returns the server that a step record was made in, as a scenario describes it."""
    known = record.server
    flags = {_OTHER_NAMES.get(name, name): value for name, value in known.items()}
    return ServerChoice(
        Server(
            version=_release(known.get("vllm")),
            model=model,
            gpu=gpu,
            **{key: known[key] for key in _PARALLEL if key in known},
            flags=Flags(**{name: value for name, value in flags.items() if name in Flags.model_fields}),
        )
    )


def _seen_server(observation: Observation, model: str, gpu: str) -> ServerChoice:
    """Returns the server as its pages describe it: release, longest request, KV blocks."""
    metrics = observation.metrics
    flags: dict[str, Any] = {"max_model_len": observation.model.max_model_len}
    if metrics is not None:
        flags |= {
            "num_gpu_blocks_override": metrics.num_gpu_blocks,
            "block_size": metrics.block_size,
            "enable_prefix_caching": metrics.enable_prefix_caching,
        }
    return ServerChoice(Server(version=_release(observation.version), model=model, gpu=gpu, flags=Flags(**flags)))


def _release(version: Any) -> str:
    return "0.32" if not version else str(version).removeprefix("v").split("+")[0]


def steps_of(results: Sequence[PhaseResult], record: StepRecord) -> list[tuple[Batch, int]]:
    """Returns the steps, with durations in nanoseconds, that the engine made while these phases ran."""
    spans = [(r.live.start_ns, r.live.start_ns + r.live.record.end_ns) for r in results if r.live.record.requests]
    found = []
    for step, duration_ns in zip(record.steps, step_durations_ns(record), strict=True):
        inside = any(begin <= step.schedule_ns <= end for begin, end in spans)
        if inside and duration_ns is not None and step.numbers:
            found.append((step.batch(), duration_ns))
    return found


def _client_side(latency: MeasuredLatency) -> ClientSide:
    remark = f"seen in {latency.num_requests} requests" if latency.num_requests else "not measured"
    return ClientSide(
        request_ms=Estimate(value=round(latency.request_ns / 1e6, 4), remark=remark),
        per_prompt_token_us=Estimate(value=round(latency.per_prompt_token_ns / 1e3, 5)),
        response_ms=Estimate(value=round(latency.response_ns / 1e6, 4)),
        serial_ms=Estimate(value=round(latency.serial_ns / 1e6, 4)),
    )


def simulate_like(record: StepRecord, workload: Workload, model: StepTimeModel, latency: ClientLatency) -> RunRecord:
    """Simulates a workload on the engine that a step record was made in."""
    scheduler_config, cache_config = engine_configs(record)
    run = new_run(workload, scheduler_config, cache_config, calibrated=model.calibrated)
    engine = EngineCore(scheduler_config, cache_config, model)
    limits = AdmissionLimits(max_model_len=scheduler_config.max_model_len)
    run.end_ns = run_engine(engine, ApiServer(workload, engine, run, limits=limits, latency=latency))
    return run


def phase_errors(result: PhaseResult, record: StepRecord, profile: Profile) -> ErrorTable | None:
    """Returns a phase's numbers, measured and predicted; None when one of its requests failed, or none was sent."""
    live = result.live.record
    if not live.requests or any(request.outcome is not Outcome.FINISHED for request in live.requests):
        return None
    # A phase whose time was up was sent in part: its first requests.
    sent = replace(result.phase, requests=result.phase.requests[: len(live.requests)])
    model = profile.step_time_model(bool(record.server["async_scheduling"]))
    simulated = simulate_like(record, sent.workload(), model, profile.latency())
    measured, predicted = predicted_latencies(live), predicted_latencies(simulated)
    rows = []
    for metric, kind in (("ttft_ms", "ttft_s"), ("tpot_ms", "tpot_s"), ("e2el_ms", "e2el_s")):
        for statistic in ("p50", "p90"):
            values = [_percentile(latencies, kind, statistic) for latencies in (measured, predicted)]
            rows.append(_row_of(metric, statistic, values[0], values[1]))
    rows.append(_row_of("duration_s", None, live.end_ns / 1e9, max(r.finish_ns for r in simulated.requests) / 1e9))
    return ErrorTable(run=result.phase.name, band=result.phase.band, rows=tuple(rows))


def _row_of(metric: str, statistic: str | None, measured: float, predicted: float) -> MeasuredError:
    numbers = {"measured": float(f"{measured:.5g}"), "predicted": float(f"{predicted:.5g}")}
    return MeasuredError.model_validate({"metric": metric, "statistic": statistic, **numbers})


def _percentile(latencies: Latencies, kind: str, statistic: str) -> float:
    values = getattr(latencies, kind)
    return float(1e3 * np.nanpercentile(values, float(statistic[1:]))) if not np.isnan(values).all() else 0.0
