"""The weight formats of GGUF files and the types of a context.

Bits per weight are those of whole files of Llama-3.1-8B, from llama.cpp's quantization table (tools/quantize): the mix
of types within a file is in them.
"""

from __future__ import annotations

import difflib

BITS_PER_WEIGHT: dict[str, float] = {
    "f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.50, "q6_k": 6.56, "q5_k_m": 5.70, "q5_k_s": 5.57, "q5_1": 6.0,
    "q5_0": 5.54, "q4_k_m": 4.89, "q4_k_s": 4.67, "q4_1": 5.0, "q4_0": 4.66, "iq4_nl": 4.68, "iq4_xs": 4.46,
    "q3_k_l": 4.30, "q3_k_m": 4.00, "q3_k_s": 3.64, "q2_k": 3.16, "mxfp4": 4.25,
}  # fmt: skip

KV_BYTES: dict[str, float] = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Bytes of one element of the context, by OLLAMA_KV_CACHE_TYPE: blocks of 32 with a 16-bit scale."""

DEFAULT_WEIGHTS = "q4_k_m"
"""What the library's plain tags (qwen2.5:7b) are."""


def check_weights(weights: str) -> str:
    """Returns a weight format in lower case.

    Raises:
        ValueError: unknown.
    """
    key = weights.lower()
    if key in BITS_PER_WEIGHT:
        return key
    near = difflib.get_close_matches(key, BITS_PER_WEIGHT, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(BITS_PER_WEIGHT)}"
    raise ValueError(f"unknown weight format; got {weights!r}; {hint}")
