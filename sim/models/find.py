"""Finds a model by its Hugging Face name, or reads it from a config.json."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from pathlib import Path

from sim.errors import UnknownNameError
from sim.models.quantization import (
    AWQ,
    BITSANDBYTES,
    FP8,
    MXFP4,
    NVFP4,
    W8A8,
    Quantization,
    gptq,
    packed,
)
from sim.models.spec import ModelSpec
from sim.models.table import ALIASES, MODELS

# Longest first: a checkpoint is called "…-GPTQ-Int8", and "-int8" alone means INT8 activations too.
_QUANTIZATION_SUFFIXES: tuple[tuple[str, Quantization | None], ...] = (
    (r"gptq-int8|gptq-8bit", gptq(8)),
    (r"gptq-int4|gptq-4bit|gptq", gptq()),
    (r"awq-int4|awq-4bit|awq-marlin|qat-awq-int4|awq", AWQ),
    (r"quantized-w4a16|int4-w4a16|w4a16-g128|w4a16", packed()),
    (r"quantized-w8a16|w8a16", packed(8, 0)),
    (r"quantized-w8a8|w8a8-int8|w8a8|int8", W8A8),
    (r"fp8-dynamic|fp8-block|fp8-kv|fp8", FP8),
    (r"nvfp4|fp4", NVFP4),
    (r"mxfp4", MXFP4),
    (r"unsloth-bnb-4bit|bnb-4bit|bnb", BITSANDBYTES),
    (r"autoround-int4|int4|4bit", packed()),
    (r"bf16|bfloat16|fp16|float16|half", None),
)
_PLAIN_SUFFIXES = re.compile(r"-(instruct|chat|it|base|hf|thinking|pt|qat|sft|text|\d{4}|v\d+(\.\d+)*)$")


def find_model(name_or_path: str | Path) -> ModelSpec:
    """Returns the shape of a model.

    Args:
        name_or_path: a Hugging Face id, with or without organisation, in any case; suffixes such as -Instruct, -AWQ,
            -GPTQ-Int4, -FP8, -W4A16 are understood, the latter as the weight format. Or the path of a config.json, or
            of the folder that holds it.

    Raises:
        UnknownNameError: no such model, with the nearest names.
        UserError: a config that cannot be read or used.
    """
    path = Path(name_or_path)
    if path.name.endswith(".json") or (path.is_dir() and (path / "config.json").exists()):
        from sim.models.hf_config import read_config  # noqa: PLC0415 - json is needed for files alone

        return read_config(path if path.name.endswith(".json") else path / "config.json")
    return _by_name(str(name_or_path))


def model_names() -> tuple[str, ...]:
    """Returns the names of the built-in table, sorted."""
    return tuple(sorted([*MODELS, *ALIASES]))


def _by_name(name: str) -> ModelSpec:
    text = _normal(name)
    if "gguf" in text:
        raise UnknownNameError(
            f"model: {name!r} is a GGUF file, whose weight formats are not in the table; use a config.json"
        )
    quantization: Quantization | None = None
    declared = False
    while True:
        spec = _lookup(text)
        if spec is not None:
            spec = replace(spec, name=name)
            return replace(spec, quantization=quantization) if declared else spec
        shorter, found = _strip_quantization(text)
        if shorter != text:
            # The last suffix decides nothing that an earlier one already did ("-Int4-W4A16").
            quantization, declared = (quantization, declared) if declared else (found, True)
        else:
            shorter = _PLAIN_SUFFIXES.sub("", text)
        if shorter == text:
            raise _unknown(name)
        text = shorter


def _normal(name: str) -> str:
    text = name.strip().rstrip("/").rsplit("/", 1)[-1].lower().replace("_", "-").replace(" ", "-")
    text = text.replace("quantized.w", "quantized-w")
    return re.sub(r"^meta-", "", text)


def _lookup(text: str) -> ModelSpec | None:
    if text in MODELS:
        return MODELS[text]
    if text in ALIASES:
        target, changes = ALIASES[text]
        return replace(MODELS[target], **changes)
    return None


def _strip_quantization(text: str) -> tuple[str, Quantization | None]:
    for pattern, quantization in _QUANTIZATION_SUFFIXES:
        shorter = re.sub(rf"-(?:{pattern})$", "", text)
        if shorter != text:
            return shorter, quantization
    return text, None


def _unknown(name: str) -> UnknownNameError:
    text = _normal(name)
    near = difflib.get_close_matches(text, model_names(), n=3, cutoff=0.55)
    hint = f"did you mean {' or '.join(near)}?" if near else "`headcount size --list-models` lists the table."
    return UnknownNameError(f"model: unknown model {name!r}; {hint} A path to a Hugging Face config.json also works")
