"""Reads back what `headcount run --out` wrote: one run's Parquet files and manifest."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import UserError
from sim.records import REQUEST_FIELDS, FleetLog, ItlLog, Outcome, PreemptionLog, RequestLog, RunRecord, StepLog
from sim.results.storage import FORMAT

_OUTCOMES = {outcome.name.lower(): outcome for outcome in Outcome}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of one run.

    Raises:
        UserError: it is missing, broken, or of a later version.
    """
    manifest = read_json(folder / "manifest.json")
    if manifest.get("format") != FORMAT:
        known = f"this version reads format {FORMAT}"
        raise UserError(f"{folder / 'manifest.json'}: format {manifest.get('format')!r}; {known}: run it again")
    return manifest


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        UserError: the file is missing, unreadable, or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: a JSON object is expected, got {type(found).__name__}")
    return found


def read_run(folder: Path) -> RunRecord:
    """Reads one run back as the record that was written.

    Args:
        folder: with the Parquet files and manifest.json.

    Raises:
        UserError: a file is missing or unreadable.
    """
    manifest = read_manifest(folder)
    server = manifest["server"]
    return RunRecord(
        class_names=tuple(server["class_names"]),
        num_gpu_blocks=server["num_gpu_blocks"],
        block_size=server["block_size"],
        max_num_seqs=server["max_num_seqs"],
        max_num_batched_tokens=server["max_num_batched_tokens"],
        num_replicas=server["num_replicas"],
        calibrated=server["calibrated"],
        end_ns=server["end_ns"],
        arrivals_end_ns=server["arrivals_end_ns"],
        requests=_requests(_columns(folder / "requests.parquet"), server["class_names"]),
        steps=_log(StepLog, _columns(folder / "steps.parquet")),
        itl=_log(ItlLog, _columns(folder / "itl.parquet")),
        preemptions=_log(PreemptionLog, _columns(folder / "preemptions.parquet")),
        warnings=list(manifest.get("warnings", ())),
        fleet=_fleet(server.get("fleet")),
    )


def _fleet(kept: Any) -> FleetLog | None:
    if kept is None:
        return None
    events = [(int(replica), int(time_ns), str(what)) for replica, time_ns, what in kept["events"]]
    return FleetLog(events, [(int(request_id), int(time_ns)) for request_id, time_ns in kept["rerouted"]])


def _columns(path: Path) -> Any:
    """Returns a Parquet file as a table."""
    import pyarrow as pa  # noqa: PLC0415 - a fifth of a second that other commands need not pay
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    try:
        return pq.read_table(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except pa.ArrowException as error:
        raise UserError(f"{path}: not a Parquet file of a run: {error}") from None


def _requests(table: Any, class_names: list[str]) -> RequestLog:
    given = {"class_id": _codes(table["class_name"], {name: number for number, name in enumerate(class_names)}),
             "outcome": _codes(table["outcome"], _OUTCOMES)}  # fmt: skip
    columns = [given[name] if name in given else table[name].to_numpy() for name in REQUEST_FIELDS]
    return RequestLog.of_columns([_array(column) for column in columns])


def _codes(column: Any, numbers: Mapping[str, int]) -> Any:
    """Returns the numbers of a column of names."""
    names = column.combine_chunks()
    codes = np.array([numbers[name] for name in names.dictionary.to_pylist()], np.int64)
    return codes[names.indices.to_numpy()]


def _log(kind: Any, table: Any) -> Any:
    return kind(**{field.name: _array(table[field.name].to_numpy()) for field in fields(kind)})


def _array(values: Any) -> array[int]:
    column = array("q")
    column.frombytes(values.astype(np.int64).tobytes())
    return column
