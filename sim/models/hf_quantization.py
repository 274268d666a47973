"""Reads the weight format from the `quantization_config` of a Hugging Face config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.errors import UserError
from sim.models.quantization import AWQ, BITSANDBYTES, FP8, GPT_OSS_MXFP4, NVFP4, W8A8, Quantization, gptq, packed


def read_quantization(path: Path, config: Any) -> Quantization | None:
    """Returns the format that a `quantization_config` declares; None when there is none.

    Raises:
        UserError: a format that is not known.
    """
    if not isinstance(config, dict):
        return None
    method = str(config.get("quant_method") or config.get("quantization_method") or "").lower()
    bits = int(config.get("bits") or config.get("w_bit") or 4)
    group_size = int(config.get("group_size") or config.get("q_group_size") or 128)
    match method:
        case "awq":
            return AWQ if group_size == 128 else Quantization("awq", bits, max(group_size, 0), 16 + bits)
        case "gptq":
            return gptq(bits, group_size)
        case "auto-round" | "autoround" | "intel/auto-round":
            return packed(bits, group_size)
        case "fp8" | "fbgemm_fp8":
            return FP8
        case "mxfp4":
            return GPT_OSS_MXFP4
        case "bitsandbytes":
            return W8A8 if config.get("load_in_8bit") else BITSANDBYTES
        case "compressed-tensors":
            return _compressed_tensors(path, config)
        case "modelopt":
            algorithm = str(config.get("quant_algo") or config.get("quantization", {}).get("quant_algo", "")).upper()
            return NVFP4 if "FP4" in algorithm else FP8
        case _:
            raise UserError(
                f"{path}: quantization_config.quant_method: unknown {method!r}; known: auto-round, awq, bitsandbytes, "
                "compressed-tensors, fp8, gptq, modelopt, mxfp4"
            )


def _compressed_tensors(path: Path, config: dict[str, Any]) -> Quantization:
    """Returns the format of the first group: checkpoints that mix formats are rare, and mostly of one width."""
    groups = config.get("config_groups")
    group: Any = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise UserError(f"{path}: quantization_config.config_groups: no weights described")
    bits = int(weights.get("num_bits") or 8)
    if weights.get("type") == "float":
        return FP8 if bits == 8 else NVFP4
    if isinstance(group.get("input_activations"), dict) and bits == 8:
        return W8A8
    return packed(bits, int(weights.get("group_size") or 0))
