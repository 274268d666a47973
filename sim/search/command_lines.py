"""Command lines, ready to be run: the server as `vllm serve` starts it, the trial as `headcount run` repeats it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.scenario.model import Scenario
from sim.search.space import Parameters
from sim.sweep.axes import as_text

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def serve_command(scenario: Scenario) -> str:
    """Returns the `vllm serve` command of a scenario's server; flags that are not set are left to vLLM.

    A model that is a file of its own is named by the folder it lies in, as vLLM takes it.
    """
    server = scenario.server
    words = ["vllm", "serve", _model(server.model)]
    for name in _SIZES:
        if getattr(server, name) != 1:
            words += [_option(name), str(getattr(server, name))]
    for name, value in server.flags.model_dump(exclude_none=True).items():
        words += _flag(name, value)
    return shlex.join(words)


def run_command(scenario_path: Path, options: Sequence[str], parameters: Parameters) -> str:
    """Returns the `headcount run` command that makes one trial again.

    Args:
        scenario_path: the scenario file, as the search was given it.
        options: what the search was given beside it: `--variant`, `--set`, the load, the seeds.
        parameters: the flags of the trial.
    """
    words = ["headcount", "run", str(scenario_path), *options]
    for key, value in parameters.items():
        words += ["--set", f"{key}={as_text(value)}"]
    return shlex.join(words)


def _model(name: str) -> str:
    return str(Path(name).parent) if name.endswith("config.json") else name


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _flag(name: str, value: Any) -> list[str]:
    if value is True:
        return [_option(name)]
    if value is False:
        return ["--no-" + name.replace("_", "-")]
    return [_option(name), str(value)]
