"""A tiny random-weight Llama for the CPU build of vLLM: config.json and a tokenizer (`--load-format dummy`).

The engine, scheduler, KV cache and API server are real; only what the model says is noise. 8 layers of width 512 cost
about 15 ms a decode step on one core, slow enough that the scheduler's steps dominate everything else.
"""

from __future__ import annotations

import json
from pathlib import Path

VOCAB_SIZE = 16_384
_SPECIAL = ("<unk>", "<s>", "</s>")

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1_376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 4_096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def write_tiny_model(folder: Path) -> Path:
    """Writes the model's files into `folder` (made if missing) and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG, indent=1) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()) + "\n", encoding="utf-8")
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4_096, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n", encoding="utf-8")
    return folder


def _tokenizer() -> dict[str, object]:
    """One word a token: t3, t4, …, so that a prompt of n words is a prompt of n tokens."""
    vocab = {name: i for i, name in enumerate(_SPECIAL)}
    vocab |= {f"t{i}": i for i in range(len(_SPECIAL), VOCAB_SIZE)}
    special = [
        {"id": i, "content": name, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, name in enumerate(_SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }
