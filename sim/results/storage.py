"""A run on disk: Parquet files and a manifest, byte-identical for the same scenario, seed and versions.

    requests.parquet   one row a request (the fields of RequestRecord)
    steps.parquet      one row an engine step (the columns of StepLog)
    itl.parquet        one row a run of equal inter-token gaps (the columns of ItlLog)
    responses.parquet  of Ollama alone: one row an answer, with its timing fields
    manifest.json      what they are: scenario and its hash, seed, load, versions, the server's limits

Times are nanoseconds since the start of the run; -1 means "never happened". No file holds a date: what depends on when
it was made could not be compared. Each file appears complete or not at all.
"""

from __future__ import annotations

import json
import os
import platform
from array import array
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import __version__
from sim.errors import UserError
from sim.records import OllamaLog, OllamaResponse, Outcome, RequestRecord, RunRecord

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
"""Of the files; rises when a reader of older ones would misread them."""


def versions() -> dict[str, str]:
    """Returns the versions of everything that can change a result."""
    known = {name: version(name) for name in ("numpy", "simpy", "pyarrow")}
    return {"headcount": __version__, "python": platform.python_version(), **known}


def write_run(folder: Path, run: RunRecord, manifest: Mapping[str, Any]) -> None:
    """Writes one run to a folder, which is made if need be.

    Args:
        folder: where the four files go; existing ones are replaced.
        run: what to write.
        manifest: scenario, scenario_hash, seed, load and whatever else names the run.

    Raises:
        UserError: the folder cannot be made or written, or the disk is full.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - a fifth of a second that a run without --out need not pay

    tables = {"requests": _requests(run), "steps": _log(run.steps), "itl": _log(run.itl)}
    if run.ollama is not None:
        tables["responses"] = _responses(run.ollama)
    for name, table in tables.items():

        def write(path: Path, table: pa.Table = table) -> None:
            pq.write_table(table, path, compression="zstd")

        write_atomically(folder / f"{name}.parquet", write)
    described = {"format": FORMAT, **manifest, "server": _server(run), "warnings": run.warnings, "versions": versions()}
    write_text(folder / "manifest.json", json.dumps(described, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file, complete or not at all.

    Raises:
        UserError: the folder cannot be made or written, or the disk is full.
    """
    write_atomically(path, lambda temporary: _write_utf8(temporary, text))


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a temporary file next to `path`, and puts it in its place once it is complete.

    Raises:
        UserError: one line that says what could not be written, and why.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        _remove(temporary)
        reason = error.strerror or str(error)
        raise UserError(f"{path}: cannot be written: {reason}; choose another folder with --out") from None
    except BaseException:
        _remove(temporary)  # Ctrl-C leaves no half of a file
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # the folder itself may be what is wrong
        return


def _write_utf8(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _requests(run: RunRecord) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - see write_run

    columns: dict[str, pa.Array] = {}
    for field in fields(RequestRecord):
        values = [getattr(request, field.name) for request in run.requests]
        match field.name:
            case "class_id":
                columns["class_name"] = _dictionary(values, list(run.class_names))
            case "outcome":
                names = [outcome.name.lower() for outcome in sorted(Outcome)]
                columns["outcome"] = _dictionary([int(value) for value in values], names)
            case _:
                columns[field.name] = pa.array(values, type=pa.int64())
    return pa.table(columns)


def _responses(log: OllamaLog) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - see write_run

    columns = {}
    for field in fields(OllamaResponse):
        values = [getattr(response, field.name) for response in log.responses]
        if field.name == "model_id":
            columns["model"] = _dictionary(values, [model.name for model in log.models])
        else:
            columns[field.name] = pa.array(values, type=pa.int64())
    return pa.table(columns)


def _log(log: Any) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - see write_run

    columns: dict[str, array[int]] = {field.name: getattr(log, field.name) for field in fields(log)}
    return pa.table({name: pa.array(column, type=pa.int64()) for name, column in columns.items()})


def _dictionary(codes: list[int], names: list[str]) -> pa.Array:
    """Returns a column of names, each written once."""
    import pyarrow as pa  # noqa: PLC0415 - see write_run

    return pa.DictionaryArray.from_arrays(pa.array(codes, type=pa.int32()), pa.array(names, type=pa.string()))


def _server(run: RunRecord) -> dict[str, Any]:
    return {
        "num_replicas": run.num_replicas,
        "num_gpu_blocks": run.num_gpu_blocks,
        "block_size": run.block_size,
        "max_num_seqs": run.max_num_seqs,
        "max_num_batched_tokens": run.max_num_batched_tokens,
        "calibrated": run.calibrated,
        "end_ns": run.end_ns,
        "arrivals_end_ns": run.arrivals_end_ns,
    }
