"""Flags that are not given take the default of the release and the GPU; those that are given are checked."""

from __future__ import annotations

from typing import Any

import pytest

from sim.errors import UserError
from sim.hardware import find_gpu
from sim.memory import EngineFlags, ResolvedFlags, ServerSpec, memory_budget, resolve_flags
from sim.models import find_model


def resolve(gpu: str = "h100", version: str = "0.32", model: str = "Qwen3-14B", **flags: Any) -> ResolvedFlags:
    return resolve_flags(EngineFlags(**flags), version, find_gpu(gpu), find_model(model))


@pytest.mark.parametrize(
    ("gpu", "version", "seqs", "tokens"),
    [
        ("b200", "0.32", 1024, 16384),
        ("mi300x", "0.32", 1024, 16384),
        ("h200", "0.32", 1024, 8192),
        ("h100", "0.32", 1024, 8192),
        ("rtx-pro-6000", "0.32", 1024, 8192),
        ("a100-80gb", "0.32", 256, 2048),
        ("l40s", "0.32", 256, 2048),
        ("rtx-4090", "0.32", 256, 2048),
        ("gb10", "0.25.1", 256, 2048),  # NVML does not tell the memory of an integrated GPU
        ("cpu", "0.32", 128, 2048),
        ("b200", "0.22.0", 1024, 8192),
        ("a100-80gb", "0.8.5", 1024, 8192),  # between PR 17073 and PR 17885
        ("a100-80gb", "0.8.4", 256, 2048),
        ("h100", "0.8.4", 1024, 8192),
        ("h100", "0.8.2", 256, 8192),
        ("h100", "0.6.4", 256, 40960),  # V0 did not chunk: the budget is the context
        ("rtx-4090", "0.6.4", 256, 40960),
    ],
)
def test_batch_limits_follow_release_and_gpu(gpu: str, version: str, seqs: int, tokens: int) -> None:
    flags = resolve(gpu, version, enable_chunked_prefill=None if version != "0.6.4" else False)
    assert (flags.max_num_seqs, flags.max_num_batched_tokens) == (seqs, tokens)


def test_the_cpus_defaults_grow_with_the_ranks() -> None:
    flags = resolve_flags(EngineFlags(), "0.32", find_gpu("cpu"), find_model("Qwen3-14B"), num_gpus=2)
    assert (flags.max_num_seqs, flags.max_num_batched_tokens) == (256, 4096)


def test_a_cpu_schedules_synchronously_whatever_is_asked() -> None:
    assert not resolve("cpu").async_scheduling
    assert not resolve("cpu", async_scheduling=True).async_scheduling  # platforms/cpu.py sets it after the flags


@pytest.mark.parametrize(
    ("version", "asked", "scheduled_ahead"),
    [
        ("0.13.0", None, False),
        ("0.15.1", None, False),
        ("0.15.1", False, False),
        ("0.16.0", None, True),
        ("0.32", None, True),
        ("0.32", False, False),
    ],
)
def test_a_pipeline_is_scheduled_ahead_from_0_16_on(version: str, asked: bool | None, scheduled_ahead: bool) -> None:
    flags, gpu, model = EngineFlags(async_scheduling=asked), find_gpu("h100"), find_model("Qwen3-14B")
    assert resolve_flags(flags, version, gpu, model, num_gpus=2, num_stages=2).async_scheduling is scheduled_ahead


def test_before_0_16_a_pipeline_that_is_to_be_scheduled_ahead_does_not_start() -> None:
    server = ServerSpec(version="0.15.0", pipeline_parallel_size=2, flags=EngineFlags(async_scheduling=True))
    with pytest.raises(UserError, match=r"async_scheduling: before 0\.16 vLLM does not start with it and"):
        memory_budget(find_model("Qwen3-14B"), find_gpu("h100"), server)


@pytest.mark.parametrize(("version", "utilization"), [("0.32", 0.92), ("0.22.1", 0.92), ("0.21.0", 0.9), ("0.6", 0.9)])
def test_utilization_rose_with_0_22(version: str, utilization: float) -> None:
    assert resolve(version=version).gpu_memory_utilization == utilization


def test_the_rest_of_the_defaults_of_0_32() -> None:
    flags = resolve()
    assert flags.enable_prefix_caching
    assert flags.enable_chunked_prefill
    assert flags.async_scheduling
    assert flags.scheduler_reserve_full_isl
    assert flags.scheduling_policy == "fcfs"
    assert (flags.block_size, flags.long_prefill_token_threshold, flags.watermark) == (16, 0, 0.0)
    assert (flags.max_model_len, flags.dtype, flags.kv_cache_dtype) == (40960, "bfloat16", "auto")
    assert flags.defaulted >= {"max_model_len", "max_num_seqs", "gpu_memory_utilization"}


def test_older_releases_lack_what_came_later() -> None:
    assert not resolve(version="0.13.0").async_scheduling
    assert not resolve(version="0.18.0").scheduler_reserve_full_isl
    assert not resolve(version="0.6.4").enable_prefix_caching
    assert resolve(version="0.6.4", model="Llama-3.1-8B").enable_chunked_prefill  # above 32k V0 chunked by itself
    assert not resolve(version="0.6.4", model="Llama-3-8B").enable_chunked_prefill


def test_a_given_flag_is_kept_and_not_called_a_default() -> None:
    flags = resolve(max_num_seqs=64, gpu_memory_utilization=0.5, enable_prefix_caching=False)
    assert (flags.max_num_seqs, flags.gpu_memory_utilization, flags.enable_prefix_caching) == (64, 0.5, False)
    assert not flags.defaulted & {"max_num_seqs", "gpu_memory_utilization", "enable_prefix_caching"}


def test_default_limits_bend_to_each_other_and_given_ones_do_not() -> None:
    """The default sequences are cut to the budget, the default budget to what the sequences can hold."""
    assert resolve(max_num_batched_tokens=512).max_num_seqs == 512
    assert resolve(max_num_seqs=2, max_model_len=1000).max_num_batched_tokens == 2000
    assert resolve(enable_chunked_prefill=False).max_num_batched_tokens == 40960


def test_gemma_4_raises_the_budget_to_one_multimodal_item() -> None:
    assert resolve("gb10", "0.25.1", "gemma-4-26B-A4B-it").max_num_batched_tokens == 2496


def test_long_rope_is_served_at_its_original_length() -> None:
    assert resolve(model="Phi-3-mini-128k-instruct").max_model_len == 4096


def test_a_gpu_without_bf16_takes_float16() -> None:
    assert resolve("t4").dtype == "float16"
    with pytest.raises(
        UserError, match=r"dtype: Bfloat16 is only supported .* Your t4 GPU has compute capability 7\.5"
    ):
        resolve("t4", dtype="bfloat16")


@pytest.mark.parametrize(
    ("gpu", "size"), [("h100", 64), ("b200", 64), ("a100-80gb", 16), ("cpu", 16)]
)  # fmt: skip
def test_latent_attention_asks_for_the_blocks_of_its_kernel(gpu: str, size: int) -> None:
    assert resolve(gpu, model="DeepSeek-V2-Lite").block_size == size


def test_a_block_size_fits_the_kernels_of_the_gpu() -> None:
    with pytest.raises(UserError, match=r"^block_size: 3 tokens fit no attention kernel .* give a multiple of 16$"):
        resolve("h100", block_size=3)
    assert resolve("h100", block_size=48).block_size == 48
    assert resolve("mi300x", block_size=1).block_size == 1
    assert resolve("h100", version="0.6.4", block_size=8).block_size == 8


def test_the_cpu_takes_blocks_of_128() -> None:
    assert resolve("cpu").block_size == 128


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"max_num_batched_tokens": 64, "max_num_seqs": 128},
            r"max_num_batched_tokens \(64\) must be greater than or equal to max_num_seqs \(128\)",
        ),
        ({"max_num_seqs": 9000}, r"max_num_batched_tokens \(8192\) must be .* max_num_seqs \(9000\)"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048},
            r"max_num_batched_tokens \(2048\) is smaller than max_model_len \(40960\)",
        ),
        ({"max_num_seqs": 8, "max_num_active_seqs": 9}, r"max_num_active_seqs \(9\) cannot be greater"),
        ({"long_prefill_token_threshold": 50_000}, r"long_prefill_token_threshold \(50000\) cannot be greater"),
        (
            {"max_model_len": 50_000},
            r"max_model_len: User-specified max_model_len \(50000\) is greater than the derived",
        ),
        ({"kv_cache_dtype": "int3"}, r"kv_cache_dtype: must be one of auto, .* not 'int3'"),
        ({"dtype": "int8"}, "dtype: must be one of auto, half"),
        ({"gpu_memory_utilization": 1.5}, r"gpu_memory_utilization: must be above 0 and at most 1, not 1\.5"),
        ({"max_model_len": -2}, "must be at least 1"),
    ],
)
def test_what_vllm_rejects_is_rejected_in_its_words(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(**flags)
