"""A profile from an observation: step times fitted to the engine's own record, errors from simulating the same phases.

The terms add up (`overlap: 0`), which is what synchronous engines and CPUs do; `calibrate/fit.py` has the other forms.
The fit is non-negative, on relative residuals, with outliers capped; it is scaled so that the sum of all steps is the
measured one (pauses cut), since a server that is slow now and then is slow in the mean, not in the median.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrate.comparison import Latencies, predicted_latencies
from calibrate.live_latency import MeasuredLatency, measure_latency
from calibrate.observe import Observation, PhaseResult
from calibrate.recorded_engine import engine_configs
from calibrate.step_record import StepRecord, step_durations_ns
from sim.api_server import AdmissionLimits, ApiServer
from sim.engine.engine_core import EngineCore
from sim.engine.process import run as run_engine
from sim.engine.profile import ClientSide, ErrorTable, MeasuredError, Profile, ProfiledServer, ValidUpTo
from sim.engine.profile_terms import Covariance, Estimate, FittedStepTime
from sim.engine.step_time import Batch, ClientLatency, StepTimeModel
from sim.errors import UserError
from sim.records import Outcome, RunRecord
from sim.workload.client import Workload

Floats = NDArray[np.float64]

_LEAST_STEPS = 50
_HUBER = 0.5  # relative residuals beyond this count as if they were this
_PAUSE = 10.0  # a step that takes so many times longer than predicted was held up by something else
_ROUNDS = 20
_BOUNDARY = 1e-9
# Coefficient of the profile, its unit in nanoseconds, and what it multiplies.
_TERMS = (
    ("floor_us", 1e3),
    ("per_token_us", 1e3),
    ("per_attention_pair_ns", 1.0),
    ("per_decode_us", 1e3),
    ("per_decode_context_token_ns", 1.0),
    ("per_chunk_context_token_ns", 1.0),
)


@dataclass(frozen=True, slots=True)
class StepFit:
    """Coefficients in the profile's units, their covariance, and how well they do.

    Attributes:
        values: by the profile's names.
        covariance: in the order of `values`; zero rows for those at the boundary.
        num_steps: steps fitted to.
        median_error_percent: median absolute relative residual.
        largest: the largest values of a step in the data.
    """

    values: dict[str, float]
    covariance: Floats
    num_steps: int
    median_error_percent: float
    largest: ValidUpTo


def steps_of(results: Sequence[PhaseResult], record: StepRecord) -> list[tuple[Batch, int]]:
    """Returns the steps, with durations in nanoseconds, that the engine made while these phases ran."""
    spans = [(r.live.start_ns, r.live.start_ns + r.live.record.end_ns) for r in results if r.live.record.requests]
    found = []
    for step, duration_ns in zip(record.steps, step_durations_ns(record), strict=True):
        inside = any(begin <= step.schedule_ns <= end for begin, end in spans)
        if inside and duration_ns is not None and step.numbers:
            found.append((step.batch(), duration_ns))
    return found


def fit_steps(steps: Sequence[tuple[Batch, int]]) -> StepFit:
    """Fits the terms to steps of known duration.

    Raises:
        UserError: there are too few steps.
    """
    if len(steps) < _LEAST_STEPS:
        raise UserError(
            f"only {len(steps)} steps were recorded; a fit wants {_LEAST_STEPS} at least: send more requests"
        )
    terms = np.array([_row(batch) for batch, _ in steps], dtype=np.float64)
    durations = np.array([duration for _, duration in steps], dtype=np.float64)
    values = _robust_non_negative(terms, durations)
    predicted = terms @ values
    values *= np.minimum(durations, _PAUSE * predicted).sum() / predicted.sum()
    residuals = (terms @ values - durations) / durations
    units = np.array([unit for _, unit in _TERMS])
    batches = [batch for batch, _ in steps]
    return StepFit(
        values={name: float(value / unit) for (name, unit), value in zip(_TERMS, values, strict=True)},
        covariance=_covariance(terms, durations, values, residuals) / np.outer(units, units),
        num_steps=len(steps),
        median_error_percent=float(100 * np.median(np.abs(residuals))),
        largest=ValidUpTo(
            num_tokens=max(batch.num_tokens for batch in batches),
            num_requests=max(batch.num_requests for batch in batches),
            attention_pairs=max(batch.attention_pairs for batch in batches) or None,
            decode_context=max(batch.decode_context for batch in batches) or None,
            chunk_context=max(batch.chunk_context for batch in batches) or None,
        ),
    )


def _row(batch: Batch) -> tuple[float, ...]:
    pairs, decodes = batch.attention_pairs, batch.num_decodes
    return (1, batch.num_tokens, pairs, decodes, batch.decode_context, batch.chunk_context)


def _robust_non_negative(terms: Floats, durations: Floats) -> Floats:
    """Returns the non-negative coefficients with the smallest Huber loss of the relative residuals."""
    from scipy.optimize import nnls

    relative = terms / durations[:, None]
    scale = np.where(relative.max(axis=0) > 0, relative.max(axis=0), 1.0)
    weights = np.ones(len(durations))
    values = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        before = values
        values = nnls(relative / scale * root[:, None], root)[0] / scale
        residuals = np.abs(relative @ values - 1)
        weights = np.minimum(1.0, _HUBER / np.maximum(residuals, 1e-12))
        if np.allclose(values, before, rtol=1e-6):
            break
    return np.asarray(values)


def _covariance(terms: Floats, durations: Floats, values: Floats, residuals: Floats) -> Floats:
    """Returns the least-squares covariance of the coefficients above zero; the others have none."""
    relative = terms / durations[:, None]
    free = np.flatnonzero(values * np.abs(relative).mean(axis=0) > _BOUNDARY)
    covariance = np.zeros((len(values), len(values)))
    if len(free):
        capped = np.clip(residuals, -_HUBER, _HUBER)
        variance = (capped**2).sum() / max(1, len(durations) - len(free))
        part = relative[:, free]
        covariance[np.ix_(free, free)] = variance * np.linalg.pinv(part.T @ part)
    return covariance


def make_profile(observation: Observation, name: str, model: str, gpu: str) -> Profile:
    """Returns the profile of an observed server.

    Args:
        observation: with a step record.
        name: of the profile.
        model: as scenarios name it.
        gpu: the GPU's name.

    Raises:
        UserError: there is no step record, or it has too few steps.
    """
    record = observation.steps
    if record is None:
        raise UserError(
            "no step record: start the server with the recorder and give its file with --steps, or fit the requests "
            "that were written with headcount fit"
        )
    fit = fit_steps(steps_of(observation.phases, record))
    latency = measure_latency(observation.phases, record)
    step_time = _step_time(fit)
    profile = Profile(
        format=1,
        name=name,
        description=f"Calibrated live at {observation.base_url}.",
        calibrated="prior",  # until its errors are known
        date=datetime.datetime.now(tz=datetime.UTC).date(),
        source=f"headcount calibrate: {len(observation.phases)} phases, {observation.num_requests} requests",
        data=(f"{fit.num_steps} recorded steps, median residual {fit.median_error_percent:.1f} %",),
        server=_server(observation, record, model, gpu),
        step_time=step_time,
        valid_up_to=fit.largest,
        client_latency=_client_side(latency),
    )
    errors = [table for result in observation.phases if (table := phase_errors(result, record, profile))]
    if not errors:
        raise UserError("no phase was answered in full: there is nothing to compare the profile with")
    return profile.model_copy(update={"calibrated": True, "errors": tuple(errors)})


def _step_time(fit: StepFit) -> FittedStepTime:
    estimates = {
        name: Estimate(
            value=round(value, 6),
            stderr=round(float(np.sqrt(fit.covariance[i, i])), 6) if value else None,
            remark=None if value else "at boundary",
        )
        for i, (name, value) in enumerate(fit.values.items())
    }
    matrix = tuple(tuple(float(f"{cell:.6g}") for cell in row) for row in fit.covariance)
    covariance = Covariance(names=tuple(fit.values), matrix=matrix)
    return FittedStepTime.model_validate(
        {"kind": "fitted", "overlap": Estimate(value=0.0), "covariance": covariance, **estimates}
    )


def _server(observation: Observation, record: StepRecord, model: str, gpu: str) -> ProfiledServer:
    server = record.server
    flags = {key: server[key] for key in ("max_num_seqs", "max_num_batched_tokens", "dtype", "enforce_eager")}
    return ProfiledServer(
        model=model,
        gpu=gpu,
        vllm_version=str(server.get("vllm") or observation.version),
        tensor_parallel_size=server["tensor_parallel_size"],
        pipeline_parallel_size=server["pipeline_parallel_size"],
        data_parallel_size=server["data_parallel_size"],
        async_scheduling=server["async_scheduling"],
        flags=flags,
    )


def _client_side(latency: MeasuredLatency) -> ClientSide:
    remark = f"seen in {latency.num_requests} requests" if latency.num_requests else "not measured"
    return ClientSide(
        request_ms=Estimate(value=round(latency.request_ns / 1e6, 4), remark=remark),
        per_prompt_token_us=Estimate(value=round(latency.per_prompt_token_ns / 1e3, 5)),
        response_ms=Estimate(value=round(latency.response_ns / 1e6, 4)),
    )


def simulate_like(record: StepRecord, workload: Workload, model: StepTimeModel, latency: ClientLatency) -> RunRecord:
    """Simulates a workload on the engine that a step record was made in."""
    scheduler_config, cache_config = engine_configs(record)
    run = RunRecord(
        class_names=workload.class_names,
        num_gpu_blocks=cache_config.num_gpu_blocks,
        block_size=cache_config.block_size,
        max_num_seqs=scheduler_config.max_num_seqs,
        max_num_batched_tokens=scheduler_config.max_num_batched_tokens,
        num_replicas=1,
        calibrated=model.calibrated,
    )
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
