"""The logs of a run as Parquet tables, written a row group at a time from the memory they lie in.

A log is columns of int64 already, and a Parquet writer wants just that. So no Python object is made for a value, and no
more than one row group is copied. (`pa.array` would import pandas, whatever it is given: half a second.)

Integers are delta-encoded: ascending times and small counts take the least room so, and the least time, of all
encodings that Parquet has. A dictionary pays for names alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sim.records import (
    REQUEST_FIELDS,
    ItlLog,
    OllamaLog,
    OllamaResponse,
    Outcome,
    PreemptionLog,
    RequestLog,
    RunRecord,
    StepLog,
)

ROW_GROUP = 65_536
"""Rows that are put together and written at a time."""

Columns: TypeAlias = "dict[str, pa.Array]"


@dataclass(frozen=True, slots=True)
class Table:
    """One file to be.

    Attributes:
        num_rows: of the whole table.
        rows: returns the columns of the rows from `start` to before `stop`; of no rows, empty ones.
    """

    num_rows: int
    rows: Callable[[int, int], Columns]


def tables(run: RunRecord) -> dict[str, Table]:
    """Returns the tables of a run by the names of their files, without the ending."""
    logs: dict[str, StepLog | ItlLog | PreemptionLog] = {
        "steps": run.steps,
        "itl": run.itl,
        "preemptions": run.preemptions,
    }
    found = {"requests": _requests(run.requests, run.class_names), **{name: _log(log) for name, log in logs.items()}}
    if run.ollama is not None:
        found["responses"] = _responses(run.ollama)
    return found


def write_table(path: Path, table: Table) -> None:
    """Writes a Parquet file; the same table gives the same bytes.

    Raises:
        OSError: the file cannot be written.
    """
    empty = table.rows(0, 0)
    schema = pa.schema([(name, column.type) for name, column in empty.items()])
    names = [name for name, column in empty.items() if pa.types.is_dictionary(column.type)]
    encodings = dict.fromkeys((name for name in empty if name not in names), "DELTA_BINARY_PACKED")
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=names, column_encoding=encodings) as file:
        for start in range(0, table.num_rows, ROW_GROUP):
            group = table.rows(start, min(start + ROW_GROUP, table.num_rows))
            file.write_table(pa.Table.from_arrays(list(group.values()), schema=schema))


def _requests(log: RequestLog, class_names: Sequence[str]) -> Table:
    classes, outcomes = list(class_names), [outcome.name.lower() for outcome in sorted(Outcome)]

    def rows(start: int, stop: int) -> Columns:
        columns: Columns = {}
        for name in REQUEST_FIELDS:
            values = log.column(name, start, stop)
            match name:
                case "class_id":
                    columns["class_name"] = _names(values, classes)
                case "outcome":
                    columns["outcome"] = _names(values, outcomes)
                case _:
                    columns[name] = _integers(values)
        return columns

    return Table(len(log), rows)


def _log(log: StepLog | ItlLog | PreemptionLog) -> Table:
    names = [field.name for field in fields(log)]

    def rows(start: int, stop: int) -> Columns:
        return {name: _integers(memoryview(getattr(log, name))[start:stop]) for name in names}

    return Table(len(log.end_ns), rows)


def _responses(log: OllamaLog) -> Table:
    models = [model.name for model in log.models]

    def rows(start: int, stop: int) -> Columns:
        chosen, columns = log.responses[start:stop], {}
        for field in fields(OllamaResponse):
            values = [getattr(response, field.name) for response in chosen]
            if field.name == "model_id":
                columns["model"] = _names(values, models)
            elif values and values[0] is None:  # the release does not tell, of no answer
                columns[field.name] = pa.nulls(len(values), pa.int64())
            else:
                columns[field.name] = _integers(array("q", values))
        return columns

    return Table(len(log.responses), rows)


def _integers(values: array[int] | memoryview) -> pa.Array:
    """Returns a column on the memory of its values."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _names(codes: Iterable[int], names: Sequence[str]) -> pa.Array:
    """Returns a column of names, each written once, from their places in the list of them."""
    places = np.fromiter(codes, np.int32)
    text = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, text)], dtype=np.int32)
    words = pa.StringArray.from_buffers(len(names), pa.py_buffer(ends), pa.py_buffer(b"".join(text)))
    indices = pa.Array.from_buffers(pa.int32(), len(places), [None, pa.py_buffer(places)])
    return pa.DictionaryArray.from_arrays(indices, words)
