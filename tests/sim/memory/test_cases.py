"""Public questions about vLLM's memory, retold, each with the answer that the numbers give."""

from __future__ import annotations

import pytest

from sim.memory import (
    blocks_in,
    flat_layout,
    kv_pool,
    lowest_utilization,
    parse_version,
    request_never_fits,
)
from sim.models import find_model
from tests.sim.memory.made import budget

GIB = 2**30


def test_case_1_what_a_concurrency_of_4_61_for_8192_tokens_means() -> None:
    """A pool of 37,765 tokens: 4.6 requests of 8,192 or 47 of 800 tokens; the line is no limit on requests.

    The user read "Maximum concurrency for 8192 tokens: 4.61x"; a maintainer said "4.6 of 8k requests, or 46 of 800".
    """
    layout = flat_layout(131_072, 16, parse_version("0.6.0"))
    pool = kv_pool(layout, int(4.61 * 8192) // 16, 8192, parse_version("0.6.0"))
    assert pool.line == "Maximum concurrency for 8192 tokens per request: 4.61x"
    assert pool.tokens == pytest.approx(37_765, abs=16)
    assert pool.tokens // 800 == 47
    assert pool.num_blocks // layout.blocks_per_request(800) == 47


def test_case_2_a_token_of_qwen2_5_7b_takes_57_344_bytes_whatever_the_weights() -> None:
    """The user reckoned 1.53 MB a token (hidden size, 8 bytes) and measured 0.16 GB for a request of 3,072 tokens."""
    result = budget("Qwen2.5-7B-Instruct-GPTQ-Int8", "a100", "0.9.2", max_model_len=3072)
    assert result.kv_bytes_per_token == 2 * 28 * 4 * 128 * 2 == 57_344
    assert 3072 * result.kv_bytes_per_token / GIB == pytest.approx(0.164, abs=0.001)
    assert 28 * 3584 * 2 * 8 / result.kv_bytes_per_token == pytest.approx(28, rel=0.001)  # the user's mistake
    assert budget("Qwen2.5-7B-Instruct", "a100", "0.9.2").kv_bytes_per_token == 57_344


def test_case_3_v0_profiles_with_the_whole_context_unless_chunked() -> None:
    """RTX 3090, Llama-3.1-8B, V0: 20,000 starts, 29,000 is refused, 35,000 starts, as chunking began above 32k.

    Logged: KV 3.81 GiB with 1,952 blocks; 2.89 GiB with 1,478 blocks; torch peak 17.98, then 15.05 GiB.
    """
    common = {"gpu": "rtx-3090", "version": "0.6.3", "weights_gib": 14.99, "non_torch_gib": 0.35}
    short = budget("Llama-3.1-8B", max_model_len=20_000, **common)
    longer = budget("Llama-3.1-8B", max_model_len=29_000, **common)
    longest = budget("Llama-3.1-8B", max_model_len=35_000, **common)
    assert short.refusal is None
    assert short.num_gpu_blocks == pytest.approx(1952, rel=0.05)
    assert longer.refusal is not None
    assert "larger than the maximum number of tokens that can be stored in KV cache" in longer.refusal
    assert longer.activation_gib == pytest.approx(17.98 - 14.99, rel=0.12)
    assert longest.refusal is None
    assert longest.activation_gib == pytest.approx(15.05 - 14.99, abs=0.1)
    assert not longer.flags.enable_chunked_prefill
    assert longest.flags.enable_chunked_prefill


def test_case_3_with_the_logged_parts() -> None:
    """2.89 GiB hold 1,478 blocks, 23,648 tokens: less than 29,000."""
    common = {"gpu": "rtx-3090", "version": "0.6.3", "weights_gib": 14.9888, "non_torch_gib": 0.35}
    result = budget("Llama-3.1-8B", max_model_len=29_000, activation_gib=2.99, **common)
    assert result.kv_cache_gib == pytest.approx(2.89, abs=0.01)
    assert result.num_gpu_blocks == pytest.approx(1478, abs=4)
    assert result.kv_tokens == pytest.approx(23_648, abs=64)
    assert result.max_concurrency == pytest.approx(0.82, abs=0.01)
    assert result.refusal is not None


def test_case_4_a_request_longer_than_the_pool_never_fits() -> None:
    """gemma-4-31B, 0.19.1rc1: a pool of 37,392 tokens printed beside 1.53x for 262,144, and a request that hangs.

    Both lines are right: the first divides the blocks by six groups, the second lets the sliding groups recycle. But
    admission in that release counted the whole prompt in every group.
    """
    values = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "num_gpu_blocks_override": 14_024}
    result = budget("gemma-4-31B-it", "h200", "0.19.1rc1", max_model_len=262_144, **values)
    assert result.kv_tokens == 37_392
    assert f"{result.max_concurrency:.2f}" == "1.53"
    assert result.refusal is None
    assert not request_never_fits(30_000, result)
    assert request_never_fits(60_000, result)
    fixed = budget("gemma-4-31B-it", "h200", "0.21.0", max_model_len=262_144, **values)
    assert not request_never_fits(60_000, fixed)
    assert request_never_fits(600_000, fixed)


def test_case_5_qwen2_5_7b_does_not_start_on_8_gib_at_70_percent() -> None:
    """5.60 - 5.20 - 0.03 - 1.42 = -1.05 GiB; with a pool for 4,096 tokens it takes a utilization of 0.86."""
    result = budget(
        "Qwen2.5-7B-Instruct-AWQ",
        "rtx-4060",
        "0.7.3",
        max_model_len=4096,
        gpu_memory_utilization=0.7,
        weights_gib=5.20,
        non_torch_gib=0.03,
        activation_gib=1.42,
    )
    assert result.kv_cache_gib == pytest.approx(-1.05)
    assert result.num_gpu_blocks == 0
    assert result.refusal is not None
    assert result.refusal.startswith("No available memory for the cache blocks. Try increasing")
    assert lowest_utilization(result) == pytest.approx(0.86, abs=0.002)
    assert "--gpu-memory-utilization 0.86 would hold one request of 4096 tokens" in result.refusal
    estimated = budget("Qwen2.5-7B-Instruct-AWQ", "rtx-4060", "0.7.3", max_model_len=4096, gpu_memory_utilization=0.7)
    assert estimated.weights_gib == pytest.approx(5.20, abs=0.02)
    assert estimated.activation_gib == pytest.approx(1.42, abs=0.03)
    assert estimated.refusal is not None


def test_case_6_two_gpus_of_16_gb_hold_3850_blocks() -> None:
    """Llama-3.1-8B, TP 2: 14.20 - 7.51 - 0.39 - 2.53 = 3.76 GiB, 3,852 blocks, 1.54x at 40,000; graphs come on top."""
    result = budget(
        "Llama-3.1-8B",
        "v100-16gb",
        "0.6.4",
        tp=2,
        max_model_len=40_000,
        gpu_memory_utilization=0.9,
        weights_gib=7.51,
        non_torch_gib=0.39,
        activation_gib=2.53,
    )
    assert result.kv_bytes_per_token == 65_536
    assert result.kv_cache_gib == pytest.approx(3.76, abs=0.01)
    assert result.num_gpu_blocks == pytest.approx(3852, abs=5)
    assert result.max_concurrency == pytest.approx(1.54, abs=0.01)
    assert result.graphs_gib == 0
    assert result.refusal is None
    assert budget("Llama-3.1-8B", "v100-16gb", "0.6.4", tp=2).weights_gib == pytest.approx(7.51, abs=0.02)


def test_case_7_the_graph_estimate_shrinks_the_pool_and_can_be_switched_off() -> None:
    """MiniMax-M2.5 on a B200: 106.7x with the estimate, 334.2x without; both tell a max_model_len of 2,304."""
    assert 245_840 / 106.7 == pytest.approx(769_888 / 334.2, rel=0.001) == pytest.approx(2304, rel=0.001)
    before = budget("Qwen3-14B", version="0.20.2")
    after = budget("Qwen3-14B", version="0.21.0")
    switched_off = budget("Qwen3-14B", version="0.21.0", estimate_cudagraphs=False)
    assert (before.graphs_gib, switched_off.graphs_gib) == (0, 0)
    assert after.graphs_gib > 0.3
    assert switched_off.kv_cache_gib == pytest.approx(after.kv_cache_gib + after.graphs_gib)
    assert budget("Qwen3-14B", enforce_eager=True).graphs_gib == 0
    many = budget("Qwen3-14B", version="0.21.0", max_num_seqs=8)
    assert many.graphs_gib < after.graphs_gib  # it grows with the number of graphs


def test_case_8_a_token_of_48_layers_with_fp8_takes_49_152_bytes() -> None:
    """fp8 KV, 10.55 GiB: 230,528 tokens, 2.31x at 100,000; 221,000 tokens need 10.12 GiB."""
    values = {"kv_cache_dtype": "fp8", "kv_cache_gib": 10.55, "version": "0.25.0"}
    result = budget("Qwen3-Coder-30B-A3B-Instruct-FP8", "rtx-5090", max_model_len=100_000, **values)
    assert result.kv_bytes_per_token == 49_152
    assert result.kv_bytes_per_token == pytest.approx(10.12 * GIB / 221_000, rel=0.001)
    assert result.kv_tokens == pytest.approx(230_528, rel=0.001)
    assert result.max_concurrency == pytest.approx(2.31, abs=0.01)
    assert result.longest_context == pytest.approx(230_528, rel=0.001)
    too_long = budget("Qwen3-Coder-30B-A3B-Instruct-FP8", "rtx-5090", max_model_len=221_000, **(values | {
        "kv_cache_gib": 10.12 * 122_080 / 221_000
    }))  # fmt: skip
    assert too_long.refusal is not None
    assert "(10.12 GiB KV cache is needed" in too_long.refusal
    assert "the estimated maximum model length is 122" in too_long.refusal


def test_case_9_doubling_tensor_parallelism_more_than_doubles_the_pool() -> None:
    """TP 8 gave 21.89x and TP 4 7.56x at 32,000: 2.90 times, as both the weights and the KV bytes per GPU halve."""
    pools = {8: round(21.89 * 32_000), 4: round(7.56 * 32_000)}
    assert pools == {8: 700_480, 4: 241_920}
    assert pools[8] / pools[4] == pytest.approx(2.90, abs=0.01)
    four = budget("Llama-3.1-70B", "a100-80gb", "0.10.0", tp=4, max_model_len=32_000)
    eight = budget("Llama-3.1-70B", "a100-80gb", "0.10.0", tp=8, max_model_len=32_000)
    assert eight.kv_bytes_per_token * 2 == four.kv_bytes_per_token
    assert eight.weights_gib == pytest.approx(four.weights_gib / 2, rel=0.01)
    assert eight.kv_tokens > 2.2 * four.kv_tokens
    assert four.kv_tokens == pytest.approx(four.kv_cache_gib * GIB / (160 * 128 * 2 * 2), rel=0.001)
    copies = budget("Llama-3.1-70B", "a100-80gb", "0.10.0", tp=16, max_model_len=32_000)
    assert copies.kv_bytes_per_token == eight.kv_bytes_per_token  # 8 heads on 16 GPUs: each twice


def test_case_10_where_9_gib_went() -> None:
    """A100 40 GB, Llama-3-8B: 35.55 - 14.96 - 9.37 - 0.10 = 11.12 GiB = 5,693 blocks, 11.12x: the activations."""
    result = budget(
        "Meta-Llama-3-8B",
        "a100-40gb",
        "0.6.4",
        total_gib=39.50,
        max_model_len=8192,
        gpu_memory_utilization=0.9,
        weights_gib=14.96,
        activation_gib=9.37,
        non_torch_gib=0.10,
    )
    assert result.kv_cache_gib == pytest.approx(11.12, abs=0.005)
    assert result.num_gpu_blocks == pytest.approx(5693, abs=2)
    assert result.max_concurrency == pytest.approx(11.12, abs=0.01)
    assert budget("Meta-Llama-3-8B", "a100-40gb", "0.6.4").weights_gib == pytest.approx(14.96, abs=0.005)


def test_case_12_sequences_are_bounded_by_the_state_blocks() -> None:
    """An 80B hybrid on four L40S: max_num_seqs 256 exceeds 134 Mamba cache blocks, and the start is aborted."""
    values = {"gpu": "l40s", "version": "0.24.0", "tp": 4, "max_model_len": 16_384, "num_state_blocks": 134}
    result = budget("Qwen3-Next-80B-A3B-Instruct-FP8", max_num_seqs=256, **values)
    assert result.refusal is not None
    assert result.refusal.startswith("max_num_seqs (256) exceeds available Mamba cache blocks (134)")
    assert "lower max_num_seqs to at most 134" in result.refusal
    assert result.max_num_seqs == min(256, 134)
    assert budget("Qwen3-Next-80B-A3B-Instruct-FP8", max_num_seqs=100, **values).refusal is None
    before_the_check = budget("Qwen3-Next-80B-A3B-Instruct-FP8", max_num_seqs=256, **(values | {"version": "0.15.0"}))
    assert before_the_check.refusal is None
    assert before_the_check.max_num_seqs == 134
    assert 12_289 + 4_096 > 16_384  # the request that the window refused


def test_the_size_of_the_pool_of_case_10_follows_from_the_shape() -> None:
    """2 MiB a block: 32 layers, 8 heads of 128, keys and values, 2 bytes, 16 tokens."""
    layout = flat_layout(2 * 32 * 8 * 128 * 2, 16, parse_version("0.6.4"))
    assert layout.bytes_per_block == 2 * 2**20
    assert blocks_in(11.12, layout) == 5693
    assert find_model("llama-3-8b").num_kv_heads == 8
