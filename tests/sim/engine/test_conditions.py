"""GPUs that are not at their best: a lower clock slows what computes, not what reads; the slowest is waited for."""

from dataclasses import replace

import pytest

from sim.engine.conditions import SlowGpu, SlowSpan, fitted_at_clock, gpu_at_clock
from sim.engine.fitted import FittedModel, StepCoefficients
from sim.engine.recorded import LinearCost
from sim.engine.roofline import Roofline
from sim.engine.step_time import Batch
from sim.errors import UserError
from sim.hardware import find_gpu
from sim.models import find_model

PROMPT = Batch.of([], [(8192, 0)])
DECODE = Batch.of([1000] * 8)
COEFFICIENTS = StepCoefficients(
    floor_ns=11e6, token_ns=41e3, attention_pair_ns=1.5, decode_ns=21e3, decode_context_ns=59
)


def roofline(clock: float, **rest: object) -> Roofline:
    gpu = gpu_at_clock(find_gpu("h100"), clock)
    return Roofline(find_model("Qwen/Qwen3-14B"), gpu, **rest)  # type: ignore[arg-type]


def test_a_lower_clock_slows_prompts_and_leaves_decodes_as_they_are() -> None:
    full, low = roofline(1.0), roofline(0.6)
    assert low.step_time(PROMPT) == pytest.approx(full.step_time(PROMPT) / 0.6, rel=0.03)
    assert low.step_time(DECODE) == full.step_time(DECODE)


def test_a_clock_low_enough_makes_large_batches_compute_bound() -> None:
    many = Batch.of([200] * 256)
    assert roofline(0.3).step_time(many) > 1.2 * roofline(1.0).step_time(many)


def test_a_fitted_model_is_scaled_term_by_term() -> None:
    full = FittedModel(COEFFICIENTS, name="mine")
    low = fitted_at_clock(full, 0.5)
    assert (low.name, low.calibrated, low.async_scheduling) == ("mine", full.calibrated, full.async_scheduling)
    assert low.coefficients == replace(COEFFICIENTS, token_ns=82e3, attention_pair_ns=3.0)
    assert low.step_time(DECODE) == full.step_time(DECODE)
    assert low.step_time(PROMPT) == pytest.approx(2 * full.step_time(PROMPT), rel=1e-6)


def test_a_cost_that_does_not_tell_computing_from_reading_cannot_be_scaled() -> None:
    with pytest.raises(UserError, match="does not tell computing from reading"):
        fitted_at_clock(LinearCost(1000), 0.5)


def slow(model: Roofline | FittedModel | LinearCost, at_ns: int, **rest: object) -> SlowGpu:
    return SlowGpu(model, [SlowSpan(1000, 2000, 1.5), SlowSpan(1500, 2000, 2.0)], lambda: at_ns, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at_ns", "factor"), [(0, 1.0), (999, 1.0), (1000, 1.5), (1500, 2.0), (1999, 2.0), (2000, 1.0)]
)
def test_the_factor_holds_for_steps_that_begin_in_its_time(at_ns: int, factor: float) -> None:
    model = FittedModel(COEFFICIENTS)
    for batch in (PROMPT, DECODE):
        assert slow(model, at_ns).step_time(batch) == pytest.approx(factor * model.step_time(batch), abs=8)


def test_the_links_are_not_slower_when_a_gpu_is() -> None:
    model = roofline(1.0, tp=4, interconnect="pcie")
    parts = model.parts(PROMPT)
    expected = 2 * (model.step_time(PROMPT) - parts["collectives"]) + parts["collectives"]
    assert slow(model, 1500).step_time(PROMPT) == pytest.approx(expected, abs=8)
    assert parts["collectives"] > 0.2 * model.step_time(PROMPT)  # else this shows nothing


def test_in_a_pipeline_one_stage_is_slower() -> None:
    model = FittedModel(COEFFICIENTS)
    assert slow(model, 1500, num_stages=4).step_time(PROMPT) == pytest.approx(1.25 * model.step_time(PROMPT), abs=8)


def test_the_host_is_not_slower_when_a_gpu_is() -> None:
    """Synchronously its work is added; asynchronously a step is as long as the longer of the two."""
    c = replace(COEFFICIENTS, host_ns=15e6)
    synchronous, asynchronous = FittedModel(c, async_scheduling=False), FittedModel(c)
    device_ns = FittedModel(COEFFICIENTS).step_time(DECODE)
    assert slow(synchronous, 1500, async_scheduling=False).step_time(DECODE) == pytest.approx(
        2 * device_ns + 15e6, abs=8
    )
    assert slow(asynchronous, 1000).step_time(DECODE) == pytest.approx(max(1.5 * device_ns, 15e6), abs=8)
    assert asynchronous.step_time(DECODE) == 15e6


def test_a_cost_without_parts_is_slower_as_a_whole() -> None:
    model = LinearCost(1000, per_token=3)
    assert slow(model, 1500).step_time(DECODE) == 2 * model.step_time(DECODE)
