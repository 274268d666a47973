"""A sweep on disk: `sweep.json` (the whole), `points` and `runs` as CSV and Parquet; equal sweeps give equal bytes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from sim.results.said_once import said_once
from sim.results.storage import versions, write_atomically, write_text
from sim.sweep.axes import Axis
from sim.sweep.rows import Row, columns, point_row, run_rows
from sim.sweep.run import PointResult

FORMAT = 1
"""Of the files; rises when a reader of older ones would misread them."""


class SweepTable:
    """The rows of a sweep, added point by point.

    Args:
        name: the scenario's name.
        axes: what was varied.
        seeds: the seeds of every point.

    Attributes:
        complete: whether every run of the sweep is in it: neither interrupted nor a shard.
    """

    def __init__(self, name: str, axes: tuple[Axis, ...], seeds: tuple[int, ...]) -> None:
        self.name = name
        self.axes = axes
        self.seeds = seeds
        self.points: list[Row] = []
        self.runs: list[Row] = []
        self.warnings: list[str] = []
        self.complete = False

    def add(self, result: PointResult) -> Row:
        """Takes in a point and returns its row."""
        row = point_row(result)
        self.points.append(row)
        self.runs += run_rows(result)
        runs = result.judged.runs if result.judged else ()
        self.warnings = said_once([*self.warnings, *(text for run in runs for text in run.warnings)])
        return row

    def document(self) -> dict[str, Any]:
        """Returns the whole as plain data."""
        return {
            "format": FORMAT,
            "scenario": self.name,
            "vary": {axis.key: list(axis.values) for axis in self.axes},
            "seeds": list(self.seeds),
            "complete": self.complete,
            "points": self.points,
            "warnings": self.warnings,
            "versions": versions(),
        }

    def as_json(self) -> str:
        """Returns the whole as the text of one JSON object."""
        return json.dumps(self.document(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, folder: Path) -> None:
        """Writes five files.

        Raises:
            UserError: one cannot be written.
        """
        write_text(folder / "sweep.json", self.as_json())
        for name, rows in (("points", self.points), ("runs", self.runs)):
            table = columns(rows)
            write_text(folder / f"{name}.csv", _as_csv(table))
            _write_parquet(folder / f"{name}.parquet", table)


def _as_csv(table: dict[str, list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return text.getvalue()


def _write_parquet(path: Path, table: dict[str, list[Any]]) -> None:
    import pyarrow as pa  # noqa: PLC0415 - a fifth of a second, at the end of a sweep
    import pyarrow.parquet as pq  # noqa: PLC0415

    def write(temporary: Path) -> None:
        pq.write_table(pa.table(table), temporary, compression="zstd")

    write_atomically(path, write)
