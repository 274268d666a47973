"""A run on disk: Parquet files and a manifest, byte-identical for the same scenario, seed and versions.

    requests.parquet    one row a request (the fields of RequestRecord)
    steps.parquet       one row an engine step (the columns of StepLog)
    itl.parquet         one row a run of equal inter-token gaps (the columns of ItlLog)
    preemptions.parquet one row a preemption (the columns of PreemptionLog)
    responses.parquet   of Ollama alone: one row an answer, with its timing fields
    manifest.json       what they are: scenario and its hash, seed, load, versions, the server's limits

Every column is int64 (times are nanoseconds since the start of the run; -1 means "never happened"), but for names,
which are dictionaries of text: `class_name` in place of class_id, `outcome` (in lower case), and the `model` of an
answer. `tables.py` makes the columns. No file holds a date: what depends on when it was made could not be compared.
Each file appears complete or not at all.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sim import __version__
from sim.errors import UserError
from sim.records import RunRecord

FORMAT = 2
"""Of the files; rises when a reader of older ones would misread them."""


def versions() -> dict[str, str]:
    """Returns the versions of everything that can change a result."""
    known = {name: version(name) for name in ("numpy", "simpy", "pyarrow")}
    return {"headcount": __version__, "python": platform.python_version(), **known}


def write_run(folder: Path, run: RunRecord, manifest: Mapping[str, Any]) -> None:
    """Writes one run to a folder, which is made if need be.

    Args:
        folder: where the files go; existing ones are replaced.
        run: what to write.
        manifest: scenario, scenario_hash, seed, load and whatever else names the run.

    Raises:
        UserError: the folder cannot be made or written, or the disk is full.
    """
    from sim.results.tables import tables, write_table  # noqa: PLC0415 - a run without --out need not import pyarrow

    for name, table in tables(run).items():
        write_atomically(folder / f"{name}.parquet", partial(write_table, table=table))
    described = {"format": FORMAT, **manifest, "server": _server(run), "warnings": run.warnings, "versions": versions()}
    write_text(folder / "manifest.json", json.dumps(described, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file, complete or not at all.

    Raises:
        UserError: the folder cannot be made or written, or the disk is full.
    """
    write_atomically(path, lambda temporary: _write_utf8(temporary, text))


def check_writable(folder: Path) -> None:
    """Makes a folder and tries it, so that nobody learns after an hour that it cannot be written.

    Raises:
        UserError: it cannot be made or written.
    """
    probe = folder / f".writable.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink(missing_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(each for each in (folder, *folder.parents) if each.exists())
        raise UserError(f"{folder}: cannot be made: {file} is a file; choose another folder with --out") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{folder}: cannot be written: {reason}; choose another folder with --out") from None


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


def _server(run: RunRecord) -> dict[str, Any]:
    return {
        "class_names": list(run.class_names),
        "num_replicas": run.num_replicas,
        "num_gpu_blocks": run.num_gpu_blocks,
        "block_size": run.block_size,
        "max_num_seqs": run.max_num_seqs,
        "max_num_batched_tokens": run.max_num_batched_tokens,
        "calibrated": run.calibrated,
        "end_ns": run.end_ns,
        "arrivals_end_ns": run.arrivals_end_ns,
        **({"fleet": {"events": run.fleet.events, "rerouted": run.fleet.rerouted}} if run.fleet is not None else {}),
    }
