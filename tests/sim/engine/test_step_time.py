"""Recorded durations come back in order; the linear cost is the one that recorded schedules state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.recorded import LinearCost, RecordedSteps
from sim.engine.step_time import Batch, StepTimeModel
from sim.errors import UserError


def test_tokens_of_a_step_are_chunks_and_decodes() -> None:
    assert Batch.of([5, 5, 9], [(100, 0), (28, 50)]).num_tokens == 131


def test_attention_pairs_are_causal() -> None:
    """Each token of a chunk attends to what was computed before the step, to the chunk before it, and to itself."""
    chunks = [(3, 10), (2, 0)]
    step = Batch.of([7, 8], chunks)
    assert step.attention_pairs == sum(ctx + i + 1 for q, ctx in chunks for i in range(q))
    assert (step.decode_context, step.chunk_context, step.num_requests) == (15, 10, 4)


def test_recorded_durations_come_back_in_order_and_no_more() -> None:
    steps = RecordedSteps([3, 1, 4], name="trace.jsonl")
    assert [steps.step_time(Batch.of([9])) for _ in range(3)] == [3, 1, 4]
    assert steps.num_left == 0
    with pytest.raises(UserError, match=r"trace.jsonl: .* more steps than the 3 recorded ones .* schedules differ"):
        steps.step_time(Batch.of([9]))


def test_a_recorded_duration_is_not_negative() -> None:
    with pytest.raises(UserError, match="step 1: a step cannot last -5 ns"):
        RecordedSteps([3, -5])


def test_linear_cost_divides_the_context_last() -> None:
    cost = LinearCost(base=100, per_token=2, per_seq=7, per_1k_context=3)
    step = Batch.of([200, 300], [(10, 333)])
    # 100 + 2·12 + 7·3 + (3·833)//1000 = 147 whole microseconds
    assert cost.step_time(step) == 147_000


@given(
    st.builds(LinearCost, st.integers(0, 10**6), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100)),
    st.lists(st.integers(0, 10**5), min_size=1, max_size=20),
)
def test_linear_cost_is_whole_microseconds(cost: LinearCost, contexts: list[int]) -> None:
    us = cost.base + (cost.per_token + cost.per_seq) * len(contexts) + cost.per_1k_context * sum(contexts) // 1000
    assert cost.step_time(Batch.of(contexts)) == 1000 * us


def test_a_step_without_tokens_takes_no_time() -> None:
    assert LinearCost(base=100).step_time(Batch.of()) == 0


@pytest.mark.parametrize("model", [RecordedSteps([]), LinearCost(1)])
def test_they_are_step_time_models_that_never_extrapolate(model: StepTimeModel) -> None:
    assert model.name
    assert model.out_of_range() == []
