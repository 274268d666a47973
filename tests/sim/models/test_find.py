"""Names match Hugging Face ids in any spelling, and suffixes say how the weights are stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.errors import UserError
from sim.models import find_model
from sim.models.quantization import FP8, quantization_from_flag


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("qwen2.5-coder-32b-instruct", "qwen2.5-32b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.1-24b"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini-4k"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
    ],
)
def test_a_hugging_face_id_finds_its_shape(name: str, base: str) -> None:
    found, expected = find_model(name), find_model(base)
    assert found.name == name
    assert (found.num_layers, found.hidden_size, found.vocab_size) == (
        expected.num_layers,
        expected.hidden_size,
        expected.vocab_size,
    )


@pytest.mark.parametrize(
    ("name", "method", "bits"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq", 4),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq", 4),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "gptq", 8),
        ("Qwen3-30B-A3B-Instruct-2507-FP8", "fp8", 8),
        ("Qwen3-235B-A22B FP8", "fp8", 8),
        ("Qwen3-30B-A3B-Instruct-2507-Int4-W4A16", "w4a16", 4),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "w8a8", 8),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "w4a16", 4),
        ("gemma-4-26B-A4B-it-qat-AWQ-INT4", "awq", 4),
        ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", "bitsandbytes", 4),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "nvfp4", 4),
        ("openai/gpt-oss-20b", "mxfp4", 4),
        ("deepseek-ai/DeepSeek-V3", "fp8", 8),
    ],
)
def test_a_suffix_is_the_weight_format(name: str, method: str, bits: int) -> None:
    quantization = find_model(name).quantization
    assert quantization is not None
    assert (quantization.method, quantization.bits) == (method, bits)


def test_a_plain_name_is_not_quantized_and_bf16_undoes_a_native_format() -> None:
    assert find_model("Qwen/Qwen3-14B").quantization is None
    assert find_model("gpt-oss-20b-BF16").quantization is None


def test_the_releases_of_july_2025_have_a_longer_context() -> None:
    assert find_model("Qwen3-30B-A3B").max_position_embeddings == 40960
    assert find_model("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8").max_position_embeddings == 262144


def test_an_unknown_model_is_refused_with_near_names() -> None:
    with pytest.raises(UserError, match=r"model: unknown model 'Qwen/Qwen2\.5-8B'; did you mean qwen2\.5-\d"):
        find_model("Qwen/Qwen2.5-8B")
    with pytest.raises(UserError, match=r"unknown model 'zzz'; .*config\.json also works"):
        find_model("zzz")
    with pytest.raises(UserError, match="GGUF"):
        find_model("Qwen2.5-7B-Instruct-GGUF")


def test_a_folder_without_a_config_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qwen3-8b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model("qwen3-8b").num_layers == 36


def test_four_bits_with_scales_and_zero_points_of_groups_of_128() -> None:
    quantization = find_model("Qwen2.5-7B-Instruct-AWQ").quantization
    assert quantization is not None
    assert quantization.bytes_per_param == pytest.approx((4 + (16 + 4) / 128) / 8)
    assert quantization.weights_only


def test_the_quantization_flag_wins_over_the_checkpoint() -> None:
    stored = find_model("Qwen2.5-7B-Instruct-GPTQ-Int8").quantization
    assert quantization_from_flag("fp8", stored) == FP8
    assert quantization_from_flag("none", stored) is None
    assert quantization_from_flag("gptq_marlin", stored) == stored  # the checkpoint knows its own bits
    assert quantization_from_flag("compressed-tensors", stored) == stored
    with pytest.raises(UserError, match="quantization: unknown method 'fp9'; known: none, awq"):
        quantization_from_flag("fp9", None)
    with pytest.raises(UserError, match="does not say how many bits"):
        quantization_from_flag("compressed-tensors", None)
