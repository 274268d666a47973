"""The sizing agrees with what start-up logs of real servers report (`kv_sizing.csv`, optional reference data).

A row gives what its report gave; blank is unknown. Three laws, each for the rows that give enough:

- from the pool in GiB and the bytes per token: tokens within 0.5 %, concurrency within 0.01;
- from the parts (total, utilization, weights, activations, non-torch, graphs): the pool, and from it the same;
- from model and GPU alone, for dense models on GPUs of the table: the pool within 10 %.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest

from sim.errors import UserError
from sim.hardware import Gpu, find_gpu
from sim.memory import (
    EngineFlags,
    KvPool,
    MemoryOverrides,
    ServerSpec,
    blocks_in,
    flat_layout,
    flat_pool,
    kv_pool,
    memory_budget,
    parse_version,
)
from sim.models import ModelSpec, find_model
from tests.sim.memory.shared import SHARED

GIB = 2**30
FILE = SHARED / "data" / "kv_sizing.csv"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="kv_sizing.csv is not here (see HEADCOUNT_SHARED)")

Row = dict[str, str]


def rows() -> list[Row]:
    if not FILE.exists():
        return []
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def line(row: Row) -> str:
    return f"line {rows().index(row) + 2}: {row['vllm_version']} {row['model']} {row['gpu']}".strip()


def number(row: Row, key: str) -> float | None:
    return float(row[key]) if row[key] else None


def whole(row: Row, key: str) -> int | None:
    return int(float(row[key])) if row[key] else None


def release(row: Row) -> str:
    return row["vllm_version"] or "0.32"


def window(row: Row) -> int | None:
    """The window of models all of whose layers have one; the others of the file have none, or several kinds."""
    model = find(row)
    return model.sliding_window if model is not None and not model.num_full_layers else None


def find(row: Row) -> ModelSpec | None:
    try:
        return find_model(row["model"].replace(" (quantization=fp8)", "-FP8"))
    except UserError:
        return None


def gpu(row: Row) -> Gpu | None:
    try:
        found = find_gpu(row["gpu"])
    except UserError:
        return None
    return replace(found, memory_gib=number(row, "gpu_mem_gib") or found.memory_gib)


def reports_hybrid(row: Row) -> bool:
    return not row["kv_bytes_per_token_per_gpu"]


# Rows the reporter or the collector marked suspect, and why their numbers cannot agree with each other.
SUSPECT = {
    "printed utilization does not add up": "total x utilization - parts is not the pool, so one of them is misprinted",
    "GiB from a richer rank": "the GiB are of one rank and the tokens of another, which had room for fewer",
}


def plain_rows() -> list[Row]:
    return [row for row in rows() if not row["suspect"]]


def test_every_suspect_row_has_its_reason() -> None:
    assert {row["suspect"] for row in rows() if row["suspect"]} <= set(SUSPECT)


def assert_agrees(pool: KvPool, row: Row) -> None:
    """Tokens within 0.5 %, concurrency within 0.01 as printed; blocks as many as a rounding of the GiB allows."""
    tokens, blocks, concurrency = whole(row, "reported_kv_tokens"), whole(row, "reported_blocks"), row[
        "reported_max_concurrency"
    ]  # fmt: skip
    if tokens is not None:
        assert pool.tokens == pytest.approx(tokens, rel=0.005)
    if blocks is not None:
        assert pool.num_blocks == pytest.approx(blocks, rel=0.005)
    if concurrency and row["max_model_len"]:
        assert round(pool.max_concurrency, 2) == pytest.approx(float(concurrency), abs=0.0101)


def has_pool(row: Row) -> bool:
    return bool(row["reported_available_kv_gib"] and row["kv_bytes_per_token_per_gpu"])


@pytest.mark.parametrize("row", [row for row in plain_rows() if has_pool(row)], ids=line)
def test_tokens_and_concurrency_follow_from_the_pool(row: Row) -> None:
    layout = flat_layout(
        float(row["kv_bytes_per_token_per_gpu"]),
        whole(row, "block_size") or 16,
        parse_version(release(row)),
        window(row),
    )
    num_blocks = blocks_in(float(row["reported_available_kv_gib"]), layout)
    assert_agrees(kv_pool(layout, num_blocks, whole(row, "max_model_len") or 1, parse_version(release(row))), row)


def reports_pool_size(row: Row) -> bool:
    length = bool(row["max_model_len"] and row["reported_max_concurrency"])
    return length and bool(row["reported_kv_tokens"] or row["reported_blocks"])


@pytest.mark.parametrize("row", [row for row in plain_rows() if reports_pool_size(row)], ids=line)
def test_concurrency_follows_from_the_tokens_or_blocks(row: Row) -> None:
    """Hybrid models included: since 0.21 their tokens are concurrency x max_model_len, so the line can be checked."""
    length, block_size = whole(row, "max_model_len"), whole(row, "block_size") or 16
    assert length is not None
    blocks = whole(row, "reported_blocks")
    tokens = whole(row, "reported_kv_tokens")
    if reports_hybrid(row):
        assert tokens is not None
        concurrency = tokens / length
    else:
        version = parse_version(release(row))
        layout = flat_layout(1, block_size, version, window(row))
        num_blocks = blocks if blocks is not None else -(-(tokens or 0) // block_size)
        concurrency = layout.concurrency(num_blocks, length)
    assert round(concurrency, 2) == pytest.approx(float(row["reported_max_concurrency"]), abs=0.0101)


PARTS = ("gpu_mem_gib", "gpu_memory_utilization", "reported_model_weights_gib", "peak_activation_gib", "non_torch_gib")


def has_parts(row: Row) -> bool:
    return all(row[part] for part in PARTS) and bool(row["reported_available_kv_gib"])


@pytest.mark.parametrize("row", [row for row in plain_rows() if has_parts(row)], ids=line)
def test_the_pool_follows_from_its_parts(row: Row) -> None:
    """A blank graph estimate counts as none: since 0.21 the logged activation peak includes it."""
    server = ServerSpec(
        version=release(row),
        flags=EngineFlags(
            max_model_len=whole(row, "max_model_len") or 1024,
            gpu_memory_utilization=number(row, "gpu_memory_utilization"),
            block_size=whole(row, "block_size"),
        ),
        memory=MemoryOverrides(
            weights_gib=number(row, "reported_model_weights_gib"),
            activation_gib=number(row, "peak_activation_gib"),
            non_torch_gib=number(row, "non_torch_gib"),
            graphs_gib=number(row, "graph_estimate_gib") or 0.0,
            kv_bytes_per_token=number(row, "kv_bytes_per_token_per_gpu") or 1.0,
        ),
    )
    kv_cache_gib, pool = flat_pool(server, number(row, "gpu_mem_gib"), sliding_window=window(row))
    assert kv_cache_gib == pytest.approx(float(row["reported_available_kv_gib"]), abs=0.035)
    if row["kv_bytes_per_token_per_gpu"]:
        assert_agrees(pool, row)


def reported_pool_gib(row: Row) -> float | None:
    if row["reported_available_kv_gib"]:
        return float(row["reported_available_kv_gib"])
    if row["reported_kv_tokens"] and row["kv_bytes_per_token_per_gpu"]:
        return float(row["reported_kv_tokens"]) * float(row["kv_bytes_per_token_per_gpu"]) / GIB
    return None


def is_estimable(row: Row) -> bool:
    """Dense, in the table, on a GPU of the table, of a known release, and a pool to compare with."""
    model = find(row)
    known = model is not None and not model.is_moe and gpu(row) is not None and bool(row["vllm_version"])
    return known and not has_parts(row) and reported_pool_gib(row) is not None


def spec(row: Row, **measured: Any) -> ServerSpec:
    """The server of a row, with its flags and none of its measurements."""
    return ServerSpec(
        version=release(row),
        tensor_parallel_size=whole(row, "tp") or 1,
        pipeline_parallel_size=whole(row, "pp") or 1,
        flags=EngineFlags(
            max_model_len=whole(row, "max_model_len"),
            max_num_seqs=whole(row, "max_num_seqs"),
            max_num_batched_tokens=whole(row, "max_num_batched_tokens"),
            gpu_memory_utilization=number(row, "gpu_memory_utilization"),
            block_size=whole(row, "block_size"),
            kv_cache_dtype=row["kv_cache_dtype"] or None,
            enforce_eager=row["enforce_eager"] == "True" or None,
        ),
        memory=MemoryOverrides(**measured),
    )


@pytest.mark.parametrize("row", [row for row in plain_rows() if is_estimable(row)], ids=line)
def test_the_pool_of_a_dense_model_is_estimated_within_10_percent(row: Row) -> None:
    model, device = find(row), gpu(row)
    assert model is not None
    assert device is not None
    result = memory_budget(model, device, spec(row))
    assert result.kv_cache_gib == pytest.approx(reported_pool_gib(row), rel=0.10)
    if row["kv_bytes_per_token_per_gpu"]:
        assert result.kv_bytes_per_token == float(row["kv_bytes_per_token_per_gpu"])


def gives_parts_of_a_known_model(row: Row) -> bool:
    """Rows whose parts are known anyway: the estimate is tried blind on them.

    Not V0, whose rows name no release; not vision towers, whose own profiling (images of the largest size) is not
    modelled.
    """
    model = find(row)
    return (
        has_parts(row)
        and model is not None
        and gpu(row) is not None
        and bool(row["vllm_version"])
        and "VL" not in row["model"]
    )


@pytest.mark.parametrize("row", [row for row in plain_rows() if gives_parts_of_a_known_model(row)], ids=line)
def test_the_estimate_does_without_the_parts(row: Row) -> None:
    model, device = find(row), gpu(row)
    assert model is not None
    assert device is not None
    result = memory_budget(model, device, spec(row))
    assert result.weights_gib == pytest.approx(float(row["reported_model_weights_gib"]), rel=0.02)
    assert result.kv_cache_gib == pytest.approx(float(row["reported_available_kv_gib"]), rel=0.10)


def gives_hybrid_pool(row: Row) -> bool:
    model = find(row)
    return (
        reports_hybrid(row)
        and model is not None
        and len(set(model.kinds)) > 1
        and bool(row["reported_available_kv_gib"] and row["reported_kv_tokens"] and row["max_model_len"])
        and gpu(row) is not None
    )


@pytest.mark.parametrize("row", [row for row in plain_rows() if gives_hybrid_pool(row)], ids=line)
def test_groups_of_a_hybrid_model_give_its_tokens(row: Row) -> None:
    model, device = find(row), gpu(row)
    assert model is not None
    assert device is not None
    result = memory_budget(model, device, spec(row, kv_cache_gib=number(row, "reported_available_kv_gib")))
    assert result.kv_tokens == pytest.approx(float(row["reported_kv_tokens"]), rel=0.005)
    assert result.max_concurrency == pytest.approx(float(row["reported_max_concurrency"]), abs=0.01)


@pytest.mark.parametrize("row", [row for row in plain_rows() if has_pool(row) and find(row)], ids=line)
def test_kv_bytes_per_token_follow_from_the_shape(row: Row) -> None:
    model = find(row)
    assert model is not None
    result = memory_budget(model, gpu(row) or find_gpu("h200"), spec(row, kv_cache_gib=100.0))
    assert result.kv_bytes_per_token == float(row["kv_bytes_per_token_per_gpu"])
