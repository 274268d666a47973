"""The fitted model's terms, one by one; it never falls as a step grows; it says how far it was stretched."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.fitted import FittedModel, StepCoefficients, Validity
from sim.engine.step_time import STEP_PARTS, Batch


def batch(decodes: int = 0, decode_context: int = 0, chunks: tuple[tuple[int, int], ...] = ()) -> Batch:
    contexts = [decode_context // decodes] * decodes if decodes else []
    return Batch.of(contexts, chunks)


# Qwen3-14B bf16 on one H100, about: floor 11 ms, 41 µs a token, 1.5 ns a pair, 21 µs a decode, 59 ns a cached token.
H100 = StepCoefficients(
    floor_ns=11e6, token_ns=41e3, tile=128, attention_pair_ns=1.5, decode_ns=21e3, decode_context_ns=59
)


def test_a_small_step_costs_the_floor() -> None:
    assert FittedModel(H100).step_time(batch(decodes=1, decode_context=1000)) == 11_000_000 + 21_000 + 59_000


def test_decodes_share_the_compute_term_with_the_chunks() -> None:
    """A mixed step is one fused pass: far less than its prefill and its decodes priced apart."""
    model = FittedModel(H100)
    chunk, decodes = batch(chunks=((1000, 0),)), batch(decodes=24)
    mixed = batch(decodes=24, chunks=((1000, 0),))
    assert model.step_time(mixed) == 41_000 * 1024 + round(1.5 * 500_500) + 24 * 21_000
    assert model.step_time(mixed) < 0.85 * (model.step_time(chunk) + model.step_time(decodes))


def test_tokens_are_rounded_up_to_tiles_in_the_compute_term() -> None:
    model = FittedModel(StepCoefficients(token_ns=1000, tile=128))
    times = [model.step_time(batch(chunks=((q, 0),))) for q in (128, 129, 256, 257)]
    assert times == [128_000, 256_000, 256_000, 384_000]


def test_overlap_goes_from_the_larger_to_the_sum() -> None:
    def priced(overlap: float) -> int:
        coefficients = StepCoefficients(floor_ns=10_000, token_ns=100, overlap=overlap)
        return FittedModel(coefficients).step_time(batch(chunks=((60, 0),)))

    assert [priced(1.0), priced(0.5), priced(0.0)] == [10_000, 13_000, 16_000]


def test_moe_floor_grows_with_the_experts_touched() -> None:
    """One token touches k of E experts, many touch all: growth · (1 - (1 - k/E)^tokens)."""
    model = FittedModel(StepCoefficients(floor_ns=1e6, moe_growth_ns=8e6, num_experts=128, experts_per_token=4))
    assert model.step_time(batch(decodes=1)) == 1_000_000 + 8_000_000 * 4 // 128
    assert model.step_time(batch(decodes=64)) == round(1e6 + 8e6 * (1 - (124 / 128) ** 64))
    assert model.step_time(batch(decodes=1024)) == pytest.approx(9e6, abs=1)


def test_decode_table_is_interpolated_and_extended() -> None:
    table = ((1, 5.0e6), (2, 5.2e6), (32, 8.2e6))
    model = FittedModel(StepCoefficients(decode_table=table))
    times = [model.step_time(batch(decodes=n)) for n in (1, 2, 17, 32, 42)]
    assert times == [5_000_000, 5_200_000, 6_700_000, 8_200_000, 9_200_000]
    # A chunk alone pays the table's first value as its floor.
    assert model.step_time(batch(chunks=((5, 0),))) == 5_000_000


def test_compute_table_replaces_the_cost_of_a_token() -> None:
    model = FittedModel(StepCoefficients(compute_table=((0, 0.0), (256, 2e6), (2048, 20e6))))
    assert model.step_time(batch(chunks=((128, 0),))) == 1_000_000
    assert model.step_time(batch(chunks=((1152, 0),))) == 11_000_000


def test_steps_up_to_the_largest_graph_run_at_the_next_captured_size() -> None:
    coefficients = StepCoefficients(decode_table=((1, 1e6), (8, 8e6)), graph_sizes=(1, 2, 4, 8))
    model = FittedModel(coefficients)
    times = [model.step_time(batch(decodes=n)) for n in (1, 3, 4, 5, 8, 9)]
    assert times == [1_000_000, 4_000_000, 4_000_000, 8_000_000, 8_000_000, 9_000_000]


def test_mixed_steps_pay_an_offset_that_depends_on_the_graph() -> None:
    model = FittedModel(StepCoefficients(floor_ns=100, mixed_graph_ns=10, mixed_eager_ns=1000, graph_sizes=(64, 128)))
    assert model.step_time(batch(decodes=4)) == 100
    assert model.step_time(batch(chunks=((500, 0),))) == 100
    assert model.step_time(batch(decodes=4, chunks=((100, 0),))) == 110
    assert model.step_time(batch(decodes=4, chunks=((500, 0),))) == 1100


def test_host_overhead_adds_when_synchronous_and_hides_when_asynchronous() -> None:
    coefficients = StepCoefficients(floor_ns=10_000, host_ns=3_000, host_request_ns=500)
    synchronous = FittedModel(coefficients, async_scheduling=False)
    asynchronous = FittedModel(coefficients, async_scheduling=True)
    assert synchronous.step_time(batch(decodes=2)) == 14_000
    assert asynchronous.step_time(batch(decodes=2)) == 10_000
    assert asynchronous.step_time(batch(decodes=20)) == 13_000  # the host is the slower one


def test_says_how_far_it_was_stretched() -> None:
    model = FittedModel(H100, name="qwen3-14b-h100", validity=Validity(num_requests=64, num_tokens=8192))
    model.step_time(batch(decodes=64))
    assert model.out_of_range() == []
    for decodes in (100, 250, 200):
        model.step_time(batch(decodes=decodes))
    assert model.out_of_range() == [
        "profile qwen3-14b-h100: steps of up to 250 requests were priced, but the data it was fitted to ends at 64: "
        "these step times are extrapolated"
    ]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("floor_ns", -1.0, "floor_ns must be finite and not negative; got -1.0"),
        ("token_ns", float("nan"), "token_ns must be finite"),
        ("overlap", 1.5, "overlap lies between 0 and 1"),
        ("tile", 0, "tile must be at least 1"),
        ("moe_growth_ns", 5.0, "experts_per_token"),
        ("decode_table", ((2, 1.0), (1, 2.0)), "decode_table: the counts must grow"),
        ("decode_table", ((2, 1.0),), "decode_table needs two points"),
        ("compute_table", ((1, 1.0), (2, -2.0)), "compute_table: times must be finite and not negative"),
        ("graph_sizes", (4, 2), "graph_sizes must be positive and grow"),
    ],
)
def test_impossible_coefficients_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(StepCoefficients(), **{field: value})  # type: ignore[arg-type]


ns = st.floats(0, 1e6)
coefficients = st.builds(
    StepCoefficients,
    floor_ns=ns, token_ns=ns, tile=st.sampled_from([1, 16, 128]), overlap=st.floats(0, 1), attention_pair_ns=ns,
    decode_ns=ns, decode_context_ns=ns, chunk_context_ns=ns, request_ns=ns,
    graph_sizes=st.sampled_from([(), (1, 4, 8)]),
    moe_growth_ns=ns, num_experts=st.just(64), experts_per_token=st.integers(1, 64), host_ns=ns, host_request_ns=ns,
)  # fmt: skip
batches = st.builds(
    batch,
    decodes=st.integers(0, 40),
    decode_context=st.integers(0, 10_000),
    chunks=st.lists(st.tuples(st.integers(2, 300), st.integers(0, 5000)), max_size=4).map(tuple),
).filter(lambda b: b.num_requests > 0)


FEATURES = [f.name for f in dataclasses.fields(Batch) if f.name != "chunks"]


@given(coefficients, batches, st.sampled_from(FEATURES), st.booleans())
def test_a_larger_step_never_takes_less_time(c: StepCoefficients, b: Batch, field: str, asynchronous: bool) -> None:
    model = FittedModel(c, async_scheduling=asynchronous)
    larger = dataclasses.replace(b, **{field: getattr(b, field) + 7})
    assert model.step_time(larger) >= model.step_time(b)


@given(coefficients, batches, st.booleans())
def test_parts_add_up_to_the_step(c: StepCoefficients, b: Batch, asynchronous: bool) -> None:
    model = FittedModel(c, async_scheduling=asynchronous)
    parts = model.parts(b)
    assert tuple(parts) == STEP_PARTS
    assert all(ns >= 0 for ns in parts.values())
    assert sum(parts.values()) == pytest.approx(model.step_time(b), abs=len(parts))
