"""Weights and activation peaks come out as start-up logs show them.

The logs: the accuracy report of llm-d-planner (H100, v0.19.0 and others), start-up logs in vLLM's issues, and those of
`kv_sizing.csv`.
"""

from __future__ import annotations

from typing import Any

import pytest

from sim.errors import UserError
from sim.hardware import find_gpu
from sim.memory.profile_run import capture_sizes
from tests.sim.memory.made import budget


@pytest.mark.parametrize(
    ("model", "tp", "gib"),
    [
        ("Llama-3.1-8B-Instruct", 1, 14.99),
        ("Llama-3.1-8B-Instruct", 2, 7.51),
        ("Llama-3.1-8B-Instruct", 4, 3.77),
        ("Llama-3.1-8B-Instruct-FP8", 1, 8.49),
        ("Qwen2.5-7B-Instruct", 1, 14.25),
        ("Qwen2.5-7B-Instruct", 4, 3.55),
        ("Qwen2.5-7B-Instruct-AWQ", 1, 5.20),
        ("Qwen3-14B", 1, 27.52),
        ("Qwen3-32B", 1, 61.03),
        ("Qwen3-Coder-30B-A3B-Instruct", 1, 56.93),
        ("Qwen3-30B-A3B-Instruct-2507-FP8", 1, 29.08),
        ("Qwen3-30B-A3B-Instruct-2507-Int4-W4A16", 2, 7.90),
        ("Qwen3-235B-A22B-FP8", 8, 27.67),
        ("Mistral-Small-3.2-24B-Instruct-2506", 1, 44.76),
        ("Meta-Llama-3.1-70B-Instruct-quantized.w8a8", 1, 67.72),
        ("Phi-3-mini-4k-instruct", 1, 7.12),
        ("gpt-oss-120b", 1, 64.38),  # MXFP4 experts padded from 2880 to 3072
        ("DeepSeek-R1-Distill-Qwen-14B", 1, 27.59),
    ],
)
def test_weights_are_those_of_the_log(model: str, tp: int, gib: float) -> None:
    assert budget(model, version="0.19.0", tp=tp).weights_gib == pytest.approx(gib, rel=0.01)


def test_quantization_given_as_a_flag_wins() -> None:
    assert budget("Llama-3.1-8B-Instruct", quantization="fp8").weights_gib == pytest.approx(8.49, abs=0.01)
    assert budget("Qwen2.5-7B-Instruct-AWQ", quantization="none").weights_gib == pytest.approx(14.2, abs=0.1)


def test_stages_of_a_pipeline_hold_embedding_and_head_at_the_ends() -> None:
    """PP 4: 4.26 GiB on the first stage; the pool is that of the stage with least room."""
    result = budget("Llama-3.1-8B", version="0.19.0", pp=4)
    assert result.weights_gib == pytest.approx(4.26, abs=0.01)
    assert result.kv_bytes_per_token == 131_072 // 4


def test_expert_parallelism_spreads_the_experts_over_the_replicas() -> None:
    alone = budget("Qwen3-30B-A3B", tp=2, data_parallel_size=2)
    shared = budget("Qwen3-30B-A3B", tp=2, data_parallel_size=2, enable_expert_parallel=True)
    experts = 48 * 128 * 3 * 2048 * 768 * 2 / 2**30
    assert alone.weights_gib - shared.weights_gib == pytest.approx(experts / 4, rel=0.001)


@pytest.mark.parametrize(
    ("model", "version", "values", "gib"),
    [
        ("Llama-3.1-8B-Instruct", "0.19.0", {}, 1.89),
        ("Llama-3.1-8B-Instruct", "0.19.0", {"tp": 4}, 1.89),
        ("Qwen2.5-7B-Instruct", "0.19.0", {}, 2.21),
        ("Qwen3-8B", "0.19.0", {}, 2.21),
        ("Qwen3-14B", "0.17.0", {}, 2.23),
        ("Qwen3-14B", "0.16.0", {}, 5.64),
        ("gemma-2-2b-it", "0.19.0", {}, 3.62),
        ("gemma-2-27b-it", "0.19.0", {}, 3.66),
        ("phi-4", "0.19.0", {}, 1.52),
        ("CodeLlama-7b-hf", "0.19.0", {"max_model_len": 8192}, 0.77),
        ("Qwen3-30B-A3B", "0.19.0", {}, 2.68),
        ("Qwen1.5-MoE-A2.7B", "0.19.0", {}, 2.47),
        ("DeepSeek-V2-Lite-Chat", "0.19.0", {}, 1.93),
        ("Mixtral-8x7B-Instruct-v0.1", "0.19.0", {"tp": 2}, 1.21),
        ("gpt-oss-20b", "0.19.0", {"tp": 2}, 2.87),
        ("Mistral-Small-3.1-24B-Instruct-2503", "0.19.0", {}, 2.03),
        ("Qwen2.5-72B-Instruct", "0.19.0", {"tp": 2}, 2.29),
        ("Llama-3.3-70B-Instruct-FP8-dynamic", "0.19.0", {"tp": 2}, 1.96),
        ("gpt-oss-120b", "0.11.0", {}, 7.38),
        ("Qwen3-32B", "0.11.0", {}, 5.64),
        ("Llama-3.1-8B-Instruct", "0.11.0", {}, 4.76),
        ("Qwen2.5-7B-Instruct", "0.7.3", {"gpu": "rtx-4060", "max_model_len": 4096}, 1.42),
        ("Meta-Llama-3-8B", "0.6.5", {}, 1.26),
    ],
)
def test_the_activation_peak_is_that_of_the_log(model: str, version: str, values: dict[str, Any], gib: float) -> None:
    result = budget(model, version=version, **values)
    assert result.activation_gib == pytest.approx(gib, rel=0.06)


def test_the_peak_does_not_grow_with_the_context_in_v1() -> None:
    """v0.19.0: 58.11 GiB of KV cache at every max_model_len from 2,048 to 32,768."""
    pools = {budget("Llama-3.1-8B", max_model_len=length).kv_cache_gib for length in (2048, 8192, 131_072)}
    assert len(pools) == 1


def test_the_peak_grows_with_the_token_budget_and_with_the_sequences() -> None:
    small = budget("Llama-3.1-8B", version="0.19.0", max_num_batched_tokens=2048, max_num_seqs=16).activation_gib
    tokens = budget("Llama-3.1-8B", version="0.19.0", max_num_batched_tokens=16_384, max_num_seqs=16).activation_gib
    seqs = budget("Llama-3.1-8B", version="0.19.0", max_num_batched_tokens=2048, max_num_seqs=1024).activation_gib
    assert small < tokens
    assert small < seqs


def test_the_pool_of_a_log_that_no_table_was_fitted_to() -> None:
    """v0.31.0, A100 80 GB, all defaults, Llama-3.1-8B-Instruct: 56.21 GiB, 460,496 tokens, 3.51x."""
    result = budget("meta-llama/Llama-3.1-8B-Instruct", "a100", "0.31.0")
    assert result.kv_cache_gib == pytest.approx(56.21, rel=0.02)
    assert result.kv_tokens == pytest.approx(460_496, rel=0.02)
    assert result.flags.gpu_memory_utilization == 0.92


def test_graphs_are_captured_for_powers_of_two_and_then_in_steps() -> None:
    """vLLM's log of 0.19: 1, 2, 4, 8, 16, ... 256, 272, ... 512: 51 sizes, 35 of them for decoding 256 sequences."""
    gpu = find_gpu("h100")
    sizes = capture_sizes(budget("Qwen3-14B").flags, gpu)
    assert (len(sizes), sizes[:5], sizes[-1]) == (51, (1, 2, 4, 8, 16), 512)
    assert len([size for size in sizes if size <= 256]) == 35
    assert capture_sizes(budget("Qwen3-14B", max_num_seqs=64).flags, gpu)[-1] == 128
    assert capture_sizes(budget("Qwen3-14B", max_num_seqs=1).flags, gpu) == (1, 2)


def test_graphs_of_llama_8b_are_estimated_as_the_log_does() -> None:
    result = budget("Llama-3.1-8B", version="0.19.0", estimate_cudagraphs=True)
    assert result.graphs_gib == pytest.approx(0.84, rel=0.05)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tp": 3}, r"tensor_parallel_size: Total number of attention heads \(40\) must be divisible .* \(3\)"),
        ({"tp": 5}, r"tensor_parallel_size: the padded vocabulary \(151936\) must be divisible"),
        ({"pp": 41}, "pipeline_parallel_size: 41 stages for 40 layers"),
        ({"tp": 0}, "must be at least 1"),
    ],
)
def test_a_model_that_cannot_be_spread_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        budget("Qwen3-14B", **values)


def test_ten_key_value_heads_cannot_be_spread_over_four_gpus() -> None:
    with pytest.raises(UserError, match="tensor_parallel_size: 10 is not divisible by 4: 10 key-value heads"):
        budget("phi-4", tp=4)
