"""The fit where single steps are known: composition and duration of each, no simulation needed.

Residuals are relative and robust: a step that the operating system interrupted says nothing of the model. Which part of
the error is left to chance and which to the model's form shows when blocks of steps are left out in turn: neighbours in
time are alike, so whole stretches are left out, not single steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.fit_meter import largest_of_batches
from calibrate.fit_search import Floats, Prior
from calibrate.fit_terms import MOE, ModelForm, Term
from sim.engine.step_time import Batch
from sim.errors import UserError

_FOLDS = 5
_UNIT = 0.05
"""Relative residual beyond which a step counts less and less."""

_LEAST_STEPS = 30
_PRIOR_STEPS = 0.01
"""The prior weighs as much as this many steps of residual `_UNIT`: it decides only what no step speaks of."""

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class StepData:
    """Steps as columns, one value a step.

    Attributes:
        tokens: of the step, padded to the captured graph and to the tile as the form has it, for the compute term.
        raw_tokens: of the step.
        decodes: requests with one token.
        requests: scheduled.
        pairs: query-key pairs of the chunks.
        decode_context: cached tokens that decodes read.
        chunk_context: the same of chunks.
        mixed_graph: steps of chunks and decodes within a captured graph.
        mixed_eager: those beyond.
        duration_ns: measured.
        largest: the largest of each field of a batch.
    """

    tokens: Floats
    raw_tokens: Floats
    decodes: Floats
    requests: Floats
    pairs: Floats
    decode_context: Floats
    chunk_context: Floats
    mixed_graph: Bools
    mixed_eager: Bools
    duration_ns: Floats
    largest: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.duration_ns)

    @classmethod
    def of(cls, steps: Iterable[tuple[Batch, float]], form: ModelForm) -> StepData:
        """Returns the columns of steps, (composition, nanoseconds) each."""
        pairs = [(batch, ns) for batch, ns in steps if ns > 0]
        batches = [batch for batch, _ in pairs]

        def column(values: Iterable[float]) -> Floats:
            return np.array(list(values), dtype=np.float64)

        sizes = np.array(form.graph_sizes or (0,))
        raw = column(batch.num_tokens for batch in batches)
        within = raw <= sizes[-1]
        padded = np.where(within, sizes[np.minimum(np.searchsorted(sizes, raw), len(sizes) - 1)], raw)
        decodes = column(batch.num_decodes for batch in batches)
        mixed = (decodes > 0) & (raw > decodes)
        return cls(
            tokens=np.ceil(padded / form.tile_tokens) * form.tile_tokens,
            raw_tokens=raw,
            decodes=decodes,
            requests=column(batch.num_requests for batch in batches),
            pairs=column(batch.attention_pairs for batch in batches),
            decode_context=column(batch.decode_context for batch in batches),
            chunk_context=column(batch.chunk_context for batch in batches),
            mixed_graph=mixed & within,
            mixed_eager=mixed & ~within,
            duration_ns=column(ns for _, ns in pairs),
            largest=largest_of_batches(batches),
        )

    def predicted_ns(self, values: Mapping[str, float], form: ModelForm) -> Floats:
        """Returns each step's duration by the model (see `sim.engine.fitted.StepCoefficients`)."""

        def term(key: str) -> float:
            return values.get(key, 0.0)

        floor = 1e3 * term("floor_us") * np.ones(len(self))
        if form.num_experts:
            missed = 1.0 - form.experts_per_token / form.num_experts
            floor = floor + 1e3 * term(MOE) * (1.0 - missed**self.raw_tokens) ** form.moe_exponent
        work = 1e3 * term("per_token_us") * self.tokens
        table = form.fixed.get("compute_table_us")
        if table:
            work = 1e3 * np.interp(self.tokens, [count for count, _ in table], [us for _, us in table])
        overlap = values.get("overlap", form.fixed.get("overlap", 1.0))
        low, high = np.minimum(floor, work), np.maximum(floor, work)
        bend = values.get("smoothness", 0.0)
        base = (1.0 - overlap) * low + (high * (1.0 + (low / high) ** (1.0 / bend)) ** bend if bend else high)
        device = (
            base
            + term("per_attention_pair_ns") * self.pairs
            + 1e3 * term("per_decode_us") * self.decodes
            + term("per_decode_context_token_ns") * self.decode_context
            + term("per_chunk_context_token_ns") * self.chunk_context
            + 1e3 * term("per_request_us") * self.requests
            + 1e3 * term("mixed_graph_us") * self.mixed_graph
            + 1e3 * term("mixed_eager_us") * self.mixed_eager
            + term("per_mixed_decode_context_token_ns") * self.decode_context * (self.mixed_graph | self.mixed_eager)
        )
        return np.asarray(device + 1e3 * (term("host_us") + term("host_per_request_us") * self.requests))


@dataclass(frozen=True, slots=True)
class StepFit:
    """The result of a fit to steps.

    Attributes:
        terms: what was fitted.
        form: what was set.
        values: by key, in the unit of the key.
        covariance: of the terms, in the units of their keys.
        informed: share of the prior's variance that the data took away, by key.
        shares: of all time, by key.
        errors: band -> signed relative residuals in per cent.
        held_out: the same, each step predicted by a fit without its stretch.
        total_error_percent: of the sum of all durations: a server that is slow now and then is slow in the mean.
        largest: the largest steps.
        num_steps: how many.
    """

    terms: tuple[Term, ...]
    form: ModelForm
    values: dict[str, float]
    covariance: Floats
    informed: dict[str, float]
    shares: dict[str, float]
    errors: dict[str, list[float]]
    held_out: dict[str, list[float]]
    total_error_percent: float
    largest: dict[str, int]
    num_steps: int


def fit_steps(
    steps: Iterable[tuple[Batch, float]],
    terms: tuple[Term, ...],
    form: ModelForm,
    weights: Sequence[float] | None = None,
) -> StepFit:
    """Fits the terms to steps of known composition and duration.

    Args:
        steps: (composition, nanoseconds) each, in order of time.
        terms: what is fitted, with starts and priors.
        form: what is set.
        weights: how much each step counts; None: all alike.

    Raises:
        UserError: too few steps for the terms.
    """
    data = StepData.of(steps, form)
    if len(data) < max(_LEAST_STEPS, 3 * len(terms)) and weights is None:
        raise UserError(f"{len(data)} steps are too few to fit {len(terms)} terms; {_LEAST_STEPS} or more are needed")
    weight = np.ones(len(data)) if weights is None else np.asarray(weights, dtype=np.float64)
    x, jacobian, residuals = _solve(data, terms, form, weight)
    values = _values(terms, x)
    relative = 100.0 * (data.predicted_ns(values, form) / data.duration_ns - 1.0)
    folds = np.minimum(np.arange(len(data)) * _FOLDS // len(data), _FOLDS - 1)
    held_out = np.zeros(len(data))
    points = []
    for fold in range(_FOLDS):
        left, kept = folds == fold, folds != fold
        away, _, _ = _solve(_rows(data, kept), terms, form, weight[kept])
        points.append(away)
        part = _rows(data, left)
        held_out[left] = 100.0 * (part.predicted_ns(_values(terms, away), form) / part.duration_ns - 1.0)
    shares, informed = _uncertainty(jacobian, residuals, terms, np.array(points))
    scale = np.array([term.start for term in terms])
    return StepFit(
        terms=terms,
        form=form,
        values=values,
        covariance=shares * np.outer(scale, scale),
        informed={term.key: float(max(0.0, each)) for term, each in zip(terms, informed, strict=True)},
        shares=_time_shares(data, values, form),
        errors=_by_band(data, relative),
        held_out=_by_band(data, held_out),
        total_error_percent=float(100.0 * (data.predicted_ns(values, form).sum() / data.duration_ns.sum() - 1.0)),
        largest=dict(data.largest),
        num_steps=len(data),
    )


def _values(terms: Sequence[Term], x: Floats) -> dict[str, float]:
    return {term.key: float(share * term.start) for term, share in zip(terms, x, strict=True)}


def _solve(data: StepData, terms: Sequence[Term], form: ModelForm, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns the shares of the starts, and Jacobian and residuals there, without the prior's rows."""
    from scipy.optimize import least_squares

    prior = _prior(terms)
    root = np.sqrt(weight / weight.mean())

    def residuals(x: Floats) -> Floats:
        relative = np.log(np.maximum(data.predicted_ns(_values(terms, x), form), 1.0) / data.duration_ns) / _UNIT
        return np.concatenate([root * relative, np.sqrt(_PRIOR_STEPS) * (x - prior.mean) / prior.sigma])

    found = min(
        (
            least_squares(residuals, start, bounds=(0.0, prior.upper), loss="soft_l1", x_scale=prior.sigma)
            for start in _starts(data, terms, prior)
        ),
        key=lambda each: float(each.cost),
    )
    x = np.where(found.x < 1e-6, 0.0, found.x)
    rows = len(data)
    return x, _jacobian(residuals, x, prior.upper)[:rows], residuals(x)[:rows]


def _starts(data: StepData, terms: Sequence[Term], prior: Prior) -> list[Floats]:
    """Returns where to begin: as the terms say, and where computing fills the steps with the most tokens.

    Of two terms of which only the larger counts, the smaller one has no slope: from one side alone the search may never
    see the other.
    """
    start = np.minimum(np.ones(len(terms)), 0.999 * prior.upper)
    starts = [start]
    keys = [term.key for term in terms]
    if "per_token_us" in keys:
        most = np.argsort(data.tokens)[-max(1, len(data) // 20) :]
        full = float(np.median(data.duration_ns[most] / data.tokens[most])) / 1e3
        place = keys.index("per_token_us")
        busy = start.copy()
        busy[place] = 0.8 * full / terms[place].start
        starts.append(busy)
    return starts


def _jacobian(residuals: object, x: Floats, upper: Floats) -> Floats:
    """Returns the plain Jacobian: the solver's own is already weighted by the loss."""
    assert callable(residuals)
    base, columns = residuals(x), []
    for k, unit in enumerate(np.eye(len(x))):
        step = 1e-4 if x[k] + 1e-4 <= upper[k] else -1e-4
        columns.append((residuals(x + step * unit) - base) / step)
    return np.array(columns).T


def _uncertainty(jacobian: Floats, residuals: Floats, terms: Sequence[Term], points: Floats) -> tuple[Floats, Floats]:
    """Returns the covariance in units of the starts, the jackknife over stretches included, and what the data told."""
    prior = _prior(terms)
    weights = (1.0 + residuals**2) ** -0.25
    weighted = jacobian * weights[:, None]
    freedom = max(1, len(residuals) - len(terms))
    scale = float(np.sum((residuals * weights) ** 2)) / freedom
    curvature = weighted.T @ weighted / max(scale, 1e-12)
    inverse = np.linalg.inv(curvature + np.diag(prior.sigma**-2.0))
    informed = 1.0 - np.diag(inverse) / prior.sigma**2
    away = points - points.mean(axis=0)
    jackknife = (len(points) - 1) / len(points) * away.T @ away
    return np.asarray((inverse + inverse.T) / 2 + jackknife), informed


def _prior(terms: Sequence[Term]) -> Prior:
    return Prior(
        np.ones(len(terms)), np.array([term.spread for term in terms]), np.array([term.most for term in terms])
    )


def _rows(data: StepData, chosen: Bools) -> StepData:
    from dataclasses import fields, replace

    columns = {f.name: getattr(data, f.name)[chosen] for f in fields(data) if f.name != "largest"}
    return replace(data, **columns)


def _time_shares(data: StepData, values: Mapping[str, float], form: ModelForm) -> dict[str, float]:
    """Returns what of all time goes when a term is set to 0, the rest to the floor or the tokens that hide in it."""
    total = data.predicted_ns(values, form).sum()
    return {key: float(1.0 - data.predicted_ns({**values, key: 0.0}, form).sum() / total) for key in values}


def _by_band(data: StepData, relative: Floats) -> dict[str, list[float]]:
    """Groups residuals by what the step is and how many requests it holds."""
    prefill = data.raw_tokens > data.decodes
    kinds = {
        "decodes only, 1": ~prefill & (data.requests <= 1),
        "decodes only, 2-7": ~prefill & (data.requests > 1) & (data.requests < 8),
        "decodes only, 8-31": ~prefill & (data.requests >= 8) & (data.requests < 32),
        "decodes only, 32 or more": ~prefill & (data.requests >= 32),
        "prompts only": prefill & (data.decodes == 0),
        "prompts and decodes": prefill & (data.decodes > 0),
    }
    return {name: relative[rows].tolist() for name, rows in kinds.items() if rows.any()}
