"""The roofline beside measured servers, and the laws it keeps: it is monotone, and each part has its cause."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.fitted import FittedModel, StepCoefficients
from sim.engine.roofline import Interconnect, Roofline
from sim.engine.step_time import STEP_PARTS, Batch
from sim.errors import UserError
from sim.hardware import find_gpu
from sim.models import find_model


def roofline(
    model: str,
    gpu: str,
    *,
    tp: int = 1,
    interconnect: Interconnect | None = None,
    kv_cache_dtype: str = "auto",
    enforce_eager: bool = False,
    async_scheduling: bool = True,
) -> Roofline:
    return Roofline(
        find_model(model),
        find_gpu(gpu),
        tp=tp,
        interconnect=interconnect,
        kv_cache_dtype=kv_cache_dtype,
        enforce_eager=enforce_eager,
        async_scheduling=async_scheduling,
    )


def ms(model: Roofline, *decodes: int, chunks: tuple[tuple[int, int], ...] = ()) -> float:
    return model.step_time(Batch.of(decodes, chunks)) / 1e6


# --- beside measured servers ----------------------------------------------------------------------------------------

# A fit to a public run of Qwen3-14B bf16 on one H100 (vLLM 0.23), which predicted unseen loads within 1-2 %.
H100_FIT = StepCoefficients(
    floor_ns=11e6, token_ns=41e3, tile=128, attention_pair_ns=1.5, decode_ns=21e3, decode_context_ns=59
)
H100_STEPS = {
    "one decode": Batch.of([1000]),
    "16 decodes": Batch.of([1000] * 16),
    "256 decodes": Batch.of([1000] * 256),
    "64 decodes, long contexts": Batch.of([8000] * 64),
    "a prompt": Batch.of([], [(1024, 0)]),
    "a prompt and decodes": Batch.of([1000] * 20, [(1024, 0)]),
    "a full budget": Batch.of([1000] * 200, [(7992, 0)]),
    "a chunk late in a long prompt": Batch.of([], [(4096, 16384)]),
    "the end of a prompt and decodes": Batch.of([1000] * 250, [(400, 600)]),
}


@pytest.mark.parametrize("step", H100_STEPS)
def test_agrees_with_a_fitted_h100(step: str) -> None:
    fitted = FittedModel(H100_FIT).step_time(H100_STEPS[step])
    assert roofline("Qwen/Qwen3-14B", "h100").step_time(H100_STEPS[step]) == pytest.approx(fitted, rel=0.10)


@pytest.mark.parametrize(
    ("model", "gpu", "contexts", "measured_ms", "tolerance"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "rtx-4090", [600] * 4, 18.1, 0.10),
        ("Qwen/Qwen2.5-7B-Instruct", "a6000", [300], 21.9, 0.10),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "rtx-4080", [3200], 9.40, 0.15),
        ("Qwen/Qwen2.5-0.5B-Instruct", "l4", [320], 5.1, 0.10),
        ("Qwen/Qwen2.5-0.5B-Instruct", "l4", [320] * 32, 7.1, 0.25),
        ("openai/gpt-oss-120b", "h200", [7650], 4.32, 0.10),
        ("openai/gpt-oss-120b", "h200", [7650] * 4, 6.27, 0.20),
        ("openai/gpt-oss-120b", "h200", [7650] * 16, 11.6, 0.20),
        ("openai/gpt-oss-120b", "h200", [7650] * 64, 23.1, 0.20),
    ],
)
def test_agrees_with_measured_decode_steps(
    model: str, gpu: str, contexts: list[int], measured_ms: float, tolerance: float
) -> None:
    assert ms(roofline(model, gpu), *contexts) == pytest.approx(measured_ms, rel=tolerance)


@pytest.mark.parametrize(
    ("num_decodes", "context", "measured_ms"),
    [(1, 256, 14.7), (1, 8192, 15.5), (4, 8192, 18.2), (16, 256, 16.4), (16, 8192, 25.5), (64, 287, 24.4)],
)
def test_agrees_with_a_synchronous_a10g(num_decodes: int, context: int, measured_ms: float) -> None:
    model = roofline("Qwen/Qwen2.5-3B-Instruct", "a10g", async_scheduling=False)
    assert ms(model, *[context] * num_decodes) == pytest.approx(measured_ms, rel=0.15 if num_decodes < 64 else 0.35)


@pytest.mark.parametrize(
    ("model", "gpu", "chunks", "measured_ms"),
    [
        # TTFT with the cache cold, less TTFT with it warm.
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "rtx-4080", [(2048, 0), (882, 2048)], 541.6 - 26.3),
        ("openai/gpt-oss-120b", "h200", [(7200, 0)], 329.0),
        ("Qwen/Qwen2.5-3B-Instruct", "a10g", [(512, 0)], 60.8),
        ("Qwen/Qwen2.5-3B-Instruct", "a10g", [(2048, 0)], 220.6),
    ],
)
def test_agrees_with_measured_prefills(model: str, gpu: str, chunks: list[tuple[int, int]], measured_ms: float) -> None:
    price = roofline(model, gpu)
    assert sum(ms(price, chunks=(chunk,)) for chunk in chunks) == pytest.approx(measured_ms, rel=0.15)


def test_16000_token_prompts_overload_an_a100_at_one_a_second() -> None:
    """Measured: 3.3 s each, so 0.3 requests/s at most, however many would fit in the KV cache."""
    model = roofline("Qwen/Qwen3-14B-AWQ", "a100")
    seconds = sum(ms(model, chunks=((2000, done),)) for done in range(0, 16000, 2000)) / 1e3
    assert seconds == pytest.approx(3.345, rel=0.35)


# --- laws -----------------------------------------------------------------------------------------------------------

MODELS = {
    "dense": roofline("Qwen/Qwen3-14B", "h100"),
    "dense, sync, eager": roofline("Qwen/Qwen3-14B", "h100", async_scheduling=False, enforce_eager=True),
    "experts, sliding window": roofline("openai/gpt-oss-120b", "h200"),
    "4 bits, PCIe": roofline("Qwen/Qwen3-30B-A3B-GPTQ-Int4", "rtx-3060", tp=2, kv_cache_dtype="fp8"),
    "latent attention": roofline("deepseek-ai/DeepSeek-V3", "h200", tp=8),
    "state layers": roofline("Qwen/Qwen3-Next-80B-A3B-Instruct", "l40s", tp=4),
    "processor": roofline("Qwen/Qwen2.5-0.5B-Instruct", "cpu", async_scheduling=False),
}
FEATURES = [f.name for f in dataclasses.fields(Batch) if f.name != "chunks"]
batches = st.builds(
    Batch.of,
    st.lists(st.integers(0, 20_000), max_size=300),
    st.lists(st.tuples(st.integers(2, 3000), st.integers(0, 20_000)), max_size=4),
).filter(lambda b: b.num_requests > 0)


@given(st.sampled_from(sorted(MODELS)), batches, st.sampled_from(FEATURES), st.integers(1, 1000))
def test_a_larger_step_never_takes_less_time(name: str, b: Batch, feature: str, more: int) -> None:
    larger = dataclasses.replace(b, **{feature: getattr(b, feature) + more})
    assert MODELS[name].step_time(larger) >= MODELS[name].step_time(b)


@given(st.sampled_from(sorted(MODELS)), batches, st.tuples(st.integers(2, 3000), st.integers(0, 20_000)))
def test_one_more_chunk_never_takes_less_time(name: str, b: Batch, chunk: tuple[int, int]) -> None:
    more = Batch.of([b.decode_context] + [0] * (b.num_decodes - 1) if b.num_decodes else [], [*b.chunks, chunk])
    assert MODELS[name].step_time(more) >= MODELS[name].step_time(b)


@given(st.sampled_from(sorted(MODELS)), batches)
def test_parts_add_up_to_the_step(name: str, b: Batch) -> None:
    parts = MODELS[name].parts(b)
    assert tuple(parts) == STEP_PARTS
    assert all(ns >= 0 for ns in parts.values())
    assert sum(parts.values()) == pytest.approx(MODELS[name].step_time(b), abs=len(parts))


def test_says_that_it_is_uncalibrated() -> None:
    model = MODELS["dense"]
    assert (model.name, model.calibrated, model.out_of_range()) == ("analytical", False, [])


def test_a_mixed_step_is_one_fused_pass() -> None:
    """Its decodes ride along: the weights are read once, so it saves the floor of a step of decodes."""
    model = MODELS["dense"]
    apart = ms(model, *[1000] * 64) + ms(model, chunks=((960, 0),))
    mixed = ms(model, *[1000] * 64, chunks=((960, 0),))
    assert mixed == pytest.approx(apart - ms(model, 0), abs=0.1)


def test_four_bit_weights_are_read_in_four_bits_and_computed_in_sixteen() -> None:
    plain, packed = roofline("Qwen/Qwen2.5-7B", "rtx-4090"), roofline("Qwen/Qwen2.5-7B-AWQ", "rtx-4090")
    assert ms(packed, 100) < 0.5 * ms(plain, 100)
    assert ms(packed, chunks=((2048, 0),)) == ms(plain, chunks=((2048, 0),))


def test_fp8_weights_compute_faster_only_where_the_gpu_has_fp8() -> None:
    chunk = ((2048, 0),)
    plain, packed = roofline("Qwen/Qwen3-14B", "h100"), roofline("Qwen/Qwen3-14B-FP8", "h100")
    assert ms(packed, chunks=chunk) < 0.6 * ms(plain, chunks=chunk)
    plain, packed = roofline("Qwen/Qwen3-14B", "a100"), roofline("Qwen/Qwen3-14B-FP8", "a100")
    assert ms(packed, chunks=chunk) == ms(plain, chunks=chunk)
    assert ms(packed, 100) < 0.7 * ms(plain, 100)


def test_the_quantization_flag_overrides_the_checkpoint() -> None:
    flagged = Roofline(find_model("Qwen/Qwen3-14B"), find_gpu("h100"), quantization="fp8")
    assert ms(flagged, 100) == ms(roofline("Qwen/Qwen3-14B-FP8", "h100"), 100)


def test_an_fp8_cache_halves_the_reads_and_nothing_else() -> None:
    step = Batch.of([4000] * 16)
    plain = MODELS["dense"].parts(step)
    small = roofline("Qwen/Qwen3-14B", "h100", kv_cache_dtype="fp8").parts(step)
    assert small["kv_reads"] == pytest.approx(plain["kv_reads"] / 2, abs=1)
    assert plain | {"kv_reads": 0} == small | {"kv_reads": 0}


def test_the_floor_of_a_mixture_grows_with_the_experts_touched() -> None:
    """One token reads 4 of 128 experts, 64 tokens 87 %, hundreds all of them: then only compute grows."""
    model = roofline("openai/gpt-oss-120b", "h200")
    growth = [model.parts(Batch.of([0] * n))["gemm"] for n in (1, 8, 64, 120)]
    assert growth[1] > 1.3 * growth[0]
    assert growth[2] > 2 * growth[1]
    assert growth[3] < 1.2 * growth[2]


def test_sliding_layers_read_and_attend_to_their_window_only() -> None:
    """Half of gpt-oss's layers see 128 tokens: beyond, a longer context costs half of what 36 full layers would."""
    model = roofline("openai/gpt-oss-120b", "h200")
    short, at, long = (model.parts(Batch.of([ctx] * 8))["kv_reads"] for ctx in (64, 128, 1128))
    assert at == pytest.approx(2 * short, abs=2)
    assert long - at == pytest.approx(at * 1000 / 128 / 2, rel=1e-4)


@given(st.integers(1, 400), st.integers(0, 400))
def test_attention_in_a_window_counts_each_pair_once(q: int, ctx: int) -> None:
    model = MODELS["experts, sliding window"]._attention
    pairs_ns, _ = model.sliding_ns(Batch.of([], [(q, ctx)]))
    assert pairs_ns / model.sliding_pair_ns == pytest.approx(sum(min(128, ctx + i) for i in range(1, q + 1)))


def test_tensor_parallelism_divides_the_weights_and_pays_the_links() -> None:
    step = Batch.of([1000] * 8)
    one, two = MODELS["dense"].parts(step), roofline("Qwen/Qwen3-14B", "h100", tp=2).parts(step)
    assert one["collectives"] == 0
    assert two["collectives"] > 0
    assert 0.5 < two["gemm"] / one["gemm"] < 0.7  # the norms and gaps are not divided
    assert two["kv_reads"] == pytest.approx(one["kv_reads"] / 2, abs=1)
    pcie = roofline("Qwen/Qwen3-14B", "h100", tp=2, interconnect="pcie").parts(step)
    assert pcie["collectives"] > 2 * two["collectives"]


def test_key_value_heads_are_replicated_beyond_their_number() -> None:
    """Qwen2.5-0.5B has two: on four GPUs each reads as much as on two."""
    step = Batch.of([8000] * 8)
    reads = [roofline("Qwen/Qwen2.5-0.5B", "l4", tp=tp).parts(step)["kv_reads"] for tp in (1, 2, 4)]
    assert reads[1] == reads[2] == pytest.approx(reads[0] / 2, abs=1)


def test_a_pipeline_hands_over_between_its_stages() -> None:
    model, gpu = find_model("Qwen/Qwen3-14B"), find_gpu("h100")
    step = Batch.of([100])
    one, four = Roofline(model, gpu), Roofline(model, gpu, pp=4)
    assert 30_000 <= four.step_time(step) - one.step_time(step) < 100_000


def test_nvlink_needs_a_gpu_that_has_it() -> None:
    with pytest.raises(UserError, match=r"server\.interconnect: rtx-4090 has no NVLink; allowed: pcie"):
        roofline("Qwen/Qwen3-14B", "rtx-4090", tp=2, interconnect="nvlink")


def test_small_steps_without_graphs_are_bound_by_launching() -> None:
    graphs, eager = (roofline("Qwen/Qwen3-0.6B", "h100", enforce_eager=eager) for eager in (False, True))
    assert ms(eager, 100) > 3 * ms(graphs, 100)
    assert ms(eager, chunks=((8192, 0),)) <= ms(graphs, chunks=((8192, 0),))


def test_steps_are_padded_to_captured_sizes() -> None:
    tokens = [roofline("Qwen/Qwen3-14B", "h100", tp=2).parts(Batch.of([0] * n))["collectives"] for n in (17, 24, 25)]
    assert tokens[0] == tokens[1] < tokens[2]


def test_the_host_adds_when_synchronous_and_hides_when_asynchronous() -> None:
    step = Batch.of([100] * 10)
    hidden = MODELS["dense"]
    added = roofline("Qwen/Qwen3-14B", "h100", async_scheduling=False)
    assert added.step_time(step) - hidden.step_time(step) == 1_200_000 + 10 * 10_000
    assert hidden.parts(step)["host"] == 0
    # A step shorter than the host's work waits for it.
    tiny = roofline("Qwen/Qwen2.5-0.5B", "b200")
    assert tiny.step_time(Batch.of([1] * 64)) == 1_200_000 + 64 * 10_000


def test_state_layers_cost_a_sequence_and_not_its_context() -> None:
    """Three of four layers of Qwen3-Next keep a state: a cached token costs a quarter of a model without them."""
    model = find_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    full = dataclasses.replace(model, layer_types=(), state_space=None)
    step = Batch.of([10_000] * 8)
    mixed_parts, full_parts = (Roofline(m, find_gpu("h200")).parts(step) for m in (model, full))
    assert mixed_parts["kv_reads"] == pytest.approx(full_parts["kv_reads"] / 4, rel=1e-3)
    assert mixed_parts["sequences"] > full_parts["sequences"]
