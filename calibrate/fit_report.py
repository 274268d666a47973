"""The report of a fit, in the manner of lmfit: value ± error, correlations, and what to distrust."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.fit_search import Floats

Errors = Mapping[str, Sequence[float]]
"""Load band or run -> signed relative errors in per cent."""

NOT_IDENTIFIED = "not identified by this data"
AT_BOUNDARY = "at boundary"

_INFORMED = 0.5
"""A term counts as identified when the data took away this share of its prior's variance."""

_NEGLIGIBLE = 1e-3
_CORRELATED = 0.7
_UNITS = {
    "num_tokens": "tokens",
    "num_requests": "sequences",
    "attention_pairs": "query-key pairs",
    "decode_context": "cached tokens read by decodes",
    "chunk_context": "cached tokens read by chunks",
}


@dataclass(frozen=True, slots=True)
class FittedTerm:
    """One line of the report.

    Attributes:
        key: as the profile has it; the unit is in the name.
        value: fitted.
        stderr: standard error, same unit; None: unknown.
        informed: share of the prior's variance that the data took away; None: there was no prior.
        share: of all time, 0 … 1; None: no time of the engine.
        moved: the largest change when a run is left out, and which run; None: not tried.
    """

    key: str
    value: float
    stderr: float | None
    informed: float | None = None
    share: float | None = None
    moved: tuple[float, str] | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """What to distrust."""
        found = []
        if self.value == 0:
            found.append(AT_BOUNDARY)
        unknown = self.stderr is not None and self.value > 0 and self.stderr > 0.5 * self.value
        if (self.informed is not None and self.informed < _INFORMED) or unknown:
            found.append(NOT_IDENTIFIED)
        return tuple(found)

    @property
    def remark(self) -> str | None:
        """The flags as the profile holds them."""
        return "; ".join(self.flags) or None


def report_lines(
    title: str,
    terms: Sequence[FittedTerm],
    covariance: Floats,
    *,
    errors: Errors,
    held_out: Errors,
    valid_up_to: Mapping[str, int],
    notes: Iterable[str] = (),
) -> list[str]:
    """Returns the report.

    Args:
        title: what was fitted to what.
        terms: in the order of the covariance.
        covariance: of the terms.
        errors: of the fit, by load band.
        held_out: of predictions, by what was left out.
        valid_up_to: the largest steps of the data.
        notes: further sentences.
    """
    lines = [f"[[Fit]] {title}", "[[Terms]]"]
    width = max(len(term.key) for term in terms)
    lines += [_term_line(term, width) for term in terms]
    lines += _correlations(terms, covariance)
    lines += ["[[Errors of the fit, by load band]]", *_error_lines(errors)]
    if held_out:
        lines += ["[[Errors of prediction: left out of the fit]]", *_error_lines(held_out)]
    bounds = ", ".join(f"{value:,} {_UNITS[name]}" for name, value in valid_up_to.items() if value)
    lines += ["[[Range]]", f"    extrapolates beyond {bounds}, in one step"]
    lines += [f"note: {note}" for note in notes]
    return lines


def _term_line(term: FittedTerm, width: int) -> str:
    error = ""
    if term.stderr is not None:
        percent = f" ({100 * term.stderr / term.value:.2g} %)" if term.value else ""
        error = f" ± {term.stderr:.3g}{percent}"
    share = (
        "" if term.share is None else f"{100 * term.share:5.1f} % of time" if term.share > _NEGLIGIBLE else "    0 %"
    )
    moved = ""
    if term.moved is not None and term.value:
        change, run = term.moved
        moved = f"{100 * change / term.value:+.1f} % without {run}"
    flags = "".join(f"  [{flag}]" for flag in term.flags)
    return f"    {term.key:<{width}} {term.value:>10.5g}{error:<22}{share:<18}{moved}{flags}".rstrip()


def _correlations(terms: Sequence[FittedTerm], covariance: Floats) -> list[str]:
    deviations = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance / np.outer(deviations, deviations)
    pairs = [
        (abs(correlation[i, j]), f"    C({terms[i].key}, {terms[j].key}) = {correlation[i, j]:+.2f}")
        for i in range(len(terms))
        for j in range(i)
        if abs(correlation[i, j]) > _CORRELATED
    ]
    return (
        [f"[[Correlations]] above {_CORRELATED}", *(line for _, line in sorted(pairs, reverse=True))] if pairs else []
    )


def _error_lines(errors: Errors) -> list[str]:
    width = max((len(name) for name in errors), default=0)
    return [
        f"    {name:<{width}}  median {np.median(np.abs(values)):5.2f} %  worst {np.max(np.abs(values)):5.2f} %"
        f"  mean {np.mean(values):+5.2f} %"
        for name, values in errors.items()
        if len(values)
    ]
