"""Layers are cut into groups and blocks as vLLM cuts them, and a request takes as many blocks as vLLM reckons."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.core.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec, get_kv_cache_groups
from sim.memory import flat_layout, parse_version
from sim.memory.kv_layout import KvLayout, pipeline_stages
from sim.models import ModelSpec
from tests.sim.memory.made import budget


def layout(model: str | ModelSpec, **values: Any) -> KvLayout:
    return budget(model, kv_cache_gib=10.0, **values).layout


@pytest.mark.parametrize(
    ("model", "num_bytes"),
    [
        ("Qwen2.5-7B", 57_344),
        ("Llama-3-8B", 131_072),
        ("Qwen3-8B", 147_456),
        ("Qwen3-14B", 163_840),
        ("Qwen2.5-14B", 196_608),
        ("Qwen3-32B", 262_144),
        ("Qwen3-30B-A3B", 98_304),
        ("Llama-3-70B", 327_680),
        ("Llama-2-13B", 819_200),
        ("DeepSeek-V3", 61 * 576 * 2),
    ],
)
def test_bytes_per_token(model: str, num_bytes: int) -> None:
    assert layout(model).bytes_per_token == num_bytes


def test_heads_are_split_until_there_is_one_a_gpu_and_then_replicated() -> None:
    per_gpu = [layout("Qwen2.5-7B", tp=tp).bytes_per_token for tp in (1, 2, 4)]
    assert per_gpu == [57_344, 28_672, 14_336]
    per_gpu = [layout("Llama-3-8B", tp=tp).bytes_per_token for tp in (1, 2, 4, 8, 16, 32)]
    assert per_gpu == [131_072, 65_536, 32_768, 16_384, 16_384, 16_384]


def test_latent_attention_is_whole_on_every_gpu() -> None:
    assert layout("DeepSeek-V3", gpu="h200", tp=8).bytes_per_token == layout("DeepSeek-V3", gpu="h200").bytes_per_token


def test_fp8_halves_a_token() -> None:
    assert layout("Qwen3-14B", kv_cache_dtype="fp8").bytes_per_token * 2 == layout("Qwen3-14B").bytes_per_token
    assert layout("Qwen3-14B", dtype="float32").bytes_per_token == 2 * layout("Qwen3-14B").bytes_per_token


def test_a_dense_model_is_one_group() -> None:
    groups = layout("Qwen3-14B").groups
    assert [(group.kind, group.num_layers, group.block_size) for group in groups] == [("full", 40, 16)]


def test_gpt_oss_is_two_groups_of_one_block_size() -> None:
    """18 full and 18 sliding layers: a block is 18 layers' pages, 589,824 bytes, whichever group takes it."""
    result = layout("gpt-oss-120b", gpu="h200", version="0.22.0", max_num_batched_tokens=8192)
    assert [(group.kind, group.window, group.num_layers) for group in result.groups] == [
        ("sliding", 128, 18),
        ("full", None, 18),
    ]
    assert result.bytes_per_block == 589_824
    assert result.blocks_per_request(9472) == 592 + 521


def test_the_pool_of_a_measured_gpt_oss_server() -> None:
    """0.22.0 on an H200: 57.24 GiB; the log shows 886,768 tokens at 9,472 and 825,607 at 2,068 (public ladder)."""
    values: dict[str, Any] = {"kv_cache_gib": 57.24, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
    for length, tokens in ((9472, 886_768), (2068, 825_607)):
        result = budget("gpt-oss-120b", "h200", "0.22.0", max_model_len=length, **values)
        assert result.kv_tokens == pytest.approx(tokens, rel=1e-3)


def test_gemma_3_is_one_full_group_and_six_sliding_ones() -> None:
    """5 full and 29 sliding layers: groups of five, one of them with a padding layer."""
    groups = layout("gemma-3-4b-it").groups
    assert [group.kind for group in groups] == ["sliding"] * 6 + ["full"]
    assert [group.num_layers for group in groups] == [5, 5, 5, 5, 5, 4, 5]


def test_before_0_9_1_mixed_layers_all_count_as_full() -> None:
    assert [group.kind for group in layout("gemma-3-4b-it", version="0.9.0").groups] == ["full"]


def test_the_kind_with_fewer_bytes_gets_larger_blocks() -> None:
    """Gemma 4: 8,192 bytes a token in sliding layers, 4,096 in full ones: blocks of 16 and of 32 tokens."""
    groups = layout("gemma-4-26B-A4B-it").groups
    assert {(group.kind, group.block_size) for group in groups} == {("sliding", 16), ("full", 32)}


def test_a_block_of_a_state_model_holds_a_whole_state() -> None:
    groups = layout("Qwen3-Next-80B-A3B-Instruct", gpu="l40s", tp=4).groups
    assert [group.kind for group in groups] == ["state", "state", "state", "full"]
    full = groups[-1]
    assert full.block_size % 16 == 0
    page = full.block_size * 2 * 256 * 2
    state = 8192 // 4 * 3 * 2 + 8 * 128 * 128 * 2
    assert page >= state > page - 16 * 2 * 256 * 2


def test_a_sliding_group_holds_its_window_and_what_is_in_flight() -> None:
    """vLLM: ceil((window - 1 + in flight) / block) + 1; two batches are in flight since 0.27, when asynchronous."""
    values: dict[str, Any] = {"max_num_batched_tokens": 2048}
    one = layout("gpt-oss-20b", version="0.25.1", **values).groups[0].max_blocks
    two = layout("gpt-oss-20b", version="0.32", **values).groups[0].max_blocks
    synchronous = layout("gpt-oss-20b", version="0.32", async_scheduling=False, **values).groups[0].max_blocks
    assert (one, two, synchronous) == (-(-(127 + 2048) // 16) + 1, -(-(127 + 4096) // 16) + 1, one)


def test_a_model_with_a_window_in_all_layers_adds_a_block() -> None:
    """Phi-3-mini at 4,096: 2,228 blocks / 257 = 8.67x."""
    result = layout("Phi-3-mini-4k-instruct", version="0.19.1")
    assert result.blocks_per_request(4096) == 257
    assert f"{2228 / result.blocks_per_request(4096):.2f}" == "8.67"


def test_concurrency_counted_tokens_before_0_9_1_and_blocks_after() -> None:
    """8,094 blocks at a length of 8,196: 15.80x in tokens, 15.78x in blocks, as 513 blocks hold 8,208 tokens."""
    assert f"{flat_layout(49_152, 16, parse_version('0.9.0')).concurrency(8094, 8196):.2f}" == "15.80"
    assert f"{flat_layout(49_152, 16, parse_version('0.13.0')).concurrency(8094, 8196):.2f}" == "15.78"


@given(st.integers(1, 100), st.integers(1, 12))
def test_stages_share_the_layers_evenly(layers: int, stages: int) -> None:
    if stages > layers:
        return
    split = pipeline_stages(layers, stages)
    assert [layer for stage in split for layer in stage] == list(range(layers))
    sizes = [len(stage) for stage in split]
    assert max(sizes) - min(sizes) <= 1
    if layers % stages:
        assert sizes[-1] == min(sizes)  # the last stage also has the output head


def test_the_last_stage_is_spared_and_so_is_the_first() -> None:
    assert [len(stage) for stage in pipeline_stages(62, 4)] == [15, 16, 16, 15]
    assert [len(stage) for stage in pipeline_stages(35, 4)] == [9, 9, 9, 8]


@given(st.integers(1, 40_000), st.integers(2, 200_000))
def test_the_longest_request_fits_and_one_token_more_does_not(num_blocks: int, at_most: int) -> None:
    result = LAYOUTS["gpt-oss"]
    longest = result.longest(num_blocks, at_most)
    assert 0 <= longest <= at_most
    if longest:
        assert result.blocks_per_request(longest) <= num_blocks
    if longest < at_most:
        assert result.blocks_per_request(longest + 1) > num_blocks


@given(st.sampled_from(["gpt-oss", "gemma", "phi", "qwen"]), st.integers(1, 100_000), st.integers(1, 5_000))
def test_a_longer_request_never_takes_fewer_blocks(name: str, tokens: int, more: int) -> None:
    result = LAYOUTS[name]
    assert result.blocks_per_request(tokens) <= result.blocks_per_request(tokens + more)
    assert result.blocks_to_admit(tokens) <= result.blocks_to_admit(tokens + more)
    assert result.blocks_to_admit(tokens) <= result.blocks_per_request(tokens)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma-2-9b", "gemma-3-27b-it", "Phi-3-mini-4k-instruct", "Qwen3-8B"])
def test_the_groups_are_those_of_the_scheduler(name: str) -> None:
    """`sim.core` cuts layers into groups by the same rule, from counts alone."""
    result = budget(name, gpu="h200")
    layers = [
        (SlidingWindowSpec(group.window) if group.window else FullAttentionSpec(), group.num_layers)
        for group in result.kv_groups
    ]
    assert result.kv_cache_groups == get_kv_cache_groups(layers)


LAYOUTS = {
    "gpt-oss": layout("gpt-oss-20b", max_num_batched_tokens=1024),
    "gemma": layout("gemma-4-26B-A4B-it"),
    "phi": layout("Phi-3-mini-4k-instruct"),
    "qwen": layout("Qwen3-8B"),
}
