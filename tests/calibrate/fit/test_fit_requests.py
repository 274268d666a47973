"""Known coefficients come back from what a client saw of the server that has them.

Queues are chaotic: with all terms right to a tenth of a per cent, single percentiles of these runs still differ by
one or two. So terms are recovered to a few per cent, no better.
"""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.fit_cases import RequestCase, evaluate
from calibrate.fit_requests import RequestFit, fit_requests
from calibrate.fit_terms import ModelForm, start_terms
from tests.calibrate.fit.made import TRUTH, deployment, made_run

FORM = ModelForm(fixed={"per_attention_pair_ns": 2.0, "per_decode_context_token_ns": 60.0})
CASES = [
    RequestCase(made_run("low", 2.0), deployment()),
    RequestCase(made_run("saturated", 40.0, cap=32), deployment(), 32),
]


@pytest.fixture(scope="module")
def found() -> RequestFit:
    return fit_requests(CASES, start_terms(deployment(), tuple(TRUTH)), FORM)


def test_the_coefficients_come_back(found: RequestFit) -> None:
    assert found.values["floor_us"] == pytest.approx(TRUTH["floor_us"], rel=0.03)
    assert found.values["per_token_us"] == pytest.approx(TRUTH["per_token_us"], rel=0.05)
    assert found.values["client.request_ms"] == pytest.approx(TRUTH["client.request_ms"], rel=0.2)


def test_the_runs_are_predicted_better_than_they_can_be_measured(found: RequestFit) -> None:
    assert [result.case.name for result in found.results] == ["low", "saturated"]
    for result in found.results:
        assert np.median(np.abs(result.comparison.errors_percent())) < 1.0, result.case.name


def test_each_run_is_predicted_from_the_others(found: RequestFit) -> None:
    assert [result.case.name for result in found.held_out] == ["low", "saturated"]
    assert all(result.held_out for result in found.held_out)
    for result in found.held_out:
        assert np.median(np.abs(result.comparison.errors_percent())) < 10.0, result.case.name


def test_uncertainty_covers_the_truth_and_knows_what_the_data_told(found: RequestFit) -> None:
    stderr = dict(zip((term.key for term in found.terms), np.sqrt(np.diag(found.covariance)), strict=True))
    for key in ("floor_us", "per_token_us"):
        assert abs(found.values[key] - TRUTH[key]) < 4 * stderr[key] + 0.01 * TRUTH[key]
        assert found.informed[key] > 0.95
    assert (np.linalg.eigvalsh(found.covariance) > -1e-9).all()


def test_the_range_and_the_shares_are_those_of_the_simulated_steps(found: RequestFit) -> None:
    assert found.valid_up_to["num_requests"] == 32
    assert 1000 < found.valid_up_to["num_tokens"] <= 2048
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.moved["floor_us"][1] in {"low", "saturated"}


def test_the_truth_has_no_residual() -> None:
    for case in CASES:
        assert np.abs(evaluate(case, FORM, TRUTH)).max() < 1e-9, case.name


def test_bands_follow_the_load() -> None:
    assert [case.band for case in CASES] == ["low", "saturated"]


def test_the_beginning_of_a_run_is_compared_without_its_end() -> None:
    run = made_run("long", 8.0, number=1000)
    short = RequestCase(run, deployment()).shortened(0.5)
    assert len(short.run) == 500
    assert short.num_compared is not None
    assert 400 < short.num_compared < 500
    assert RequestCase(made_run("low", 2.0), deployment()).shortened(0.5).run.name == "low"
