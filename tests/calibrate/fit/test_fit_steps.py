"""Steps of known composition give their coefficients back, with noise, outliers and terms that nothing speaks of."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.fit_steps import fit_steps
from calibrate.fit_terms import ModelForm, Term, data_starts
from sim.engine.fitted import FittedModel, StepCoefficients
from sim.engine.step_time import Batch
from sim.errors import UserError

TRUTH = StepCoefficients(
    floor_ns=10e6, token_ns=40e3, attention_pair_ns=2.0, decode_ns=20e3, decode_context_ns=60.0, chunk_context_ns=30.0
)
KEYS = ("floor_us", "per_token_us", "per_attention_pair_ns", "per_decode_us", "per_decode_context_token_ns")


def steps(number: int, coefficients: StepCoefficients, noise: float = 0.0) -> list[tuple[Batch, float]]:
    rng = np.random.default_rng(1)
    model = FittedModel(coefficients)
    found = []
    for _ in range(number):
        decodes = [int(c) for c in rng.integers(10, 4000, rng.integers(0, 60))]
        chunks = [(int(rng.integers(2, 1500)), int(rng.integers(0, 3000)))] if rng.random() < 0.5 or not decodes else []
        batch = Batch.of(decodes, chunks)
        found.append((batch, model.step_time(batch) * float(np.exp(noise * rng.standard_normal()))))
    return found


def terms(*keys: str) -> tuple[Term, ...]:
    return data_starts((*KEYS, *keys), steps(200, TRUTH))


def test_coefficients_come_back() -> None:
    found = fit_steps(steps(600, TRUTH, 0.02), terms("per_chunk_context_token_ns"), ModelForm())
    assert found.values["floor_us"] == pytest.approx(10_000, rel=0.01)
    assert found.values["per_token_us"] == pytest.approx(40, rel=0.02)
    assert found.values["per_decode_context_token_ns"] == pytest.approx(60, rel=0.05)
    assert abs(found.total_error_percent) < 0.5
    assert np.median(np.abs(found.held_out["prompts and decodes"])) < 3


def test_a_tenth_of_wild_steps_changes_little() -> None:
    wild = [(batch, ns * (5 if i % 10 == 0 else 1)) for i, (batch, ns) in enumerate(steps(600, TRUTH, 0.02))]
    found = fit_steps(wild, terms("per_chunk_context_token_ns"), ModelForm())
    assert found.values["floor_us"] == pytest.approx(10_000, rel=0.05)
    assert found.values["per_token_us"] == pytest.approx(40, rel=0.05)


def test_adding_up_and_hiding_are_told_apart() -> None:
    adding = StepCoefficients(floor_ns=10e6, token_ns=40e3, overlap=0.0)
    found = fit_steps(steps(600, adding, 0.01), terms("overlap"), ModelForm())
    assert found.values["overlap"] < 0.1
    found = fit_steps(steps(600, TRUTH, 0.01), terms("overlap"), ModelForm())
    assert found.values["overlap"] > 0.9


def test_a_term_that_no_step_speaks_of_is_said_not_to_be_identified() -> None:
    only_decodes = [(batch, ns) for batch, ns in steps(900, TRUTH, 0.01) if not batch.chunks]
    found = fit_steps(only_decodes, terms(), ModelForm())
    assert found.informed["per_attention_pair_ns"] < 0.01
    assert found.informed["floor_us"] > 0.95


def test_graph_padding_and_jumps_of_mixed_steps_are_fitted() -> None:
    form = ModelForm(graph_sizes=(8, 16, 32, 64, 128))
    truth = StepCoefficients(
        floor_ns=1e6, token_ns=100e3, graph_sizes=form.graph_sizes, mixed_graph_ns=2e6, mixed_eager_ns=7e6
    )
    keys = ("floor_us", "per_token_us", "mixed_graph_us", "mixed_eager_us")
    made = steps(900, truth, 0.01)
    found = fit_steps(made, data_starts(keys, made), form)
    assert found.values["per_token_us"] == pytest.approx(100, rel=0.02)
    assert found.values["mixed_eager_us"] == pytest.approx(7000, rel=0.1)
    assert found.values["mixed_graph_us"] == pytest.approx(2000, rel=0.25)


def test_weights_count_steps() -> None:
    made = steps(80, TRUTH)
    found = fit_steps(made, terms("per_chunk_context_token_ns"), ModelForm(), weights=[2.0] * 80)
    assert found.values["floor_us"] == pytest.approx(10_000, rel=0.02)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UserError, match="12 steps are too few to fit 5 terms; 30 or more are needed"):
        fit_steps(steps(12, TRUTH), terms(), ModelForm())
