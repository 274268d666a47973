"""Probes a live server with a short plan and keeps what it finds, phase by phase, in a folder."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrate.files import write_whole
from calibrate.http_client import Endpoint, HttpClient, ServedModel
from calibrate.live_driver import Budget, LiveDriver, LiveRun
from calibrate.metrics_scrape import ServerMetrics
from calibrate.plan import Phase, PlannedRequest, make_plan, time_shares
from calibrate.step_reader import read_steps
from calibrate.step_record import StepRecord
from calibrate.step_writer import FLUSH_INTERVAL_S
from calibrate.token_text import TokenText
from sim.errors import UserError
from sim.records import Outcome

Report = Callable[[str], None]

_WARM_UP = (PlannedRequest(64, 8), PlannedRequest(256, 8))
_USUAL_MODEL_LEN = 4_096
_LEAST_PHASE_S = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a calibration may take of a server.

    Attributes:
        max_requests: requests sent at most, warm-up included.
        max_time_s: seconds of sending, all phases together; what is in flight then is waited for.
        max_concurrency: requests in flight in the largest closed loop; the burst has twice as many.
    """

    max_requests: int = 1_000
    max_time_s: float = 240.0
    max_concurrency: int = 32


@dataclass(slots=True)
class PhaseResult:
    """A phase that was sent.

    Attributes:
        phase: what was planned.
        live: what the client saw.
        counters: how the server's counters grew; empty where it has none.
    """

    phase: Phase
    live: LiveRun
    counters: dict[str, float]


@dataclass(slots=True)
class Observation:
    """What a calibration saw.

    Attributes:
        base_url: of the server.
        model: what it serves.
        version: of vLLM, where known.
        metrics: its first reading of /metrics.
        phases: those that were sent, the last perhaps in part.
        steps: the engine's own record, where there is one.
        stopped: why it ended before the plan did, or None.
    """

    base_url: str
    model: ServedModel
    version: str | None
    metrics: ServerMetrics | None
    phases: list[PhaseResult] = field(default_factory=list)
    steps: StepRecord | None = None
    stopped: str | None = None

    @property
    def num_requests(self) -> int:
        """Requests sent, the warm-up left out."""
        return sum(len(result.live.record.requests) for result in self.phases)


async def observe(
    endpoint: Endpoint, limits: Limits, folder: Path, *, steps: Path | None, report: Report
) -> Observation:
    """Sends the plan to a live server.

    Args:
        endpoint: the server.
        limits: what it may take.
        folder: where each phase's requests are written as soon as it is over.
        steps: the file that the engine's recorder writes, where it is on.
        report: gets a line of progress now and then.

    Raises:
        UserError: the server does not answer, or not as a server of completions.
    """
    client = HttpClient(endpoint)
    async with client.connected():
        model = await client.find_model()
        observation = Observation(endpoint.base_url, model, await client.version(), await client.metrics())
        plan = make_plan(model.max_model_len or _USUAL_MODEL_LEN, limits.max_concurrency)
        budget = Budget(limits.max_requests)
        warm_up = Phase("warm-up", "low", _WARM_UP, 1)
        first = await _send(client, warm_up, budget, limits.max_time_s, report)
        if first.live.stopped is not None or not first.live.num_finished:
            reason = first.live.stopped or next(iter(first.live.errors), "no request was answered")
            raise UserError(f"{endpoint.base_url}: {reason}")
        await _send_all(client, plan, observation, limits=limits, budget=budget, folder=folder, report=report)
    _write_observation(observation, folder / "observation.json")
    if steps is not None:
        observation.steps = collect_steps(steps, folder / "steps.jsonl")
    return observation


async def _send_all(
    client: HttpClient,
    plan: Sequence[Phase],
    observation: Observation,
    *,
    limits: Limits,
    budget: Budget,
    folder: Path,
    report: Report,
) -> None:
    began, allowed_s = time.monotonic(), 0.0
    for phase, share_s in zip(plan, time_shares(list(plan), limits.max_time_s), strict=True):
        allowed_s += share_s
        spent_s = time.monotonic() - began
        if spent_s > limits.max_time_s and phase.band != "saturated":
            continue  # the server is slow; what is left of the plan matters less than the burst
        limit_s = max(_LEAST_PHASE_S, allowed_s - spent_s)
        rate = _tokens_per_s(observation.phases[-1]) if observation.phases else None
        result = await _send(client, phase.within(limit_s, rate), budget, limit_s, report)
        observation.phases.append(result)
        if result.live.num_finished:
            write_requests(result.live, phase, requests_file(folder, phase))
        if result.live.stopped is not None:
            observation.stopped = result.live.stopped
            return


def _tokens_per_s(result: PhaseResult) -> float | None:
    """Returns the prompt and output tokens a second of a phase."""
    run = result.live.record
    tokens = sum(r.num_prompt_tokens + r.num_output_tokens for r in run.requests if r.outcome is Outcome.FINISHED)
    return 1e9 * tokens / run.end_ns if tokens and run.end_ns else None


async def _send(client: HttpClient, phase: Phase, budget: Budget, limit_s: float, report: Report) -> PhaseResult:
    def progress(num_ended: int, num_in_flight: int) -> None:
        report(f"{phase.name}: {num_ended} of {len(phase.requests)} requests, {num_in_flight} in flight")

    before = await client.metrics()
    driver = LiveDriver(client, budget=budget, on_progress=progress)
    salt = time.time_ns()  # every calibration has a text of its own, or it would hit the prefix cache of the last
    live = await driver.run(phase.workload(), TokenText(salt), f"hc-{salt}-{phase.name}", limit_s=limit_s)
    after = await client.metrics_when_idle()
    counters = after.since(before) if before is not None and after is not None else {}
    return PhaseResult(phase, live, counters)


def collect_steps(source: Path, copy: Path) -> StepRecord:
    """Waits until a recorder has written all it has, copies its file and reads the copy.

    Raises:
        UserError: the file is missing or is no step record.
    """
    size = -1
    while source.exists() and source.stat().st_size != size:
        size = source.stat().st_size
        time.sleep(2 * FLUSH_INTERVAL_S)
    if source.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        return read_steps(copy)
    return read_steps(source)


def requests_file(folder: Path, phase: Phase) -> Path:
    """Returns where a phase's requests are written."""
    return folder / f"requests-{phase.name}.json"


def write_requests(live: LiveRun, phase: Phase, path: Path) -> None:
    """Writes the answered requests of a run as `vllm bench serve --save-detailed` does: what `headcount fit` and
    `headcount replay` read, with the client's cap and every gap between tokens. Times are seconds."""
    kept = [
        (name, r)
        for name, r in zip(live.names, live.record.requests, strict=True)
        if r.outcome is Outcome.FINISHED and r.num_output_tokens
    ]
    document = {
        "max_concurrency": phase.max_concurrency,
        "duration": live.record.end_ns / 1e9,
        "completed": len(kept),
        "request_ids": [name for name, _ in kept],
        "start_times": [round(r.sent_ns / 1e9, 6) for _, r in kept],
        "input_lens": [r.num_prompt_tokens for _, r in kept],
        "output_lens": [r.num_output_tokens for _, r in kept],
        "ttfts": [round((r.first_token_ns - r.sent_ns) / 1e9, 6) for _, r in kept],
        "itls": [[round(gap_ns / 1e9, 6) for gap_ns in live.gaps_ns[name]] for name, _ in kept],
        "errors": [""] * len(kept),
    }
    write_whole(path, json.dumps(document) + "\n")


def _write_observation(observation: Observation, path: Path) -> None:
    document: dict[str, Any] = {
        "base_url": observation.base_url,
        "model": observation.model.name,
        "root": observation.model.root,
        "max_model_len": observation.model.max_model_len,
        "vllm_version": observation.version,
        "stopped": observation.stopped,
        "phases": [_phase_document(result) for result in observation.phases],
    }
    write_whole(path, json.dumps(document, indent=2) + "\n")


def _phase_document(result: PhaseResult) -> dict[str, Any]:
    live = result.live
    return {
        "name": result.phase.name,
        "band": result.phase.band,
        "max_concurrency": result.phase.max_concurrency,
        "num_planned": len(result.phase.requests),
        "num_sent": len(live.record.requests),
        "num_finished": live.num_finished,
        "start_monotonic_s": live.start_ns / 1e9,
        "duration_s": live.record.end_ns / 1e9,
        "counters": result.counters,
        "errors": dict(live.errors),
    }
