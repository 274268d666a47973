"""What a step is made of: parts that add up to it, named for what the model can tell; keeping them changes nothing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.conditions import SlowGpu, SlowSpan
from sim.engine.fitted import FittedModel, StepCoefficients
from sim.engine.recorded import LinearCost
from sim.engine.roofline import Roofline
from sim.engine.step_split import KERNELS, split_step
from sim.engine.step_time import Batch
from sim.hardware import find_gpu
from sim.models import find_model
from sim.records import RunRecord
from sim.results.step_split import StepTimes, step_times
from sim.simulate import simulate
from tests.sim.fleet.build import users

DENSE = Roofline(find_model("Qwen/Qwen3-14B"), find_gpu("h100"), tp=2)
EXPERTS = Roofline(find_model("openai/gpt-oss-120b"), find_gpu("h200"))
EAGER = Roofline(find_model("Qwen/Qwen2.5-0.5B"), find_gpu("h100"), enforce_eager=True)
FITTED = FittedModel(StepCoefficients(floor_ns=11e6, token_ns=41e3, decode_ns=21e3, decode_context_ns=59, host_ns=2e6))
MODELS = {"dense": DENSE, "experts": EXPERTS, "eager": EAGER, "fitted": FITTED}

batches = st.builds(
    Batch.of,
    st.lists(st.integers(0, 20_000), max_size=60),
    st.lists(st.tuples(st.integers(2, 4000), st.integers(0, 20_000)), min_size=1, max_size=3),
)


@given(st.sampled_from(sorted(MODELS)), batches)
def test_the_parts_add_up_to_the_step(name: str, batch: Batch) -> None:
    model = MODELS[name]
    found = split_step(model, batch)
    assert found is not None
    assert found.keys() <= KERNELS.keys()
    assert all(ns >= 0 for ns in found.values())
    assert sum(found.values()) == pytest.approx(model.step_time(batch), abs=10)


def parts(model: Roofline | FittedModel | SlowGpu, batch: Batch) -> dict[str, int]:
    found = split_step(model, batch)
    assert found is not None
    return found


def test_a_roofline_tells_experts_from_other_products() -> None:
    batch = Batch.of([1000] * 32)
    assert parts(EXPERTS, batch)["experts"] > 2 * parts(EXPERTS, batch)["gemm"]
    assert parts(DENSE, batch)["experts"] == 0
    assert parts(DENSE, batch)["collectives"] > 0


def test_a_fitted_profile_names_no_kernels_it_cannot_know() -> None:
    assert set(parts(FITTED, Batch.of([10]))) == {"base", "attention", "kv_reads", "sequences", "host"}


def test_launching_kernels_is_the_hosts_time() -> None:
    """Without graphs a small model on a fast GPU waits for Python."""
    found = parts(EAGER, Batch.of([10]))
    assert found["host"] > 0.5 * sum(found.values())


def test_waiting_for_a_slow_gpu_shows_as_exchange() -> None:
    batch = Batch.of([1000] * 32)
    slow = SlowGpu(DENSE, [SlowSpan(0, 10, 1.5)], lambda: 5)
    well, held_up = parts(DENSE, batch), parts(slow, batch)
    assert held_up["collectives"] > 3 * well["collectives"]
    assert {**held_up, "collectives": 0} == {**well, "collectives": 0}
    assert sum(held_up.values()) == pytest.approx(slow.step_time(batch), abs=10)


def test_a_cost_that_knows_no_parts_says_none() -> None:
    assert split_step(LinearCost(100), Batch.of([10])) is None


@pytest.mark.parametrize("replicas", [1, 2])
def test_keeping_the_parts_changes_nothing_and_misses_no_step(tmp_path: Path, replicas: int) -> None:
    case = users(tmp_path, 20, server={"replicas": replicas})
    plain, kept = simulate(case, seed=0), simulate(case, seed=0, step_split=True)
    assert list(kept.requests) == list(plain.requests)
    assert kept.steps == plain.steps
    assert plain.step_split is None
    times = means(kept)
    assert times.all.count == len(kept.steps.start_ns)
    busy_ms = sum(end - start for start, end in zip(kept.steps.start_ns, kept.steps.end_ns, strict=True)) / 1e6
    assert times.all.mean_ms * times.all.count == pytest.approx(busy_ms, rel=1e-6)


def means(run: RunRecord) -> StepTimes:
    times = step_times(run.step_split)
    assert times is not None
    return times


def test_steps_with_prompts_are_told_from_those_that_decode(tmp_path: Path) -> None:
    run = simulate(users(tmp_path, 20), seed=0, step_split=True)
    times = means(run)
    assert times.decode_only is not None
    assert times.with_prompts is not None
    assert times.decode_only.count + times.with_prompts.count == times.all.count
    assert times.with_prompts.count == sum(prefill > 0 for prefill in run.steps.num_prefill_tokens)
    assert "attention" not in times.decode_only.parts
    assert times.with_prompts.parts["attention"] > 0
