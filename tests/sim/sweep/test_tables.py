"""The tables hold the same numbers in each form, and read back."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sim.simulate import simulate
from sim.sweep import KeptRuns, Sweep, SweepTable, parse_axes, plan_points
from sim.sweep.rows import Row, columns
from tests.sim.sweep.made import write


@pytest.fixture
def table(tmp_path: Path) -> SweepTable:
    axes = parse_axes(["server.gpu_memory_utilization=0.3,0.9", "users=2,4"])
    made = SweepTable("tiny", axes, (0, 1))
    for result in Sweep(plan_points(write(tmp_path), axes), (0, 1), KeptRuns(tmp_path / "kept"), simulate).results():
        made.add(result)
    made.complete = True
    return made


def test_a_point_has_its_values_its_verdict_and_means_over_the_seeds(table: SweepTable) -> None:
    failed, row = table.points[0], table.points[2]
    assert (failed["status"], failed["holds"], failed["seeds"]) == ("failed", None, 0)
    assert "vLLM would not start" in failed["cause"]
    assert (row["server.gpu_memory_utilization"], row["users"], row["load"], row["unit"]) == (0.9, 2, 2, "users")
    assert (row["status"], row["cause"], row["seeds"], row["holds"], row["calibrated"]) == ("ok", "", 2, True, False)
    assert (row["met[ttft.p95 <= 1s]"], row["met[errors <= 1%]"]) == (True, True)
    runs = [run for run in table.runs if run["users"] == 2]
    assert [run["seed"] for run in runs] == [0, 1]
    for name in ("ttft_p95_ms", "itl_mean_ms", "kv_max", "requests_per_s", "measured[ttft.p95 <= 1s]"):
        assert row[name] == pytest.approx(sum(run[name] for run in runs) / 2, rel=1e-5)
    assert row["ttft_p50_ms"] <= row["ttft_p90_ms"] <= row["ttft_p95_ms"] <= row["ttft_p99_ms"] <= row["ttft_max_ms"]


def test_json_csv_and_parquet_agree(table: SweepTable, tmp_path: Path) -> None:
    table.write(tmp_path / "out")
    document = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert document["vary"] == {"server.gpu_memory_utilization": [0.3, 0.9], "users": [2, 4]}
    assert (document["complete"], document["seeds"]) == (True, [0, 1])
    for name, rows in (("points", document["points"]), ("runs", table.runs)):
        stored = pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist()
        with (tmp_path / "out" / f"{name}.csv").open() as file:
            texts = list(csv.DictReader(file))
        assert len(stored) == len(texts) == len(rows)
        for row, typed, text in zip(rows, stored, texts, strict=True):
            assert {key: value for key, value in typed.items() if value is not None} == {
                key: value for key, value in row.items() if value is not None
            }
            assert text == {key: "" if value is None else str(value) for key, value in typed.items()}


def test_the_same_sweep_writes_the_same_bytes(table: SweepTable, tmp_path: Path) -> None:
    for name in ("first", "second"):
        table.write(tmp_path / name)
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


def test_a_column_has_one_type() -> None:
    rows: list[Row] = [{"a": 1, "b": 1, "c": {"fixed": 3}}, {"a": 2.5, "b": "auto", "d": True}, {"a": None, "c": "x"}]
    assert columns(rows) == {
        "a": [1.0, 2.5, None],
        "b": ["1", "auto", None],
        "c": ['{"fixed": 3}', None, "x"],
        "d": [None, True, None],
    }
