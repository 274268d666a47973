"""Reads a model's shape from a Hugging Face config.json.

A config may leave out what equals its class's default (the published Gemma 3 configs do), so the defaults of the
classes in `transformers` are repeated here for those types whose configs are known to rely on them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim.errors import UserError
from sim.models.hf_quantization import read_quantization
from sim.models.spec import LayerKind, ModelSpec, StateSpace

_LAYER_KINDS: dict[str, LayerKind] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "linear_attention": "state",
    "attention": "full",
}
_GEMMA3 = {
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "sliding_window": 4096, "sliding_window_pattern": 6,
}  # fmt: skip
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2, "max_position_embeddings": 8192},
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gpt_oss": {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2, "max_position_embeddings": 131072},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8},
    "qwen3_next": {"full_attention_interval": 4},
}
_WITHOUT_KV_CACHE = ("bert", "roberta", "mamba", "mamba2", "rwkv", "t5", "bart", "whisper")
_MULTI_STEP = ("jamba", "bamba", "nemotron_h", "falcon_h1", "zamba2", "llama4", "llama4_text", "deepseek_v4")


class _Config:
    """The keys of the language model, with the defaults of its class behind them."""

    def __init__(self, path: Path, raw: dict[str, Any]) -> None:
        self.path = path
        self.raw = raw
        text = raw.get("text_config") or raw.get("llm_config") or raw.get("language_config")
        self.keys: dict[str, Any] = text if isinstance(text, dict) else raw
        self.model_type = str(self.keys.get("model_type") or raw.get("model_type") or "")
        self.defaults = _DEFAULTS.get(self.model_type, {})

    def get(self, *names: str, default: Any = None) -> Any:
        for keys in (self.keys, self.raw, self.defaults):
            for name in names:
                if keys.get(name) is not None:
                    return keys[name]
        return default

    def number(self, *names: str, default: int | None = None) -> int:
        value = self.get(*names, default=default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if value is None:
            raise UserError(f"{self.path}: {names[0]}: missing; without it the KV cache cannot be sized")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(f"{self.path}: {names[0]}: must be a whole number, not {value!r}")
        return value


def read_config(path: Path) -> ModelSpec:
    """Returns the shape that a config.json describes.

    Args:
        path: the file.

    Raises:
        UserError: no such file, not JSON, a needed key is missing, or an architecture that is not supported.
    """
    config = _Config(path, _load(path))
    kind = config.model_type
    _check_supported(config)
    heads = config.number("num_attention_heads", "n_head")
    hidden = config.number("hidden_size", "n_embd")
    layers = config.number("num_hidden_layers", "n_layer")
    layer_types = _layer_types(config, layers)
    max_len, default_len = _context(config)
    gpt_oss = kind == "gpt_oss"
    return ModelSpec(
        name=path.parent.name or str(path),
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_kv_heads=config.number("num_key_value_heads", default=heads),
        head_dim=config.number("head_dim", default=hidden // heads),
        intermediate_size=config.number("intermediate_size", "n_inner", default=4 * hidden),
        vocab_size=config.number("vocab_size"),
        max_position_embeddings=max_len,
        default_max_model_len=default_len,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", default=kind.startswith("gemma"))),
        dtype=str(config.get("torch_dtype", "dtype", default="bfloat16")).removeprefix("torch."),
        attention_bias=bool(config.get("attention_bias", default=kind.startswith("qwen2"))),
        output_bias=gpt_oss,
        qk_norm=kind.startswith(("qwen3", "gemma3", "gemma4")),
        norms_per_layer=4 if kind.startswith(("gemma2", "gemma3", "gemma4")) else 2,
        layer_types=layer_types,
        sliding_window=config.number("sliding_window") if "sliding" in layer_types else None,
        full_num_kv_heads=config.get("num_global_key_value_heads"),
        full_head_dim=config.get("global_head_dim"),
        full_keys_are_values=bool(config.get("attention_k_eq_v", default=False)),
        min_batched_tokens=2496 if kind.startswith("gemma4") and config.keys is not config.raw else 0,
        extra_params=_vision_params(config.raw.get("vision_config")),
        quantization=read_quantization(path, config.get("quantization_config", "compression_config")),
        expert_bias=gpt_oss,
        **_latent_attention(config),
        **_experts(config, layers),
        **_state_space(config),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{path}: must be a JSON object, not {type(raw).__name__}")
    return raw


def _check_supported(config: _Config) -> None:
    kind = config.model_type
    if kind in _WITHOUT_KV_CACHE or kind in _MULTI_STEP:
        raise UserError(
            f"{config.path}: model_type: {kind!r} is not supported; give --kv-bytes-per-token and --weights-gib"
        )
    if config.get("num_kv_shared_layers", default=0):
        raise UserError(f"{config.path}: num_kv_shared_layers: layers that share their KV cache are not supported")


def _layer_types(config: _Config, layers: int) -> tuple[LayerKind, ...]:
    """Returns the kind of every layer, or nothing when all attend to everything.

    The rules of the model code in vLLM: `layer_types` where the config has it; a pattern for Gemma 2 and 3 and gpt-oss
    (every n-th layer is full); Qwen's window only when switched on; otherwise a window holds for every layer.
    """
    listed = config.get("layer_types")
    window = config.get("sliding_window")
    if listed is None:
        pattern = config.get("sliding_window_pattern", "_sliding_window_pattern")
        interval = config.get("full_attention_interval")
        if interval:
            return tuple("full" if (i + 1) % interval == 0 else "state" for i in range(layers))
        off = config.model_type.startswith("qwen") and not config.get("use_sliding_window", default=False)
        if not window or off:
            return ()
        if not pattern:
            pattern = layers + 1  # no layer is a multiple of it: all have the window
        return tuple("full" if (i + 1) % pattern == 0 else "sliding" for i in range(layers))
    kinds = []
    for entry in listed:
        if entry not in _LAYER_KINDS:
            raise UserError(f"{config.path}: layer_types: {entry!r} is not supported; known: {', '.join(_LAYER_KINDS)}")
        kinds.append("full" if entry == "sliding_attention" and not window else _LAYER_KINDS[entry])
    if len(kinds) != layers:
        raise UserError(f"{config.path}: layer_types: has {len(kinds)} entries for {layers} layers")
    return () if set(kinds) == {"full"} else tuple(kinds)


def _context(config: _Config) -> tuple[int, int | None]:
    """Returns the longest context and, for LongRoPE, vLLM's shorter default (its `_get_and_verify_max_len`)."""
    length = config.number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=2048)
    rope = config.get("rope_parameters", "rope_scaling", default={})
    kind = str(rope.get("rope_type", rope.get("type", "default"))) if isinstance(rope, dict) else "default"
    if kind == "longrope":
        return length, config.get(
            "original_max_position_embeddings", default=rope.get("original_max_position_embeddings")
        )
    scaled_already = kind in ("default", "su", "llama3", "yarn", "deepseek_yarn", "proportional", "mrope")
    if not scaled_already and not config.model_type.startswith("gemma3"):
        length = int(length * rope.get("factor", 1.0))
    return length, None


def _latent_attention(config: _Config) -> dict[str, Any]:
    if not config.get("kv_lora_rank"):
        return {}
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {name: config.number(name) for name in names} | {"q_lora_rank": config.number("q_lora_rank", default=0)}


def _experts(config: _Config, layers: int) -> dict[str, Any]:
    num_experts = config.get("num_local_experts", "num_experts", "n_routed_experts", default=0)
    if not num_experts:
        return {}
    dense = config.number("first_k_dense_replace", default=0) + len(config.get("mlp_only_layers", default=[]))
    step = config.number("decoder_sparse_step", default=1)
    width = config.number("moe_intermediate_size", "intermediate_size")
    shared = config.number("shared_expert_intermediate_size", default=0)
    shared += config.number("n_shared_experts", default=0) * width
    if config.get("enable_moe_block"):  # Gemma 4 runs its dense MLP beside the experts
        shared += config.number("intermediate_size")
    return {
        "num_experts": num_experts,
        "num_experts_per_tok": config.number("num_experts_per_tok", "top_k_experts", "experts_per_token"),
        "moe_intermediate_size": width,
        "num_moe_layers": (layers - dense) // max(step, 1),
        "shared_expert_intermediate_size": shared,
        "shared_expert_gate": bool(config.get("shared_expert_intermediate_size")),
    }


def _state_space(config: _Config) -> dict[str, Any]:
    if not config.get("linear_num_value_heads"):
        return {}
    wide = config.get("mamba_ssm_dtype", default="auto") == "float32"
    return {
        "state_space": StateSpace(
            num_key_heads=config.number("linear_num_key_heads"),
            num_value_heads=config.number("linear_num_value_heads"),
            key_head_dim=config.number("linear_key_head_dim"),
            value_head_dim=config.number("linear_value_head_dim"),
            conv_kernel=config.number("linear_conv_kernel_dim", default=4),
            state_bytes_per_element=4 if wide else 2,
        ),
        "attention_output_gate": bool(config.get("attn_output_gate", default=True)),
    }


def _vision_params(vision: Any) -> int:
    """Returns about how many parameters a vision tower has: four projections and an MLP of two layers per block."""
    if not isinstance(vision, dict):
        return 0
    hidden = int(vision.get("hidden_size") or vision.get("embed_dim") or 0)
    layers = int(vision.get("num_hidden_layers") or vision.get("depth") or 0)
    width = int(vision.get("intermediate_size") or hidden * vision.get("mlp_ratio", 4))
    return layers * (4 * hidden * hidden + 2 * hidden * width)
