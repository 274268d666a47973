"""Weight quantization: how many bytes a linear layer's parameter takes.

Only the linear layers inside the transformer blocks are quantized; embeddings, the output head, norms, biases and MoE
routers keep the model's own type, in every checkpoint format listed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import UserError


@dataclass(frozen=True, slots=True)
class Quantization:
    """A weight format.

    Attributes:
        method: `awq`, `gptq`, `w4a16`, `w8a16`, `w8a8` (INT8), `fp8`, `mxfp4`, `nvfp4` or `bitsandbytes`.
        bits: bits of a stored weight.
        group_size: weights that share a scale; 0: one scale a channel or a large tile (its bytes are neglected).
        scale_bits: bits of one scale, and of one zero point where the format stores any.
        experts_only: only the routed experts are quantized (gpt-oss).
    """

    method: str
    bits: float
    group_size: int = 0
    scale_bits: float = 0
    experts_only: bool = False

    @property
    def bytes_per_param(self) -> float:
        """Bytes of one quantized parameter, its share of the scales included."""
        return (self.bits + (self.scale_bits / self.group_size if self.group_size else 0)) / 8

    @property
    def weights_only(self) -> bool:
        """Whether the matrix products run in 16 bits all the same (the weights are unpacked on the fly)."""
        return self.method not in {"fp8", "w8a8", "nvfp4"}


def _grouped(method: str, bits: int, group_size: int, *, zero_points: bool) -> Quantization:
    return Quantization(method, bits, group_size, 16 + (bits if zero_points else 0))


AWQ = _grouped("awq", 4, 128, zero_points=True)
FP8 = Quantization("fp8", 8)
W8A8 = Quantization("w8a8", 8)
MXFP4 = Quantization("mxfp4", 4, 32, 8)
NVFP4 = Quantization("nvfp4", 4, 16, 8)
BITSANDBYTES = Quantization("bitsandbytes", 4, 64, 32)
GPT_OSS_MXFP4 = Quantization("mxfp4", 4, 32, 8, experts_only=True)


def gptq(bits: int = 4, group_size: int = 128) -> Quantization:
    """Returns GPTQ with that many bits; a negative group size means one scale a channel."""
    return _grouped("gptq", bits, max(group_size, 0), zero_points=True)


def packed(bits: int = 4, group_size: int = 128) -> Quantization:
    """Returns the symmetric weight-only integer format of compressed-tensors: W4A16 or W8A16."""
    return _grouped(f"w{bits}a16", bits, max(group_size, 0), zero_points=False)


_FLAG_VALUES: dict[str, Quantization | None] = {
    "none": None,
    "awq": AWQ,
    "awq_marlin": AWQ,
    "gptq": gptq(),
    "gptq_marlin": gptq(),
    "moe_wna16": gptq(),
    "fp8": FP8,
    "fbgemm_fp8": FP8,
    "ptpc_fp8": FP8,
    "modelopt": FP8,
    "modelopt_fp4": NVFP4,
    "nvfp4": NVFP4,
    "mxfp4": MXFP4,
    "bitsandbytes": BITSANDBYTES,
    "w4a16": packed(),
    "w8a16": packed(8, 0),
    "w8a8": W8A8,
    "int8": W8A8,
}
_AS_STORED = frozenset({"compressed-tensors", "auto", "auto-round", "quark", "inc"})


def quantization_from_flag(flag: str, stored: Quantization | None) -> Quantization | None:
    """Returns what `--quantization FLAG` makes of a checkpoint.

    Args:
        flag: vLLM's name of the method; `none` for unquantized weights.
        stored: what the checkpoint itself declares.

    Raises:
        UserError: an unknown method, or a container format (compressed-tensors) of a checkpoint that declares nothing.
    """
    key = flag.lower()
    if key in _AS_STORED:
        if stored is None:
            raise UserError(
                f"quantization: {flag} does not say how many bits the weights have, and the model's name or config "
                "doesn't either; give fp8, w8a8, w4a16, awq or gptq"
            )
        return stored
    if key not in _FLAG_VALUES:
        known = ", ".join([*_FLAG_VALUES, *sorted(_AS_STORED)])
        raise UserError(f"quantization: unknown method {flag!r}; known: {known}")
    value = _FLAG_VALUES[key]
    # The checkpoint knows its bits and groups better than the name of the method does.
    if value is not None and stored is not None and stored.method.split("_")[0] == value.method.split("_")[0]:
        return stored
    return value
