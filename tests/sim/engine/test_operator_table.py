"""Operator tables: measured points come back exactly, what lies between is linear, what is beyond is said."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sim.engine.operator_files import read_operator_tables
from sim.engine.operator_table import Collective, OperatorTableModel, OperatorTables, look_up, tree_of
from sim.engine.step_time import Batch
from sim.errors import UserError
from sim.models import find_model

LLAMA = find_model("meta-llama/Llama-3.1-8B")
LAYERS = 32


def write_tables(folder: Path, **changes: str) -> Path:
    """Tables of a made GPU: one microsecond a token and operator, attention by simple rules."""
    attention = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for q in (0, 16, 64, 2048):
        for ctx in (0, 1024) if q else (0,):
            attention += [f"{q},{ctx},0,0,{10 + q / 16 + ctx / 64}"] if q else []
            for n in (1, 64):
                for deep in (16, 4096):
                    alone = 10 + n * deep / 1024
                    attention.append(f"{q},{ctx},{n},{deep},{alone if not q else 5 + q / 16 + ctx / 64 + 3 * alone}")
    dense = ["layer,tokens,time_us"]
    for name in ("embedding", "final_layernorm", "layernorm", "qkv_proj", "down_proj"):
        dense += [f"{name},{n},{100 + n}" for n in (1, 512, 2048)]
    texts = {
        "attention": "\n".join(attention),
        "dense": "\n".join(dense),
        "per_sequence": "layer,sequences,time_us\nlm_head,1,50\nlm_head,256,305\nsampler,1,5\nsampler,256,260",
    } | changes
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.fixture
def tables(tmp_path: Path) -> OperatorTables:
    return read_operator_tables(write_tables(tmp_path / "t"), LLAMA)


def test_a_decode_step_is_the_sum_of_its_operators(tables: OperatorTables) -> None:
    layer = 2 * 101 + 101 + 101  # the norm runs twice in a layer
    expected_us = LAYERS * (layer + 10 + 4096 / 1024) + 2 * 101 + 55
    assert OperatorTableModel(tables).step_time(Batch.of([4096])) == round(1e3 * expected_us)


def test_between_points_it_is_linear_and_beyond_the_last_slope_goes_on() -> None:
    tree = tree_of([((1.0,), 10.0), ((3.0,), 20.0), ((5.0,), 40.0)])
    assert [look_up(tree, (x,)) for x in (1, 2, 3, 4, 5, 7, 0)] == [10, 15, 20, 30, 40, 60, 5]
    assert look_up(tree_of([((1.0,), 1.0), ((2.0,), 9.0)]), (0,)) == 0  # never below nothing


def test_every_branch_has_its_own_points() -> None:
    tree = tree_of([((1.0, 0.0), 1.0), ((1.0, 10.0), 2.0), ((3.0, 4.0), 5.0)])
    assert look_up(tree, (1, 5)) == pytest.approx(1.5)
    assert look_up(tree, (2, 5)) == pytest.approx((1.5 + 5) / 2)


def test_a_mixed_step_is_looked_up_not_added(tables: OperatorTables) -> None:
    attention = tables.attention
    mixed = attention.time_ns(Batch.of([4096], [(64, 0)]))
    assert mixed == pytest.approx(1e3 * (5 + 4 + 3 * 14))
    assert mixed > attention.time_ns(Batch.of([4096])) + attention.time_ns(Batch.of([], [(64, 0)]))


def test_further_chunks_add_their_work_but_no_launch(tables: OperatorTables) -> None:
    one = tables.attention.time_ns(Batch.of([], [(64, 0)]))
    two = tables.attention.time_ns(Batch.of([], [(64, 0), (64, 0)]))
    assert two - one == pytest.approx(1e3 * 64 / 16 - 1e3)  # beyond the launch, which a chunk of 16 stands for


def test_tokens_are_padded_to_captured_graphs(tables: OperatorTables) -> None:
    model = OperatorTableModel(tables, graph_sizes=(8, 16))
    nine, sixteen = (model.parts(Batch.of([16] * n))["gemm"] for n in (9, 16))
    assert nine == sixteen
    assert model.parts(Batch.of([16] * 17))["gemm"] > sixteen


def test_collectives_are_added_by_tokens(tables: OperatorTables) -> None:
    alone = OperatorTableModel(tables)
    linked = OperatorTableModel(tables, collectives=[Collective(64, ((1, 10_000), (101, 20_000)))])
    batch = Batch.of([16] * 51)
    assert linked.step_time(batch) - alone.step_time(batch) == 64 * 15_000
    assert linked.parts(batch)["collectives"] == 64 * 15_000
    assert sum(linked.parts(batch).values()) == pytest.approx(linked.step_time(batch), abs=5)


def test_leaving_the_tables_is_said(tables: OperatorTables) -> None:
    model = OperatorTableModel(tables, name="made")
    model.step_time(Batch.of([100], [(64, 0)]))
    assert model.out_of_range() == []
    model.step_time(Batch.of([9000]))
    (sentence,) = model.out_of_range()
    assert "made: steps of up to 9000 tokens of context of a decode" in sentence
    assert "end at 4096" in sentence


def test_an_empty_step_takes_no_time(tables: OperatorTables) -> None:
    assert OperatorTableModel(tables).step_time(Batch.of()) == 0


def test_experts_cost_what_is_touched_and_spreading_them_halves_it(tmp_path: Path) -> None:
    moe = find_model("Qwen/Qwen3-30B-A3B")
    rows = [f"{t},{e},{10 * e}" for t in (1, 64, 2048) for e in (8, 64, 128)]
    folder = write_tables(tmp_path / "m", moe="\n".join(["tokens,activated_experts,time_us", *rows]))
    one, two = (read_operator_tables(folder, moe, ranks).experts for ranks in (1, 2))
    assert one is not None
    assert two is not None
    assert one.at(1) == pytest.approx(80_000)
    assert one.at(2048) == pytest.approx(1_280_000, rel=0.001)
    assert two.at(2048) == pytest.approx(640_000, rel=0.001)
    assert two.at(1) < one.at(2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dense": "layer,tokens\n"},
            "dense.csv.gz:1:1: expected the columns layer, tokens, time_us; got layer, tokens",
        ),
        ({"dense": "layer,tokens,time_us\nqkv_proj,1,x"}, "dense.csv.gz:2:1: got qkv_proj,1,x"),
        ({"per_sequence": "layer,sequences,time_us"}, "no operators"),
        (
            {"attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,9"},
            "of chunks alone, of decodes",
        ),
    ],
)
def test_a_bad_table_is_one_clear_line(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as error:
        read_operator_tables(write_tables(tmp_path / "t", **changes), LLAMA)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_folder_or_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder of operator tables"):
        read_operator_tables(tmp_path / "none", LLAMA)
    (write_tables(tmp_path / "t") / "dense.csv.gz").unlink()
    with pytest.raises(UserError, match=r"no dense\.csv"):
        read_operator_tables(tmp_path / "t", LLAMA)
