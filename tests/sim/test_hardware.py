"""The GPU table answers to the names people use, and its figures are of the right size and order."""

from __future__ import annotations

import pytest

from sim.errors import UserError
from sim.hardware import GPUS, find_gpu


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rtx-4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("H100", "h100-80gb"),
        ("H100 80GB", "h100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("A100", "a100-80gb"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("A100 40GB", "a100-40gb"),
        ("Tesla T4", "t4"),
        ("RTX 4080 16GB (WSL2)", "rtx-4080"),
        ("GB10 (DGX Spark)", "gb10"),
        ("a6000", "rtx-a6000"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_gpu_answers_to_the_names_of_logs_and_shops(name: str, expected: str) -> None:
    assert find_gpu(name).name == expected


def test_an_unknown_gpu_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UserError, match=r"gpu: unknown GPU 'rtx-4091'; did you mean .*'rtx-4090'"):
        find_gpu("rtx-4091")
    with pytest.raises(UserError, match=r"unknown GPU 'ascend-910b'; known: b200"):
        find_gpu("ascend-910b")


def test_no_two_gpus_share_a_name() -> None:
    names = [find_gpu(name).name for gpu in GPUS for name in (gpu.name, *gpu.aliases)]
    expected = [gpu.name for gpu in GPUS for _ in (gpu.name, *gpu.aliases)]
    assert names == expected


@pytest.mark.parametrize(
    ("name", "total_gib"),
    [("h100", 79.18), ("a100-80gb", 79.25), ("a100-40gb", 39.45), ("rtx-4090", 23.57), ("rtx-3090", 23.58),
     ("l40s", 44.42), ("rtx-4080", 15.99), ("t4", 14.6), ("b200", 178.36), ("gb10", 121.63)],
)  # fmt: skip
def test_memory_is_the_total_that_start_up_logs_show(name: str, total_gib: float) -> None:
    assert find_gpu(name).memory_gib == pytest.approx(total_gib, abs=0.08)


def test_fp8_and_int8_are_at_most_twice_as_fast_as_16_bits() -> None:
    """Dense against dense; a sparse figure slipped in would show as four times. Turing and Ampere cards: 4x INT8."""
    for gpu in GPUS:
        if gpu.fp8_flops is not None:
            assert gpu.fp8_flops == pytest.approx(2 * gpu.bf16_flops, rel=0.03), gpu.name
            assert gpu.compute_capability >= (8, 9), gpu.name
        if gpu.int8_ops is not None:
            assert 1.9 <= gpu.int8_ops / gpu.bf16_flops <= 4.1, gpu.name


def test_links_are_slower_than_memory() -> None:
    for gpu in GPUS:
        assert gpu.pcie_bytes_per_s < (gpu.nvlink_bytes_per_s or gpu.bandwidth_bytes_per_s)
        assert (gpu.nvlink_bytes_per_s or 0) < gpu.bandwidth_bytes_per_s, gpu.name


def test_only_the_cpu_is_a_cpu() -> None:
    assert [gpu.name for gpu in GPUS if gpu.is_cpu] == ["cpu"]
