"""The fit where only requests are known: simulate the measured runs, compare, and correct the model's terms.

Every run is simulated with its own arrivals and client, so queueing, batching and preemption are the scheduler's, and
only what a step costs is fitted. Leaving each run out in turn gives the error of prediction; how far the terms move
when a run is left out is part of their uncertainty (the jackknife), for it shows what the residuals of the runs that
stayed in cannot: that the model's form is not the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.comparison import Comparison
from calibrate.fit_cases import Case, evaluate, model_of
from calibrate.fit_meter import Meter, largest_of, shares_of
from calibrate.fit_search import Cloud, Floats, Prior, Solution, covariance, descend, refine, start_cloud
from calibrate.fit_terms import ModelForm, Term

Progress = Callable[[str], None]

_SHARE = 0.25
"""How much of a long run the first search looks at."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One run, predicted.

    Attributes:
        case: the run.
        comparison: measured beside predicted.
        held_out: whether the run was left out of the fit that predicted it.
    """

    case: Case
    comparison: Comparison
    held_out: bool


@dataclass(frozen=True, slots=True)
class RequestFit:
    """The result of a fit.

    Attributes:
        terms: what was fitted.
        form: what was set.
        values: by key, in the unit of the key.
        covariance: of the terms in their order, in the units of their keys.
        informed: how much of the prior's variance the data took away, by key: 1 all of it, 0 nothing.
        shares: of the simulated time, by key.
        valid_up_to: the largest steps of the simulated runs.
        results: every run, predicted with all of them in the fit.
        held_out: every run, predicted without it; empty when that was not asked for.
        moved: by key, the largest change of the value when a run is left out, and which.
        num_simulations: what it cost.
    """

    terms: tuple[Term, ...]
    form: ModelForm
    values: dict[str, float]
    covariance: Floats
    informed: dict[str, float]
    shares: dict[str, float]
    valid_up_to: dict[str, int]
    results: tuple[CaseResult, ...]
    held_out: tuple[CaseResult, ...]
    moved: dict[str, tuple[float, str]]
    num_simulations: int


class _Simulations:
    """Residuals of cases at points, computed side by side and never twice."""

    def __init__(self, cases: Sequence[Case], terms: Sequence[Term], form: ModelForm, jobs: int) -> None:
        self.cases = cases
        self.terms = terms
        self.form = form
        self.jobs = jobs
        self.known: dict[tuple[int, bytes], Floats] = {}

    def values(self, x: Floats) -> dict[str, float]:
        return {term.key: float(share * term.start) for term, share in zip(self.terms, x, strict=True)}

    def residuals(self, points: Sequence[Floats], chosen: Sequence[int]) -> list[dict[int, Floats]]:
        wanted = {(i, x.tobytes()): (i, x) for x in points for i in chosen if (i, x.tobytes()) not in self.known}
        self.known |= dict(zip(wanted, self._run(list(wanted.values())), strict=True))
        return [{i: self.known[i, x.tobytes()] for i in chosen} for x in points]

    def _run(self, jobs: list[tuple[int, Floats]]) -> list[Floats]:
        if self.jobs == 1 or len(jobs) == 1:
            return [evaluate(self.cases[i], self.form, self.values(x)) for i, x in jobs]
        from joblib import Parallel, delayed

        found = Parallel(n_jobs=self.jobs)(delayed(evaluate)(self.cases[i], self.form, self.values(x)) for i, x in jobs)
        return list(found)


def fit_requests(
    cases: Sequence[Case],
    terms: tuple[Term, ...],
    form: ModelForm,
    *,
    leave_one_out: bool = True,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> RequestFit:
    """Fits the terms to measured runs.

    Args:
        cases: the runs.
        terms: what is fitted, with starts and priors.
        form: what is set.
        leave_one_out: fit once more without each run, to predict it.
        jobs: processes.
        progress: told what goes on, a line at a time.
    """
    full = _Simulations(cases, terms, form, jobs)
    short = _Simulations([case.shortened(_SHARE) for case in cases], terms, form, jobs)
    everything = list(range(len(cases)))
    near = _descend(short, everything, progress)
    cloud = start_cloud(near)
    solution = _refine(full, everything, cloud, near.x, _told(progress, "all runs"))
    left_out: dict[int, Solution] = {}
    if leave_one_out and len(cases) > 1:
        for i in everything:
            others = [j for j in everything if j != i]
            away = Cloud(cloud.scale, list(cloud.points), list(cloud.found))
            left_out[i] = _refine(full, others, away, solution.x, _told(progress, f"without {cases[i].name}"))
    return _result(full, solution, left_out, len(full.known) + len(short.known))


def _descend(short: _Simulations, chosen: Sequence[int], progress: Progress) -> Solution:
    """Comes near the minimum with the beginnings of the runs, from the start of the terms."""
    return descend(
        lambda points: [np.concatenate(list(each.values())) for each in short.residuals(points, chosen)],
        np.ones(len(short.terms)),
        _prior(short.terms),
        report=_told(progress, "first search"),
    )


def _refine(
    full: _Simulations, chosen: Sequence[int], cloud: Cloud, center: Floats, report: Callable[[int, float], None]
) -> Solution:
    return refine(full.residuals, chosen, cloud, _prior(full.terms), center=center, report=report)


def _told(progress: Progress, title: str) -> Callable[[int, float], None]:
    return lambda points, cost: progress(f"{title}: {points} points, cost {cost:.4g}")


def _prior(terms: Sequence[Term]) -> Prior:
    return Prior(
        np.ones(len(terms)), np.array([term.spread for term in terms]), np.array([term.most for term in terms])
    )


def _result(
    simulations: _Simulations, solution: Solution, left_out: Mapping[int, Solution], num_simulations: int
) -> RequestFit:
    terms, cases = simulations.terms, simulations.cases
    scale = np.array([term.start for term in terms])
    prior = _prior(terms)
    shares = covariance(solution, prior)
    informed = 1.0 - np.diag(shares) / prior.sigma**2
    if left_out:
        shares = shares + _jackknife(np.array([each.x for each in left_out.values()]))
    matrix = shares * np.outer(scale, scale)
    values = simulations.values(solution.x)
    meters, results = [], []
    for case in cases:
        comparison, meter = _predict(case, simulations.form, values)
        meters.append(meter)
        results.append(CaseResult(case, comparison, held_out=False))
    held_out = tuple(
        CaseResult(cases[i], _predict(cases[i], simulations.form, simulations.values(each.x))[0], held_out=True)
        for i, each in left_out.items()
    )
    return RequestFit(
        terms=tuple(terms),
        form=simulations.form,
        values=values,
        covariance=matrix,
        informed={term.key: float(max(0.0, informed[i])) for i, term in enumerate(terms)},
        shares=shares_of(meters),
        valid_up_to=largest_of(meters),
        results=tuple(results),
        held_out=held_out,
        moved=_moved(simulations, solution, left_out),
        num_simulations=num_simulations,
    )


def _predict(case: Case, form: ModelForm, values: Mapping[str, float]) -> tuple[Comparison, Meter]:
    meter = Meter(model_of(case, form, values))
    return case.comparison(case.simulate(meter, values)), meter


def _jackknife(points: Floats) -> Floats:
    """Returns the covariance of an estimate from its values without each of n parts of the data (Tukey 1958)."""
    number = len(points)
    away = points - points.mean(axis=0)
    return np.asarray((number - 1) / number * away.T @ away)


def _moved(
    simulations: _Simulations, solution: Solution, left_out: Mapping[int, Solution]
) -> dict[str, tuple[float, str]]:
    moved = {}
    for k, term in enumerate(simulations.terms):
        changes = [(float(each.x[k] - solution.x[k]) * term.start, i) for i, each in left_out.items()]
        if changes:
            change, run = max(changes, key=lambda pair: abs(pair[0]))
            moved[term.key] = (change, simulations.cases[run].name)
    return moved
