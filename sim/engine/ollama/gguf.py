"""GGUF files: what Ollama calls a model, how large its file is, and what its context takes.

Sizes come out within 3 % of those in Ollama's library: qwen2.5:7b 4.7 GB, llama3.1:8b 4.9 GB, gpt-oss:20b 14 GB.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from sim.engine.ollama.weights import BITS_PER_WEIGHT, KV_BYTES
from sim.errors import UserError
from sim.models import ModelSpec, Quantization, find_model
from sim.models.params import embedding_params

_SUFFIX = re.compile(rf"-(?:{'|'.join(sorted(BITS_PER_WEIGHT, key=len, reverse=True))}|fp16)$")
_LEAST_BITS = 0.1


def find_gguf(name: str) -> tuple[ModelSpec, str | None]:
    """Returns the shape of a model, and the weight format that its name states, if any.

    Args:
        name: Ollama's (`qwen2.5:7b`, `llama3.1:8b-instruct-q8_0`), Hugging Face's, or the path of a config.json.

    Raises:
        UserError: no such model: Ollama would answer 404.
    """
    if name.endswith(".json") or Path(name).is_dir():
        return _plain(find_model(name)), None
    text = name.replace(":", "-").lower()
    text = re.sub(r"-latest$", "", text)
    suffix = _SUFFIX.search(text)
    weights = None
    if suffix is not None:
        weights = "f16" if suffix[0] == "-fp16" else suffix[0][1:]
        text = text[: suffix.start()]
    for candidate in _spellings(text):
        try:
            return _plain(find_model(candidate)), weights
        except UserError:
            continue
    try:
        return _plain(find_model(text)), weights
    except UserError as error:
        hint = str(error).partition("; ")[2]
        raise UserError(f"model {name!r} not found: the built-in table has none so called; {hint}") from None


def _spellings(text: str) -> list[str]:
    """Ollama writes llama3.1 and gemma3 where others write llama-3.1 and gemma-3, and distillations by their size."""
    dashed = re.sub(r"^(llama|gemma|phi|mistral-small)(\d)", r"\1-\2", text)
    distilled = {
        "deepseek-r1-1.5b": "deepseek-r1-distill-qwen-1.5b", "deepseek-r1-7b": "deepseek-r1-distill-qwen-7b",
        "deepseek-r1-8b": "deepseek-r1-0528-qwen3-8b", "deepseek-r1-14b": "deepseek-r1-distill-qwen-14b",
        "deepseek-r1-32b": "deepseek-r1-distill-qwen-32b", "deepseek-r1-70b": "deepseek-r1-distill-llama-70b",
    }  # fmt: skip
    sized = {"qwen3-30b": "qwen3-30b-a3b", "qwen3-235b": "qwen3-235b-a22b", "mistral-nemo-12b": "mistral-nemo"}
    return [name for name in (distilled.get(text), sized.get(text), dashed, text) if name is not None]


def _plain(spec: ModelSpec) -> ModelSpec:
    """A quantization of the checkpoint's name (-AWQ) is not that of the GGUF file made from the model; gpt-oss keeps
    its own."""
    own = spec.quantization is not None and spec.quantization.experts_only
    return spec if own else replace(spec, quantization=None)


def file_bytes(spec: ModelSpec, weights: str) -> float:
    """Returns the size of the model's file, which is what its weights take in memory."""
    bits = BITS_PER_WEIGHT[weights]
    if spec.quantization is None or weights != "mxfp4":
        return spec.num_params * bits / 8
    experts = sum(spec.layer(index).experts for index in range(spec.num_layers))
    return experts * bits / 8 + (spec.num_params - experts) * 2


def as_read(spec: ModelSpec, num_bytes: float) -> ModelSpec:
    """Returns the shape with a weight format of which one step reads what a step of llama.cpp reads of the file.

    The roofline prices the output head in 16 bits; in a GGUF file it is quantized as all else, and of an embedding of
    its own only single rows are read. The bits of the layers make up for both.
    """
    if spec.quantization is not None:  # gpt-oss is quantized as it comes
        return spec
    head = embedding_params(spec)
    linear, read = spec.num_params - head, num_bytes
    if not spec.tie_word_embeddings:
        linear -= head
        read -= num_bytes * head / spec.num_params
    bits = max(_LEAST_BITS, 8 * (read - 2 * head) / linear)
    return replace(spec, quantization=Quantization("gguf", bits))


def context_bytes_per_token(spec: ModelSpec, kv_type: str) -> float:
    """Returns what one token of context takes: layers x 2 x kv_heads x head_dim x bytes of the cache type.

    Latent attention keeps one vector. Sliding layers count in full: llama-server's shorter cache for them is left out.
    """
    return _elements_per_token(spec) * KV_BYTES[kv_type]


def predicted_bytes_per_token(spec: ModelSpec) -> float:
    """Returns what Ollama's fit test counts for a token: 16 bits whatever the cache type (llama_server.go)."""
    return _elements_per_token(spec) * 2


def _elements_per_token(spec: ModelSpec) -> int:
    if spec.is_mla:
        return spec.num_layers * (spec.kv_lora_rank + spec.qk_rope_head_dim)
    return sum(2 * spec.kv_heads(kind) * spec.head_size(kind) for kind in spec.kinds if kind != "state")
