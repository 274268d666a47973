"""Readers of measured runs: which format a file has, and its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from calibrate.readers.measured import MeasuredRun

RunFormat = Literal["csv", "vllm_bench", "guidellm", "llmservingsim"]


def read_runs(path: Path, prompts: Path | None = None) -> list[MeasuredRun]:
    """Reads the runs of a file, whose format is told from its content.

    Args:
        path: a table of requests, a result of `vllm bench serve`, a GuideLLM report, or a run of LLMServingSim.
        prompts: the data set of a run of LLMServingSim, with the prompts' token ids: what they share is cached.

    Raises:
        UserError: the file cannot be read as such.
    """
    from calibrate.readers.csv_requests import read_request_csv
    from calibrate.readers.guidellm import read_guidellm
    from calibrate.readers.llmservingsim import read_llmservingsim
    from calibrate.readers.vllm_bench import read_bench_result

    match detect_run_format(path):
        case "csv":
            return [read_request_csv(path)]
        case "vllm_bench":
            return [read_bench_result(path)]
        case "guidellm":
            return read_guidellm(path)
        case "llmservingsim":
            return [read_llmservingsim(path, prompts)]


def detect_run_format(path: Path) -> RunFormat:
    """Returns the format that the file's beginning speaks for.

    Raises:
        UserError: the file cannot be read, or is empty.
    """
    from sim.errors import UserError
    from sim.workload.text_files import open_lines

    with open_lines(path) as lines:
        first = next((line for line in lines if not line.isspace()), None)
        if first is None:
            raise UserError(f"{path}:1:1: empty; expected a table of requests or the result of a benchmark")
        if not first.lstrip().startswith("{"):
            return "csv"
        if '"queued_ts"' in first:
            return "llmservingsim"
        head = first + lines.text.read(100_000)
    return "guidellm" if '"benchmarks"' in head else "vllm_bench"
