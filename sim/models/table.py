"""The built-in table: shapes of common models, from their config.json on Hugging Face.

A row is keyed by the model's name in lower case, without organisation and without the suffixes that `find` strips
(-instruct, -fp8, …). `ALIASES` names models of equal shape.
"""

from __future__ import annotations

from typing import Any

from sim.models.quantization import FP8, GPT_OSS_MXFP4
from sim.models.spec import LayerKind, ModelSpec, StateSpace


def _dense(name: str, layers: int, hidden: int, heads: tuple[int, int, int], width: int, **more: Any) -> ModelSpec:
    """Builds a row: heads = (attention heads, key-value heads, head size), width = the MLP's intermediate size."""
    query, kv, head_dim = heads
    return ModelSpec(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=query,
        num_kv_heads=kv,
        head_dim=head_dim,
        intermediate_size=width,
        **more,
    )


def _pattern(layers: int, period: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    return tuple(period[i % len(period)] for i in range(layers))


_EVERY_OTHER: tuple[LayerKind, ...] = ("sliding", "full")
_FIVE_TO_ONE: tuple[LayerKind, ...] = ("sliding",) * 5 + ("full",)

_QWEN2: dict[str, Any] = {"attention_bias": True, "max_position_embeddings": 32768}
_QWEN3: dict[str, Any] = {"vocab_size": 151936, "qk_norm": True, "max_position_embeddings": 40960}
_QWEN3_MOE: dict[str, Any] = {**_QWEN3, "num_experts": 128, "num_experts_per_tok": 8}
_LLAMA31: dict[str, Any] = {"vocab_size": 128256, "max_position_embeddings": 131072}
_GEMMA2: dict[str, Any] = {
    "vocab_size": 256000, "tie_word_embeddings": True, "norms_per_layer": 4, "sliding_window": 4096,
    "max_position_embeddings": 8192,
}  # fmt: skip
_GEMMA3: dict[str, Any] = {
    "vocab_size": 262208, "tie_word_embeddings": True, "norms_per_layer": 4, "qk_norm": True, "sliding_window": 1024,
    "max_position_embeddings": 131072, "extra_params": 420_000_000,
}  # fmt: skip
_GEMMA4: dict[str, Any] = {
    "vocab_size": 262144, "tie_word_embeddings": True, "norms_per_layer": 4, "qk_norm": True, "sliding_window": 1024,
    "max_position_embeddings": 262144, "full_head_dim": 512, "full_keys_are_values": True, "min_batched_tokens": 2496,
    "extra_params": 550_000_000,
}  # fmt: skip
_GPT_OSS: dict[str, Any] = {
    "vocab_size": 201088, "attention_bias": True, "output_bias": True, "expert_bias": True, "sliding_window": 128,
    "max_position_embeddings": 131072, "num_experts_per_tok": 4, "moe_intermediate_size": 2880,
    "quantization": GPT_OSS_MXFP4,
}  # fmt: skip
_DEEPSEEK: dict[str, Any] = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "max_position_embeddings": 163840,
}  # fmt: skip

_ROWS: tuple[ModelSpec, ...] = (
    # Qwen 2 and 2.5
    _dense("qwen2.5-0.5b", 24, 896, (14, 2, 64), 4864, vocab_size=151936, tie_word_embeddings=True, **_QWEN2),
    _dense("qwen2.5-1.5b", 28, 1536, (12, 2, 128), 8960, vocab_size=151936, tie_word_embeddings=True, **_QWEN2),
    _dense("qwen2.5-3b", 36, 2048, (16, 2, 128), 11008, vocab_size=151936, tie_word_embeddings=True, **_QWEN2),
    _dense("qwen2.5-7b", 28, 3584, (28, 4, 128), 18944, vocab_size=152064, **_QWEN2),
    _dense("qwen2.5-14b", 48, 5120, (40, 8, 128), 13824, vocab_size=152064, **_QWEN2),
    _dense("qwen2.5-32b", 64, 5120, (40, 8, 128), 27648, vocab_size=152064, **_QWEN2),
    _dense("qwen2.5-72b", 80, 8192, (64, 8, 128), 29568, vocab_size=152064, **_QWEN2),
    _dense(
        "qwen1.5-moe-a2.7b", 24, 2048, (16, 16, 128), 5632, vocab_size=151936, num_experts=60, num_experts_per_tok=4,
        moe_intermediate_size=1408, num_moe_layers=24, shared_expert_intermediate_size=5632, shared_expert_gate=True,
        attention_bias=True, max_position_embeddings=8192,
    ),
    # Qwen 3
    _dense("qwen3-0.6b", 28, 1024, (16, 8, 128), 3072, tie_word_embeddings=True, **_QWEN3),
    _dense("qwen3-1.7b", 28, 2048, (16, 8, 128), 6144, tie_word_embeddings=True, **_QWEN3),
    _dense("qwen3-4b", 36, 2560, (32, 8, 128), 9728, tie_word_embeddings=True, **_QWEN3),
    _dense("qwen3-8b", 36, 4096, (32, 8, 128), 12288, **_QWEN3),
    _dense("qwen3-14b", 40, 5120, (40, 8, 128), 17408, **_QWEN3),
    _dense("qwen3-32b", 64, 5120, (64, 8, 128), 25600, **_QWEN3),
    _dense(
        "qwen3-30b-a3b", 48, 2048, (32, 4, 128), 6144, moe_intermediate_size=768, num_moe_layers=48, **_QWEN3_MOE
    ),
    _dense(
        "qwen3-235b-a22b", 94, 4096, (64, 4, 128), 12288, moe_intermediate_size=1536, num_moe_layers=94, **_QWEN3_MOE
    ),
    _dense(
        "qwen3-coder-480b-a35b", 62, 6144, (96, 8, 128), 8192, moe_intermediate_size=2560, num_moe_layers=62,
        **{**_QWEN3_MOE, "num_experts": 160, "max_position_embeddings": 262144},
    ),
    _dense(
        "qwen3-next-80b-a3b", 48, 2048, (16, 2, 256), 5120, moe_intermediate_size=512, num_moe_layers=48,
        shared_expert_intermediate_size=512, shared_expert_gate=True, attention_output_gate=True,
        layer_types=_pattern(48, ("state", "state", "state", "full")),
        state_space=StateSpace(num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128),
        **{**_QWEN3, "num_experts": 512, "num_experts_per_tok": 10, "max_position_embeddings": 262144},
    ),
    # Llama
    _dense("llama-2-7b", 32, 4096, (32, 32, 128), 11008, vocab_size=32000, max_position_embeddings=4096),
    _dense("llama-2-13b", 40, 5120, (40, 40, 128), 13824, vocab_size=32000, max_position_embeddings=4096),
    _dense("llama-2-70b", 80, 8192, (64, 8, 128), 28672, vocab_size=32000, max_position_embeddings=4096),
    _dense("llama-3-8b", 32, 4096, (32, 8, 128), 14336, vocab_size=128256, max_position_embeddings=8192),
    _dense("llama-3-70b", 80, 8192, (64, 8, 128), 28672, vocab_size=128256, max_position_embeddings=8192),
    _dense("llama-3.1-8b", 32, 4096, (32, 8, 128), 14336, **_LLAMA31),
    _dense("llama-3.1-70b", 80, 8192, (64, 8, 128), 28672, **_LLAMA31),
    _dense("llama-3.1-405b", 126, 16384, (128, 8, 128), 53248, **_LLAMA31),
    _dense("llama-3.2-1b", 16, 2048, (32, 8, 64), 8192, tie_word_embeddings=True, **_LLAMA31),
    _dense("llama-3.2-3b", 28, 3072, (24, 8, 128), 8192, tie_word_embeddings=True, **_LLAMA31),
    _dense("codellama-7b", 32, 4096, (32, 32, 128), 11008, vocab_size=32016, max_position_embeddings=16384),
    _dense("tinyllama-1.1b", 22, 2048, (32, 4, 64), 5632, vocab_size=32000, max_position_embeddings=2048),
    _dense("yi-34b", 60, 7168, (56, 8, 128), 20480, vocab_size=64000, max_position_embeddings=4096),
    # Mistral
    _dense(
        "mistral-7b-v0.1", 32, 4096, (32, 8, 128), 14336, vocab_size=32000, max_position_embeddings=32768,
        sliding_window=4096, layer_types=_pattern(32, ("sliding",)),
    ),
    _dense("mistral-7b-v0.2", 32, 4096, (32, 8, 128), 14336, vocab_size=32000, max_position_embeddings=32768),
    _dense("mistral-7b", 32, 4096, (32, 8, 128), 14336, vocab_size=32768, max_position_embeddings=32768),
    _dense("mistral-nemo", 40, 5120, (32, 8, 128), 14336, vocab_size=131072, max_position_embeddings=131072),
    _dense("mistral-small-24b", 40, 5120, (32, 8, 128), 32768, vocab_size=131072, max_position_embeddings=32768),
    _dense(
        "mistral-small-3.1-24b", 40, 5120, (32, 8, 128), 32768, vocab_size=131072, max_position_embeddings=131072,
        extra_params=439_000_000,
    ),
    _dense("mistral-large-2407", 88, 12288, (96, 8, 128), 28672, vocab_size=32768, max_position_embeddings=131072),
    _dense(
        "mixtral-8x7b", 32, 4096, (32, 8, 128), 14336, vocab_size=32000, max_position_embeddings=32768,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=14336, num_moe_layers=32,
    ),
    _dense(
        "mixtral-8x22b", 56, 6144, (48, 8, 128), 16384, vocab_size=32768, max_position_embeddings=65536,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16384, num_moe_layers=56,
    ),
    # Phi
    _dense(
        "phi-3-mini-4k", 32, 3072, (32, 32, 96), 8192, vocab_size=32064, max_position_embeddings=4096,
        sliding_window=2047, layer_types=_pattern(32, ("sliding",)),
    ),
    _dense(
        "phi-3-mini-128k", 32, 3072, (32, 32, 96), 8192, vocab_size=32064, max_position_embeddings=131072,
        default_max_model_len=4096,
    ),
    _dense("phi-4", 40, 5120, (40, 10, 128), 17920, vocab_size=100352, max_position_embeddings=16384),
    # gpt-oss
    _dense(
        "gpt-oss-20b", 24, 2880, (64, 8, 64), 2880, num_experts=32, num_moe_layers=24,
        layer_types=_pattern(24, _EVERY_OTHER), **_GPT_OSS,
    ),
    _dense(
        "gpt-oss-120b", 36, 2880, (64, 8, 64), 2880, num_experts=128, num_moe_layers=36,
        layer_types=_pattern(36, _EVERY_OTHER), **_GPT_OSS,
    ),
    # Gemma
    _dense("gemma-2-2b", 26, 2304, (8, 4, 256), 9216, layer_types=_pattern(26, _EVERY_OTHER), **_GEMMA2),
    _dense("gemma-2-9b", 42, 3584, (16, 8, 256), 14336, layer_types=_pattern(42, _EVERY_OTHER), **_GEMMA2),
    _dense("gemma-2-27b", 46, 4608, (32, 16, 128), 36864, layer_types=_pattern(46, _EVERY_OTHER), **_GEMMA2),
    _dense(
        "gemma-3-1b", 26, 1152, (4, 1, 256), 6912, layer_types=_pattern(26, _FIVE_TO_ONE),
        **{
            **_GEMMA3, "vocab_size": 262144, "sliding_window": 512, "extra_params": 0, "max_position_embeddings": 32768,
        },
    ),
    _dense("gemma-3-4b", 34, 2560, (8, 4, 256), 10240, layer_types=_pattern(34, _FIVE_TO_ONE), **_GEMMA3),
    _dense("gemma-3-12b", 48, 3840, (16, 8, 256), 15360, layer_types=_pattern(48, _FIVE_TO_ONE), **_GEMMA3),
    _dense("gemma-3-27b", 62, 5376, (32, 16, 128), 21504, layer_types=_pattern(62, _FIVE_TO_ONE), **_GEMMA3),
    _dense(
        "gemma-4-31b", 60, 5376, (32, 16, 256), 21504, layer_types=_pattern(60, _FIVE_TO_ONE), full_num_kv_heads=4,
        **_GEMMA4,
    ),
    _dense(
        "gemma-4-26b-a4b", 30, 2816, (16, 8, 256), 2112, layer_types=_pattern(30, _FIVE_TO_ONE), full_num_kv_heads=2,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=704, num_moe_layers=30,
        shared_expert_intermediate_size=2112, **_GEMMA4,
    ),
    # DeepSeek: latent attention; head_dim is that of a query
    _dense(
        "deepseek-v2-lite", 27, 2048, (16, 16, 192), 10944, vocab_size=102400, num_experts=64, num_experts_per_tok=6,
        moe_intermediate_size=1408, num_moe_layers=26, shared_expert_intermediate_size=2816, **_DEEPSEEK,
    ),
    _dense(
        "deepseek-v3", 61, 7168, (128, 128, 192), 18432, vocab_size=129280, q_lora_rank=1536, num_experts=256,
        num_experts_per_tok=8, moe_intermediate_size=2048, num_moe_layers=58, shared_expert_intermediate_size=2048,
        quantization=FP8, **_DEEPSEEK,
    ),
)  # fmt: skip

MODELS: dict[str, ModelSpec] = {row.name: row for row in _ROWS}

_DISTILLED_CONTEXT = {"max_position_embeddings": 131072}
_LONG = {"max_position_embeddings": 262144}
_VISION_25 = {"max_position_embeddings": 128000, "extra_params": 677_000_000}

ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"qwen2-{size}": (f"qwen2.5-{size}", {}) for size in ("0.5b", "1.5b", "7b", "72b")},
    **{f"qwen2.5-coder-{size}": (f"qwen2.5-{size}", {}) for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b")},
    **{f"qwen2.5-vl-{size}": (f"qwen2.5-{size}", _VISION_25) for size in ("3b", "7b", "32b", "72b")},
    **{f"deepseek-r1-distill-qwen-{size}": (f"qwen2.5-{size}", _DISTILLED_CONTEXT) for size in ("7b", "14b", "32b")},
    "deepseek-r1-distill-qwen-1.5b": ("qwen2.5-1.5b", {"tie_word_embeddings": False, **_DISTILLED_CONTEXT}),
    "deepseek-r1-distill-llama-8b": ("llama-3.1-8b", {}),
    "deepseek-r1-distill-llama-70b": ("llama-3.1-70b", {}),
    "deepseek-r1-0528-qwen3-8b": ("qwen3-8b", _DISTILLED_CONTEXT),
    "deepseek-coder-v2-lite": ("deepseek-v2-lite", {}),
    "deepseek-r1": ("deepseek-v3", {}),
    "deepseek-v3.1": ("deepseek-v3", {}),
    "qwq-32b": ("qwen2.5-32b", {"max_position_embeddings": 40960}),
    # The releases of July 2025 have a longer native context.
    **{
        f"{name}-{kind}-2507": (name, _LONG)
        for name in ("qwen3-4b", "qwen3-30b-a3b", "qwen3-235b-a22b")
        for kind in ("instruct", "thinking")
    },
    "qwen3-coder-30b-a3b": ("qwen3-30b-a3b", _LONG),
    "qwen3-vl-30b-a3b": ("qwen3-30b-a3b", {**_LONG, "extra_params": 540_000_000}),
    "llama-3.3-70b": ("llama-3.1-70b", {}),
    "mistral-7b-v0.3": ("mistral-7b", {}),
    "mistral-small-24b-instruct-2501": ("mistral-small-24b", {}),
    "mistral-small-3.2-24b": ("mistral-small-3.1-24b", {}),
    "mistral-nemo-instruct-2407": ("mistral-nemo", {}),
    "mixtral-8x7b-v0.1": ("mixtral-8x7b", {}),
    "mixtral-8x22b-v0.1": ("mixtral-8x22b", {}),
    "tinyllama-1.1b-chat-v1.0": ("tinyllama-1.1b", {}),
}
