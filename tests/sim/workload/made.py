"""Small scenarios, made in a line or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.scenario.model import Scenario

SERVER = {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "rtx-4090"}

CHAT = {
    "name": "chat",
    "first_prompt_tokens": {"lognormal": {"median": 250, "p95": 2000}},
    "next_prompt_tokens": {"lognormal": {"median": 60, "p95": 400}},
    "output_tokens": {"lognormal": {"median": 220, "p95": 900}},
    "turns": {"geometric": {"mean": 8, "max": 40}},
    "think_time": {"lognormal": {"median": "45s", "p95": "4min"}},
}

ONE_SHOT = {"name": "api", "prompt_tokens": {"uniform": {"low": 10, "high": 1000}}, "output_tokens": 50}


def scenario(workload: dict[str, Any], folder: Path = Path(), **rest: Any) -> Scenario:
    """Returns a scenario around a workload, as a file in `folder` would give it."""
    run = rest.pop("run", {"duration": "30min"})
    data = {"name": "made", "server": SERVER, "workload": workload, "run": run, **rest}
    return Scenario.model_validate(data).with_base_dir(folder)


def users(run: dict[str, Any] | None = None, search: dict[str, Any] | None = None, **workload: Any) -> Scenario:
    """Returns a scenario with users; `chat` changes keys of its only class."""
    chat = {**CHAT, **workload.pop("chat", {})}
    data = {"kind": "users", "users": 10, "classes": [chat], **workload}
    return scenario(data, run={"duration": "30min"} if run is None else run, search=search)


def open_loop(run: dict[str, Any] | None = None, **workload: Any) -> Scenario:
    """Returns a scenario with an open loop of 5 requests a second."""
    data = {"kind": "open_loop", "request_rate": 5, "classes": [ONE_SHOT], **workload}
    return scenario(data, run={"duration": "10min"} if run is None else run)


def closed_loop(**workload: Any) -> Scenario:
    """Returns a scenario with the client of `vllm bench serve`."""
    data = {"kind": "closed_loop", "num_requests": 200, "classes": [ONE_SHOT], **workload}
    return scenario(data, run={})
