"""The built-in table of GPUs: memory, bandwidth and dense matrix speed.

Figures are those of the makers' public data sheets and architecture white papers (NVIDIA H100, H200, A100, L4, L40S,
A10, T4, V100, RTX Ada and Blackwell, DGX Spark; AMD MI300X; AWS for the A10G), **without** structured sparsity: where
a sheet prints only the sparse figure, half of it is taken. Consumer cards are listed with FP32 accumulation, which is
what inference kernels use and half of the headline figure. `memory_gib` is the total that CUDA reports to PyTorch (the
`total_memory` in the log of vLLM), always less than what is printed on the box: ECC and the driver keep their share.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from sim.errors import UnknownNameError

MOST_GIB = 1_000_000
"""Memory of a GPU that anybody may state, at most: thousands of times that of the largest."""

_GB = 1e9
_T = 1e12
_PCIE3, _PCIE4, _PCIE5 = 15.75 * _GB, 31.5 * _GB, 63.0 * _GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator.

    Attributes:
        name: the name used in scenarios.
        aliases: other names it answers to (case, spaces, dashes and maker's prefixes do not matter).
        memory_gib: total memory as PyTorch reports it, GiB.
        bandwidth_bytes_per_s: peak memory bandwidth, bytes/s.
        bf16_flops: dense 16-bit matrix speed with FP32 accumulation, FLOP/s (FP16 where the GPU has no BF16).
        fp8_flops: dense FP8 matrix speed, FLOP/s; None where the GPU has no FP8 units.
        int8_ops: dense INT8 matrix speed, operations/s; None where it has none.
        compute_capability: CUDA compute capability (for AMD the gfx number, for a CPU zero).
        nvlink_bytes_per_s: GPU-to-GPU link, bytes/s per GPU and direction; None without one.
        pcie_bytes_per_s: PCIe x16 (x8 where the card has no more), bytes/s per direction.
        unified_memory: the GPU shares the host's memory, and NVML does not report its size.
    """

    name: str
    aliases: tuple[str, ...] = ()
    memory_gib: float
    bandwidth_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None = None
    int8_ops: float | None = None
    compute_capability: tuple[int, int]
    nvlink_bytes_per_s: float | None = None
    pcie_bytes_per_s: float = _PCIE4
    unified_memory: bool = False

    @property
    def is_cpu(self) -> bool:
        """Whether this is the CPU backend rather than a GPU."""
        return self.name == "cpu"


def _gpu(
    name: str,
    memory: tuple[float, float],
    tflops: tuple[float, float | None, float | None],
    capability: tuple[int, int],
    links: tuple[float | None, float],
    *aliases: str,
    unified_memory: bool = False,
) -> Gpu:
    """Builds a row of the table.

    Args:
        name: the GPU's name.
        memory: size in GiB and bandwidth in GB/s.
        tflops: dense bf16, fp8 and int8 speed in T/s.
        capability: compute capability.
        links: NVLink in GB/s and PCIe in bytes/s, per direction.
        aliases: other names.
        unified_memory: see `Gpu`.
    """
    memory_gib, gb_per_s = memory
    bf16, fp8, int8 = tflops
    nvlink, pcie = links
    return Gpu(
        name=name,
        aliases=aliases,
        memory_gib=memory_gib,
        bandwidth_bytes_per_s=gb_per_s * _GB,
        bf16_flops=bf16 * _T,
        fp8_flops=fp8 * _T if fp8 else None,
        int8_ops=int8 * _T if int8 else None,
        compute_capability=capability,
        nvlink_bytes_per_s=nvlink * _GB if nvlink else None,
        pcie_bytes_per_s=pcie,
        unified_memory=unified_memory,
    )


_HOPPER = (989.4, 1978.9, 1978.9)

GPUS: tuple[Gpu, ...] = (
    # Data centre, Blackwell and Hopper
    _gpu("b200", (178.36, 8000), (2250, 4500, 4500), (10, 0), (900, _PCIE5), "b200-180gb", "b200-sxm"),
    _gpu("gb200", (184.31, 8000), (2500, 5000, 5000), (10, 0), (900, _PCIE5), "gb200-186gb"),
    _gpu("h200", (139.80, 4800), _HOPPER, (9, 0), (450, _PCIE5), "h200-141gb", "h200-sxm", "h200-sxm5"),
    _gpu("h100-80gb", (79.18, 3350), _HOPPER, (9, 0), (450, _PCIE5), "h100", "h100-sxm", "h100-sxm5", "h100-80gb-hbm3"),
    _gpu("h100-pcie", (79.11, 2039), (756, 1513, 1513), (9, 0), (300, _PCIE5), "h100-pcie-80gb", "h100-80gb-pcie"),
    _gpu("h100-nvl", (93.10, 3938), (835.5, 1670.5, 1670.5), (9, 0), (300, _PCIE5), "h100-nvl-94gb", "h100-94gb"),
    _gpu("h20", (95.08, 4000), (148, 296, 296), (9, 0), (450, _PCIE5), "h20-96gb"),
    # Data centre, Ampere and older
    _gpu(
        "a100-80gb", (79.25, 2039), (312, None, 624), (8, 0), (300, _PCIE4),
        "a100", "a100-sxm-80gb", "a100-sxm4-80gb", "a100-80gb-sxm",
    ),
    _gpu("a100-80gb-pcie", (79.25, 1935), (312, None, 624), (8, 0), (300, _PCIE4), "a100-pcie-80gb"),
    _gpu(
        "a100-40gb", (39.49, 1555), (312, None, 624), (8, 0), (300, _PCIE4),
        "a100-sxm4-40gb", "a100-sxm-40gb", "a100-pcie-40gb",
    ),
    _gpu("a10g", (22.06, 600), (70, None, 140), (8, 6), (None, _PCIE4), "a10g-24gb"),
    _gpu("a10", (22.06, 600), (125, None, 250), (8, 6), (None, _PCIE4), "a10-24gb"),
    _gpu("a40", (44.35, 696), (149.7, None, 299.3), (8, 6), (56.25, _PCIE4), "a40-48gb"),
    _gpu("v100-16gb", (15.77, 900), (125, None, None), (7, 0), (150, _PCIE3), "v100", "v100-sxm2-16gb"),
    _gpu("v100-32gb", (31.73, 900), (125, None, None), (7, 0), (150, _PCIE3), "v100-sxm2-32gb"),
    _gpu("t4", (14.58, 320), (65, None, 130), (7, 5), (None, _PCIE3), "t4-16gb"),
    # Data centre, Ada
    _gpu("l4", (22.03, 300), (121, 242, 242), (8, 9), (None, _PCIE4), "l4-24gb"),
    _gpu("l40", (44.42, 864), (181.05, 362.1, 362.1), (8, 9), (None, _PCIE4), "l40-48gb"),
    _gpu("l40s", (44.42, 864), (362.05, 733, 733), (8, 9), (None, _PCIE4), "l40s-48gb"),
    # Workstation
    _gpu("rtx-a6000", (47.53, 768), (154.8, None, 309.7), (8, 6), (56.25, _PCIE4), "a6000", "a6000-48gb"),
    _gpu("rtx-6000-ada", (47.50, 960), (364.2, 728.5, 728.5), (8, 9), (None, _PCIE4), "6000-ada", "rtx-6000-ada-48gb"),
    _gpu(
        "rtx-pro-6000", (94.97, 1792), (503.8, 1007.6, 1007.6), (12, 0), (None, _PCIE5),
        "pro-6000", "rtx-pro-6000-blackwell", "rtx-pro-6000-96gb", "rtx-pro-6000-blackwell-server-edition",
    ),
    # Consumer. The 4060 and 4080 totals are those that WSL2 reports; plain Linux shows 0.3-0.4 GiB less.
    _gpu("rtx-3060", (11.76, 360), (25.5, None, 102), (8, 6), (None, _PCIE4), "3060", "rtx-3060-12gb"),
    _gpu("rtx-3090", (23.58, 936.2), (71, None, 284), (8, 6), (56.25, _PCIE4), "3090", "rtx-3090-24gb"),
    _gpu("rtx-4060", (8.00, 272), (30.2, 60.5, 121), (8, 9), (None, _PCIE4 / 2), "4060", "rtx-4060-8gb"),
    _gpu("rtx-4060-ti-16gb", (15.60, 288), (44.1, 88.2, 176.5), (8, 9), (None, _PCIE4 / 2), "rtx-4060-ti", "4060-ti"),
    _gpu("rtx-4080", (15.99, 716.8), (97.5, 194.9, 389.9), (8, 9), (None, _PCIE4), "4080", "rtx-4080-16gb"),
    _gpu("rtx-4090", (23.55, 1008), (165.2, 330.3, 660.6), (8, 9), (None, _PCIE4), "4090", "rtx-4090-24gb"),
    _gpu("rtx-5080", (15.47, 960), (112.6, 225.1, 450.2), (12, 0), (None, _PCIE5), "5080", "rtx-5080-16gb"),
    _gpu("rtx-5090", (31.37, 1792), (209.5, 419, 838), (12, 0), (None, _PCIE5), "5090", "rtx-5090-32gb"),
    _gpu(
        "gb10", (121.63, 273), (125, 250, 250), (12, 1), (None, _PCIE5),
        "dgx-spark", "spark", "gb10-128gb", unified_memory=True,
    ),
    # AMD: seven Infinity Fabric links of 64 GB/s a direction
    _gpu("mi300x", (191.69, 5300), (1307.4, 2614.9, 2614.9), (9, 4), (448, _PCIE5), "mi300x-192gb"),
    # A two-socket server with 16 channels of DDR5-4800 and AMX; its memory is whatever the host has: set it.
    _gpu("cpu", (256.0, 614), (70, None, 140), (0, 0), (None, _PCIE5), "x86", "x86-64"),
)  # fmt: skip


def find_gpu(name: str) -> Gpu:
    """Returns the GPU of that name or alias.

    Case, spaces, dashes, a remark in parentheses and the words NVIDIA, GeForce, Tesla and AMD make no difference:
    `NVIDIA H100 80GB HBM3`, `h100` and `H100-SXM5` are one GPU.

    Raises:
        UnknownNameError: no such GPU; the message lists the nearest names.
    """
    index = {_key(known): gpu for gpu in GPUS for known in (gpu.name, *gpu.aliases)}
    gpu = index.get(_key(name))
    if gpu is not None:
        return gpu
    near = difflib.get_close_matches(_key(name), index, n=3, cutoff=0.5)
    names = list(dict.fromkeys(index[key].name for key in near))
    hint = f"did you mean {' or '.join(map(repr, names))}?" if names else "known: " + ", ".join(g.name for g in GPUS)
    raise UnknownNameError(f"gpu: unknown GPU {name!r}; {hint}")


def _key(name: str) -> str:
    text = re.sub(r"\(.*?\)", "", name.lower())
    text = re.sub(r"\b(nvidia|geforce|tesla|amd|instinct)\b", "", text.replace("_", " "))
    return re.sub(r"[^a-z0-9]", "", text)
