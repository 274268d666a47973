"""`headcount fit`: from measurements to a profile. What the data are decides how they are fitted.

Step records: composition and duration of each step, fitted directly (`fit_steps.py`). Requests or a ladder of closed
loops: simulation in the loop (`fit_requests.py`). A folder of operator timings: its steps, made up (`fit_tables.py`).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.fit_cases import Case, LadderCase, RequestCase
from calibrate.fit_report import FittedTerm, report_lines
from calibrate.fit_requests import CaseResult, Progress, RequestFit, fit_requests
from calibrate.fit_steps import StepFit, fit_steps
from calibrate.fit_tables import TableSource, fit_tables
from calibrate.fit_terms import MOE, REQUEST_TERMS, STEP_TERMS, ModelForm, Term, client_side, model_form, start_terms
from calibrate.fit_terms import data_starts as starts_from_data
from calibrate.readers import read_runs
from calibrate.readers.ladder import Key, is_ladder, read_ladder
from calibrate.replay_server import ServerChoice
from calibrate.step_reader import read_steps
from sim.engine.operator_table import Collective
from sim.engine.profile import ErrorTable, MeasuredError, Profile, ProfiledServer, ValidUpTo
from sim.engine.profile_terms import Covariance, Estimate
from sim.engine.step_time import Batch
from sim.errors import UserError
from sim.workload.text_files import open_lines

PREDICTED = ("mean", "p50", "p90", "p99")
"""Statistics in a profile's error tables."""

_HEAD = 4096


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What the user may decide.

    Attributes:
        name: of the profile.
        source: where the measurements come from.
        description: one sentence.
        date: of the fit; None: today.
        terms: keys of the terms to fit; None: those that the kind of data can tell apart.
        form: what is set, not fitted; None: what the model's shape asks for.
        max_concurrency: the client's cap of all request runs; None: what each recording says.
        length_spread: of a ladder's requests: uniform within this share of the mean.
        window_s: where completions are counted; None: all but the first tenth.
        spread: (metric, statistic) -> per cent by which the server's own repeats differ.
        leave_one_out: predict every run without it.
        jobs: processes.
        data: what the profile says of its data; None: the names of the files.
        notes: sentences for the profile.
    """

    name: str
    source: str
    description: str | None = None
    date: datetime.date | None = None
    terms: tuple[str, ...] | None = None
    form: ModelForm | None = None
    max_concurrency: int | None = None
    length_spread: float = 0.0
    window_s: tuple[float, float] | None = None
    spread: Mapping[Key, float] = field(default_factory=dict)
    leave_one_out: bool = True
    jobs: int = 1
    data: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FitOutcome:
    """A profile and the report on it."""

    profile: Profile
    report: list[str]


def fit(
    data: Sequence[Path], server: ServerChoice, options: FitOptions, progress: Progress = lambda _: None
) -> FitOutcome:
    """Fits a profile to measurements.

    Args:
        data: files of one kind: step records, or tables and results of requests, or ladders.
        server: what was measured.
        options: the rest.
        progress: told what goes on, a line at a time.

    Raises:
        UserError: a file cannot be read, kinds are mixed, or the data are too few.
    """
    folders = [path for path in data if path.is_dir()]
    if folders and len(data) > 1:
        raise UserError(f"{folders[0]} is a folder of operator tables; fit it alone")
    if folders:
        return fit_operator_tables(folders[0], server, options)
    recorded = [path for path in data if is_step_record(path)]
    if recorded and len(recorded) < len(data):
        other = next(path for path in data if path not in recorded)
        raise UserError(f"{recorded[0]} holds steps and {other} requests; fit one kind at a time")
    if recorded:
        return _fit_steps(recorded, server, options)
    cases = request_cases(data, server, options)
    return _fit_requests(cases, data, server, options, progress)


def is_step_record(path: Path) -> bool:
    """Returns whether a file is a step record by its first line."""
    with open_lines(path) as lines:
        head = lines.text.read(_HEAD)
    return head.lstrip().startswith("{") and '"ev"' in head.split("\n", 1)[0]


def request_cases(data: Sequence[Path], server: ServerChoice, options: FitOptions) -> list[Case]:
    """Reads runs of known requests, and rungs of ladders.

    Raises:
        UserError: a file cannot be read, or has no latencies.
    """
    deployment = server.plan()
    cases: list[Case] = []
    for path in data:
        if not path.name.endswith((".json", ".json.gz", ".jsonl", ".jsonl.gz")) and is_ladder(path):
            cases += [LadderCase(rung, deployment, options.length_spread) for rung in read_ladder(path)]
            continue
        for run in read_runs(path):
            if run.ttft_s is None and run.e2el_s is None:
                raise UserError(f"{path}: no latencies to fit to; expected columns ttft_s and e2el_s")
            cap = options.max_concurrency or server.client_max_concurrency or run.max_concurrency
            cases.append(RequestCase(run, deployment, cap, options.window_s))
    return cases


def _fit_requests(
    cases: Sequence[Case], data: Sequence[Path], server: ServerChoice, options: FitOptions, progress: Progress
) -> FitOutcome:
    deployment = server.plan()
    form = options.form or model_form(deployment)
    keys = options.terms or (*REQUEST_TERMS, *((MOE,) if form.num_experts else ()))
    found = fit_requests(
        cases,
        start_terms(deployment, keys),
        form,
        leave_one_out=options.leave_one_out,
        jobs=options.jobs,
        progress=progress,
    )
    terms = _fitted_terms(found, found.moved)
    profile = _profile(
        server,
        options,
        data,
        terms=terms,
        covariance=found.covariance,
        form=form,
        largest=found.valid_up_to,
        errors=_case_errors(found, options.spread),
    )
    number = sum(case.comparison.num_requests for case in found.results)
    report = report_lines(
        f"{len(cases)} runs, {number:,} requests, {found.num_simulations} simulations",
        terms,
        found.covariance,
        errors=_bands(found.results),
        held_out={result.case.name: result.comparison.errors_percent() for result in found.held_out},
        valid_up_to=found.valid_up_to,
        notes=[warning for case in cases if isinstance(case, RequestCase) for warning in case.run.warnings],
    )
    return FitOutcome(profile, report)


def _fit_steps(data: Sequence[Path], server: ServerChoice, options: FitOptions) -> FitOutcome:
    records = [read_steps(path) for path in data]
    steps = [pair for record in records for pair in record.durations()]
    keys = options.terms or (*STEP_TERMS, "overlap")
    form = options.form or ModelForm()
    found = fit_steps(steps, step_terms(server, keys, steps), form)
    asynchronous = {bool(record.server.get("async_scheduling")) for record in records}
    if len(asynchronous) > 1:
        raise UserError(f"{data[0]} and others: synchronous and asynchronous engines cost differently; fit them apart")
    server = replace(
        server,
        server=server.server.model_copy(
            update={"flags": server.server.flags.model_copy(update={"async_scheduling": asynchronous.pop()})}
        ),
    )
    outcome = step_outcome(found, server, options, data)
    return replace(outcome, report=[*outcome.report, *(f"note: {w}" for record in records for w in record.warnings)])


def fit_operator_tables(
    folder: Path, server: ServerChoice, options: FitOptions, collectives: tuple[Collective, ...] = ()
) -> FitOutcome:
    """Boils operator tables down to a profile; it is a prior until a run of the server was compared with.

    Args:
        folder: the tables of one GPU's share of the model.
        server: model, GPU and flags.
        options: the rest.
        collectives: messages between the server's GPUs.

    Raises:
        UserError: a table is missing or not as described.
    """
    deployment = server.plan()
    spread = server.server.data_parallel_size if server.server.flags.enable_expert_parallel else 1
    source = TableSource(
        folder,
        deployment.model,
        expert_parallel_size=spread,
        collectives=collectives,
        max_num_batched_tokens=deployment.scheduler_config.max_num_batched_tokens,
        max_num_seqs=min(256, deployment.scheduler_config.max_num_seqs),
    )
    found = fit_tables(source)
    outcome = step_outcome(found, server, options, [folder])
    profile = outcome.profile.model_copy(update={"calibrated": "prior"})
    return FitOutcome(profile, outcome.report)


def step_terms(server: ServerChoice, keys: Sequence[str], steps: Sequence[tuple[Batch, float]]) -> tuple[Term, ...]:
    """Returns the terms of a fit to steps: the roofline's where the model is known, else the data's own scale."""
    try:
        return start_terms(server.plan(), tuple(keys))
    except UserError:
        return starts_from_data(tuple(keys), steps)


def step_outcome(found: StepFit, server: ServerChoice, options: FitOptions, data: Sequence[Path]) -> FitOutcome:
    """Returns the profile and the report of a fit to steps."""
    terms = _fitted_terms(found, {})
    errors = [_step_errors(band, residuals) for band, residuals in found.held_out.items()]
    profile = _profile(
        server,
        options,
        data,
        terms=terms,
        covariance=found.covariance,
        form=found.form,
        largest=found.largest,
        errors=errors,
    )
    report = report_lines(
        f"{found.num_steps:,} steps, the sum of their durations predicted to {found.total_error_percent:+.2f} %",
        terms,
        found.covariance,
        errors=found.errors,
        held_out=found.held_out,
        valid_up_to=found.largest,
    )
    return FitOutcome(profile, report)


def _fitted_terms(found: RequestFit | StepFit, moved: Mapping[str, tuple[float, str]]) -> list[FittedTerm]:
    """Returns the lines of the report; `moved` by key, where runs were left out."""
    return [
        FittedTerm(
            term.key,
            found.values[term.key],
            float(np.sqrt(found.covariance[i, i])),
            found.informed[term.key],
            found.shares.get(term.key),
            moved.get(term.key),
        )
        for i, term in enumerate(found.terms)
    ]


def _profile(
    server: ServerChoice,
    options: FitOptions,
    data: Sequence[Path],
    *,
    terms: Sequence[FittedTerm],
    covariance: Any,
    form: ModelForm,
    largest: Mapping[str, int],
    errors: Sequence[ErrorTable],
) -> Profile:
    estimates = {
        term.key: Estimate(value=rounded(term.value), stderr=rounded(term.stderr or 0.0), remark=term.remark)
        for term in terms
    }
    step_time = form.step_time(estimates)
    places = [i for i, term in enumerate(terms) if not term.key.startswith("client.") and term.value > 0]
    names = tuple(terms[i].key for i in places)
    rows = tuple(tuple(rounded(float(covariance[i, j])) for j in places) for i in places)
    return Profile(
        format=1,
        name=options.name,
        description=options.description,
        calibrated=True,
        date=options.date or datetime.date.today(),
        source=options.source,
        data=options.data or tuple(path.name for path in data),
        server=profiled_server(server),
        step_time=step_time.model_copy(update={"covariance": Covariance(names=names, matrix=rows)}),
        valid_up_to=ValidUpTo(**{key: value for key, value in largest.items() if value}),
        client_latency=client_side(estimates),
        errors=tuple(errors),
        notes=options.notes,
    )


def profiled_server(choice: ServerChoice) -> ProfiledServer:
    """Returns the profile's section of what was measured."""
    server = choice.server
    flags = server.flags.model_dump(exclude_none=True, exclude={"async_scheduling"})
    given = server.flags.async_scheduling
    return ProfiledServer(
        model=server.model,
        gpu=server.gpu,
        vllm_version=server.version,
        tensor_parallel_size=server.tensor_parallel_size,
        pipeline_parallel_size=server.pipeline_parallel_size,
        data_parallel_size=server.data_parallel_size,
        async_scheduling=True if given is None else given,
        flags=flags,
    )


def _case_errors(found: RequestFit, spread: Mapping[Key, float]) -> list[ErrorTable]:
    """Returns each run's table: of the prediction without it where there is one, else of the fit."""
    tables = []
    for result in found.held_out or found.results:
        rows = [
            MeasuredError(
                metric=row.metric,  # type: ignore[arg-type]  # Row names them as MeasuredError does
                statistic=row.statistic,
                measured=rounded(row.measured),
                predicted=rounded(row.predicted),
                server_spread_percent=spread.get((row.metric, row.statistic)),
            )
            for row in result.comparison.rows
            if row.measured is not None
            and row.predicted is not None
            and (row.statistic in PREDICTED or row.statistic is None)
        ]
        tables.append(ErrorTable(run=result.case.name, band=result.case.band, held_out=result.held_out, rows=rows))
    return tables


def _step_errors(band: str, residuals: Sequence[float]) -> ErrorTable:
    """Returns a band's error as that of its total time, each step counting alike."""
    predicted = 100.0 + float(np.mean(residuals))
    row = MeasuredError(metric="duration_s", measured=100.0, predicted=rounded(predicted))
    return ErrorTable(run=f"steps: {band} (in per cent of the measured)", held_out=True, rows=(row,))


def _bands(results: Sequence[CaseResult]) -> dict[str, list[float]]:
    bands: dict[str, list[float]] = {}
    for result in results:
        bands.setdefault(result.case.band, []).extend(result.comparison.errors_percent())
    return {band: errors for band, errors in bands.items() if errors}


def rounded(value: float) -> float:
    """Rounds to five significant digits: the rest is noise."""
    return float(f"{value:.5g}")
