"""A config.json gives the same shape as the table, whatever its architecture writes and leaves out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.errors import UserError
from sim.models import ModelSpec, find_model

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 32768,
    "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "vocab_size": 151936, "max_position_embeddings": 40960, "sliding_window": None, "attention_bias": False,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 128,
    "num_experts_per_tok": 4, "vocab_size": 201088, "max_position_embeddings": 131072, "sliding_window": 128,
    "attention_bias": True, "layer_types": ["sliding_attention", "full_attention"] * 18,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip
GEMMA3 = {  # the published file leaves out what equals the class's defaults
    "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "vision_config": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    },
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 192,
    "vocab_size": 129280, "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
PHI3 = {
    "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096, "sliding_window": 2047, "rope_scaling": None,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": None,
}  # fmt: skip
QWEN3_NEXT = {
    "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10, "decoder_sparse_step": 1,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 151936,
    "max_position_embeddings": 262144,
}  # fmt: skip
GEMMA4 = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text", "hidden_size": 5376, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 16, "num_global_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
        "intermediate_size": 21504, "vocab_size": 262144, "max_position_embeddings": 262144, "sliding_window": 1024,
        "attention_k_eq_v": True, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
        "tie_word_embeddings": True,
    },
}  # fmt: skip


def read(folder: Path, config: dict[str, Any]) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(config))
    return find_model(folder / "config.json")


@pytest.mark.parametrize(
    ("config", "name", "differences"),
    [
        (LLAMA, "llama-3.1-8b", {}),
        (QWEN2, "qwen2.5-7b", {}),
        (QWEN3_MOE, "qwen3-30b-a3b", {}),
        (GPT_OSS, "gpt-oss-120b", {}),
        (DEEPSEEK, "deepseek-v3", {}),
        (PHI3, "phi-3-mini-4k", {}),
        (MIXTRAL, "mixtral-8x7b", {}),
        (QWEN3_NEXT, "qwen3-next-80b-a3b", {}),
        (GEMMA3, "gemma-3-4b", {"extra_params": True}),  # an estimate from the vision tower's width
        (GEMMA4, "gemma-4-31b", {"extra_params": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_gives_the_shape_of_the_table(
    tmp_path: Path, config: dict[str, Any], name: str, differences: dict[str, bool]
) -> None:
    found, expected = read(tmp_path, config), find_model(name)
    same = {"name": expected.name} | {key: getattr(expected, key) for key in differences}
    assert replace(found, **same) == expected
    assert found.num_params == pytest.approx(expected.num_params, rel=0.02)


def test_a_folder_stands_for_its_config(tmp_path: Path) -> None:
    read(tmp_path, LLAMA)
    assert find_model(tmp_path).num_layers == 32


@pytest.mark.parametrize(
    ("quantization", "method", "bits", "group_size"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 4, 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq", 4, 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq", 8, 0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", 4, 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "w8a8", 8, 0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4, 16),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
            },
            "w4a16", 4, 128,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {}}},
            },
            "fp8", 8, 0,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {}}},
            },
            "w8a8", 8, 0,
        ),
    ],
)  # fmt: skip
def test_the_weight_format_is_read(
    tmp_path: Path, quantization: dict[str, Any], method: str, bits: int, group_size: int
) -> None:
    found = read(tmp_path, LLAMA | {"quantization_config": quantization}).quantization
    assert found is not None
    assert (found.method, found.bits, found.group_size) == (method, bits, group_size)


def test_long_rope_defaults_to_the_original_context(tmp_path: Path) -> None:
    """vLLM serves it at the original length unless max_model_len is given."""
    config = PHI3 | {
        "max_position_embeddings": 131072,
        "rope_scaling": {"type": "longrope", "short_factor": [], "long_factor": []},
    }
    model = read(tmp_path, config)
    assert (model.max_position_embeddings, model.default_max_model_len) == (131072, 4096)


def test_linear_rope_scaling_multiplies_the_context(tmp_path: Path) -> None:
    model = read(tmp_path, LLAMA | {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}})
    assert model.max_position_embeddings == 16384


def test_a_window_without_a_pattern_holds_for_every_layer(tmp_path: Path) -> None:
    model = read(tmp_path, LLAMA | {"model_type": "mistral", "sliding_window": 4096})
    assert model.num_sliding_layers == model.num_layers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"config\.json:1:2: not valid JSON"),
        ("[]", r"config\.json: must be a JSON object, not list"),
        (json.dumps({"model_type": "llama"}), "num_attention_heads: missing"),
        (json.dumps(LLAMA | {"hidden_size": "4096"}), "hidden_size: must be a whole number, not '4096'"),
        (json.dumps(LLAMA | {"model_type": "mamba2"}), "model_type: 'mamba2' is not supported"),
        (json.dumps(LLAMA | {"layer_types": ["full_attention"]}), "layer_types: has 1 entries for 32 layers"),
        (json.dumps(LLAMA | {"layer_types": ["odd"] * 32}), "layer_types: 'odd' is not supported"),
        (json.dumps(LLAMA | {"num_kv_shared_layers": 10}), "share their KV cache"),
        (json.dumps(LLAMA | {"quantization_config": {"quant_method": "odd"}}), "unknown 'odd'; known: auto-round"),
    ],
)
def test_a_config_that_cannot_be_used_says_which_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=message):
        find_model(tmp_path / "config.json")


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        find_model(tmp_path / "config.json")
