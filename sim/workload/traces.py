"""Reading a recorded trace of any known format."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sim.errors import UserError
from sim.workload.text_files import open_lines
from sim.workload.trace import Trace
from sim.workload.trace_csv import read_azure, read_csv
from sim.workload.trace_json import read_mooncake, read_vllm_bench

TraceFormat = Literal["mooncake", "azure", "vllm_bench", "csv"]


def read_trace(path: Path, trace_format: TraceFormat | None = None) -> Trace:
    """Reads a trace, plain or gzip; without a format it is told from the first line.

    Raises:
        UserError: the file cannot be read as such a trace; the message names line and column.
    """
    match trace_format or detect_format(path):
        case "mooncake":
            return read_mooncake(path)
        case "azure":
            return read_azure(path)
        case "vllm_bench":
            return read_vllm_bench(path)
        case "csv":
            return read_csv(path)


def detect_format(path: Path) -> TraceFormat:
    """Returns the format that the first line with anything in it speaks for.

    Raises:
        UserError: the file cannot be read, or is empty.
    """
    with open_lines(path) as lines:
        first = next((line for line in lines if not line.isspace()), None)
    if first is None:
        raise UserError(f"{path}:1:1: empty; expected a trace (mooncake, azure, vllm_bench or csv)")
    if first.lstrip().startswith(("{", "[")):
        return "mooncake" if '"input_length"' in first or '"hash_ids"' in first else "vllm_bench"
    return "azure" if "contexttokens" in first.lower() and "timestamp" in first.lower() else "csv"
