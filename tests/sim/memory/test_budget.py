"""The budget adds up; it says what is an estimate, and why vLLM would not start."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import UserError
from sim.memory import MemoryBudget, flat_pool, lowest_utilization, request_never_fits
from tests.sim.memory.made import budget, server

GIB = 2**30


@st.composite
def budgets(draw: st.DrawFn) -> MemoryBudget:
    models = ["Qwen2.5-7B", "gpt-oss-20b", "gemma-3-4b-it", "DeepSeek-V2-Lite", "Qwen3-30B-A3B-FP8", "Phi-3-mini-4k"]
    return budget(
        draw(st.sampled_from(models)),
        draw(st.sampled_from(["rtx-4090", "h100", "a100-40gb", "l4"])),
        draw(st.sampled_from(["0.6.4", "0.8.5", "0.11.0", "0.19.0", "0.21.0", "0.32"])),
        tp=draw(st.sampled_from([1, 2])),
        pp=draw(st.sampled_from([1, 3])),
        gpu_memory_utilization=draw(st.floats(0.1, 1.0)),
        max_model_len=2048,
    )


@settings(max_examples=60, deadline=None)
@given(budgets())
def test_the_parts_add_up_and_the_blocks_fit(result: MemoryBudget) -> None:
    used = result.weights_gib + result.activation_gib + result.non_torch_gib + result.graphs_gib
    assert result.used_gib == pytest.approx(used)
    assert result.kv_cache_gib == pytest.approx(result.total_gib * result.utilization - used, abs=1e-9)
    assert result.num_gpu_blocks * result.layout.bytes_per_block <= max(result.kv_cache_gib, 0) * GIB
    if result.kv_cache_gib > 0:
        assert (result.num_gpu_blocks + 1) * result.layout.bytes_per_block > result.kv_cache_gib * GIB
    if result.refusal is None:
        assert result.max_concurrency >= 1
        assert result.longest_context >= 2048
        assert not request_never_fits(2048 - result.block_size, result)
    else:
        assert result.longest_context < 2048 or result.num_gpu_blocks == 0


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["Qwen2.5-7B", "gpt-oss-20b"]), st.integers(100, 32_768))
def test_it_starts_at_the_length_that_the_refusal_names(model: str, length: int) -> None:
    """And not with one token more."""
    tight = {"gpu": "rtx-4090", "kv_cache_gib": 0.5}
    longest = budget(model, **tight, max_model_len=16).longest_context
    result = budget(model, **tight, max_model_len=length)
    assert (result.refusal is None) == (length <= longest)
    if result.refusal is not None:
        named = int(result.refusal.split("estimated maximum model length is ")[1].split(".")[0])
        assert named == longest
        assert budget(model, **tight, max_model_len=named).refusal is None
        assert budget(model, **tight, max_model_len=named + 1).refusal is not None


def test_every_part_says_whether_it_is_an_estimate() -> None:
    assert budget("Qwen3-14B").estimated == (
        "weights_gib",
        "activation_gib",
        "non_torch_gib",
        "graphs_gib",
        "kv_cache_gib",
    )
    measured = {"weights_gib": 27.5, "activation_gib": 1.0, "non_torch_gib": 0.2, "graphs_gib": 0.5}
    assert budget("Qwen3-14B", **measured).estimated == ()
    assert "kv_cache_gib" not in budget("Qwen3-14B", kv_cache_gib=40.0).estimated
    assert "kv_cache_gib" not in budget("Qwen3-14B", kv_cache_memory_bytes=40 * GIB).estimated
    assert "graphs_gib" not in budget("Qwen3-14B", version="0.20.0").estimated


def test_measured_parts_replace_estimates() -> None:
    result = budget("Qwen3-14B", weights_gib=27.0, activation_gib=1.0, non_torch_gib=0.5, graphs_gib=0.25)
    assert result.kv_cache_gib == pytest.approx(79.18 * 0.92 - 28.75)


def test_a_measured_graph_estimate_is_not_deducted_where_the_release_does_not() -> None:
    assert budget("Qwen3-14B", version="0.20.0", graphs_gib=0.5).graphs_gib == 0


def test_the_pool_can_be_set_outright() -> None:
    by_bytes = budget("Qwen2.5-7B", "rtx-4090", kv_cache_memory_bytes=4 * GIB)
    assert by_bytes.kv_cache_gib == 4
    assert by_bytes.num_gpu_blocks == 4 * GIB // (57_344 * 16)
    by_blocks = budget("Qwen2.5-7B", "rtx-4090", num_gpu_blocks_override=5000)
    assert (by_blocks.num_gpu_blocks, by_blocks.kv_tokens) == (5000, 80_000)


def test_the_log_line_of_each_generation() -> None:
    values: dict[str, Any] = {"num_gpu_blocks_override": 14_035, "max_model_len": 32_768}
    lines = {v: budget("Qwen2.5-7B", version=v, **values).max_concurrency_line for v in ("0.6.4", "0.22.1", "0.32")}
    assert lines == {
        "0.6.4": "Maximum concurrency for 32768 tokens per request: 6.85x",
        "0.22.1": "Maximum concurrency for 32,768 tokens per request: 6.85x",
        "0.32": "GPU KV cache size: 224,560 tokens, Maximum concurrency for 32,768 tokens per request: 6.85x",
    }


def test_a_model_larger_than_the_gpu_runs_out_of_memory_while_loading() -> None:
    result = budget("Qwen2.5-72B-Instruct", "rtx-4090")
    assert result.refusal is not None
    assert "CUDA out of memory while the weights are loaded" in result.refusal
    assert "--tensor-parallel-size" in result.refusal


def test_a_measured_pool_is_believed_whatever_the_weights_seem_to_take() -> None:
    assert budget("Qwen2.5-72B-Instruct", "rtx-4090", kv_cache_gib=20.0).refusal is None


def test_the_refusal_of_a_context_that_does_not_fit_names_both_flags() -> None:
    result = budget("Llama-3.1-8B", "rtx-4090", "0.32")
    assert result.refusal is not None
    assert result.refusal.startswith(
        "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is "
        "larger than the available KV cache memory ("
    )
    assert f"--max-model-len {result.longest_context} or less" in result.refusal


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"num_gpu_blocks_override": 100}, "num_gpu_blocks_override"),
        ({"num_gpu_blocks_override": 1}, "num_gpu_blocks_override"),
        ({"kv_cache_memory_bytes": GIB}, "kv_cache_memory_bytes"),
        ({"kv_cache_memory_bytes": 1}, "kv_cache_memory_bytes"),
    ],
)
def test_a_pool_set_outright_is_enlarged_by_its_own_flag(values: dict[str, int], flag: str) -> None:
    common: dict[str, Any] = {"gpu": "rtx-4090", "max_model_len": 32_768}
    refusal = budget("Qwen2.5-7B", **common, **values).refusal
    assert refusal is not None
    assert "--gpu-memory-utilization" not in refusal
    assert "--max-model-len 0" not in refusal
    found = re.search(rf"--{flag.replace('_', '-')} (\d+)", refusal)
    assert found is not None, refusal
    assert budget("Qwen2.5-7B", **common, **{flag: int(found[1])}).refusal is None
    assert budget("Qwen2.5-7B", **common, **{flag: int(found[1]) - 1}).refusal is not None


def test_the_utilization_that_a_refusal_names_lets_it_start() -> None:
    values: dict[str, Any] = {"gpu": "rtx-4090", "max_model_len": 32_768}
    refused = budget("Qwen2.5-7B", gpu_memory_utilization=0.7, **values)
    assert refused.refusal is not None
    share = float(refused.refusal.split("--gpu-memory-utilization ")[1].split(" ")[0])
    assert budget("Qwen2.5-7B", gpu_memory_utilization=share, **values).refusal is None
    assert lowest_utilization(refused) == pytest.approx(share, abs=0.011)


def test_too_little_free_memory_at_start() -> None:
    result = budget("Qwen2.5-7B", "rtx-4090", free_gib=20.0)
    assert result.refusal is not None
    assert result.refusal.startswith(
        "Free memory on device cuda:0 (20.0/23.55 GiB) on startup is less than desired GPU memory utilization (0.92, "
        "21.67 GiB)."
    )
    assert "--gpu-memory-utilization 0.84 or less" in result.refusal
    assert budget("Qwen2.5-7B", "rtx-4090", free_gib=20.0, gpu_memory_utilization=0.84).refusal is None


def test_max_model_len_of_minus_one_takes_what_fits() -> None:
    fitted = budget("Llama-3.1-8B", "rtx-4090", max_model_len=-1)
    assert fitted.refusal is None
    assert fitted.max_model_len == fitted.longest_context
    assert 16_384 < fitted.max_model_len < 131_072
    assert budget("Llama-3.1-8B", "h100", max_model_len=-1).max_model_len == 131_072
    impossible = budget("Llama-3.1-8B", "rtx-4090", max_model_len=-1, gpu_memory_utilization=0.5)
    assert impossible.refusal is not None


def test_the_null_block_counts_since_0_26() -> None:
    """A pool of exactly max_model_len starts before and is refused after; either way such a request never fits."""
    values: dict[str, Any] = {"max_model_len": 4096, "num_gpu_blocks_override": 256}
    before, after = budget("Qwen2.5-7B", version="0.25.1", **values), budget("Qwen2.5-7B", version="0.32", **values)
    assert before.refusal is None
    assert after.refusal is not None
    assert request_never_fits(4096, before)
    assert not request_never_fits(4080, before)


def test_stages_differ_and_the_tightest_counts() -> None:
    """61 layers on two stages: 31 and 30; the first also has the embedding, the second the head."""
    result = budget("DeepSeek-V3", "h200", tp=8, pp=2, kv_cache_gib=50.0)
    assert result.kv_bytes_per_token == 31 * 576 * 2


def test_bytes_per_token_can_be_given_for_a_known_model() -> None:
    result = budget("Qwen2.5-7B", "rtx-4090", kv_bytes_per_token=28_672)
    assert result.kv_bytes_per_token == 28_672
    assert result.kv_tokens == pytest.approx(2 * budget("Qwen2.5-7B", "rtx-4090").kv_tokens, abs=32)


def test_warnings_name_what_the_numbers_hide() -> None:
    assert budget("Qwen2.5-7B").warnings == ()
    assert "several kinds" in budget("gpt-oss-20b").warnings[0]
    assert any("state block" in text for text in budget("Qwen3-Next-80B-A3B-Instruct", "h200", tp=2).warnings)
    assert any("host" in text for text in budget("Qwen2.5-0.5B", "cpu").warnings)
    assert any("FlashInfer" in text for text in budget("Qwen2.5-7B", version="0.9.2").warnings)
    assert "newer than the rules" in budget("Qwen2.5-7B", version="9.9").warnings[0]
    assert budget("Qwen2.5-7B", version="0.32.4").warnings == ()
    assert "had the engine V0" in budget("Qwen2.5-7B", version="0.6.3").warnings[0]


def test_a_cpu_has_no_graphs_and_nothing_outside_torch() -> None:
    result = budget("Qwen2.5-0.5B", "cpu", kv_cache_memory_bytes=4 * GIB)
    assert (result.graphs_gib, result.non_torch_gib, result.block_size) == (0, 0, 128)


def test_a_pool_without_a_model() -> None:
    """Mistral-Small on an H100: 28.2 GiB, blocks of 128 tokens: 11.55x at 16,000."""
    gib, pool = flat_pool(
        server("0.11.0", kv_bytes_per_token=163_840, kv_cache_gib=28.2, block_size=128, max_model_len=16_000)
    )
    assert gib == 28.2
    assert (pool.num_blocks, pool.tokens) == (1443, 184_704)
    assert pool.max_concurrency == pytest.approx(11.55, abs=0.01)
    assert pool.longest == 1443 * 128


def test_a_pool_from_its_parts_without_a_model() -> None:
    parts = {"weights_gib": 14.99, "activation_gib": 4.76, "non_torch_gib": 0.13, "kv_bytes_per_token": 131_072}
    gib, pool = flat_pool(server("0.11.0", max_model_len=16_000, **parts), 79.18)
    assert gib == pytest.approx(51.38, abs=0.005)
    assert pool.num_blocks == int(gib * GIB) // (131_072 * 16)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("kv_bytes_per_token", "kv_bytes_per_token: needed when there is no model"),
        ("max_model_len", "max_model_len: needed when there is no model"),
        ("activation_gib", "kv_cache_gib: without it, .* the GPU's memory, activation_gib must be given"),
    ],
)
def test_what_is_missing_without_a_model_is_named(missing: str, message: str) -> None:
    values = {
        "weights_gib": 14.99, "activation_gib": 4.76, "non_torch_gib": 0.13, "kv_bytes_per_token": 131_072,
        "max_model_len": 16_000,
    }  # fmt: skip
    del values[missing]
    with pytest.raises(UserError, match=message):
        flat_pool(server("0.11.0", **values))


def test_a_budget_is_a_value() -> None:
    """Equal inputs give equal budgets, so that runs can be cached by them."""
    assert budget("gpt-oss-20b") == budget("gpt-oss-20b")
    assert replace(budget("gpt-oss-20b"), total_gib=1.0) != budget("gpt-oss-20b")
