"""A scenario: one server, one workload, what is promised, and what is varied to find how much the server supports.

This is the data that a YAML file holds; `load.py` reads one. Durations are seconds, shares are fractions.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, Strict

from sim.scenario.bounds import MOST_SEEDS
from sim.scenario.distributions import (
    Distribution,
    DurationDistribution,
    Empirical,
    Exponential,
    Fixed,
    Geometric,
    Lognormal,
    Normal,
    Uniform,
    UniformRatio,
)
from sim.scenario.objectives import Bound, Objective
from sim.scenario.part import Part
from sim.scenario.server import Flags, MemoryOverrides, Server
from sim.scenario.units import Duration
from sim.scenario.workload import (
    AnyWorkload,
    ClosedLoopWorkload,
    ConversationClass,
    GammaArrivals,
    OpenLoopWorkload,
    Peaks,
    RateChange,
    RequestClass,
    Retries,
    Session,
    SharedPrefix,
    SingleRequestClass,
    TraceWorkload,
    UsersWorkload,
    Workload,
)


class Search(Part):
    """The quantity whose largest value, with every objective met, is the answer."""

    vary: Literal["users", "request_rate", "max_concurrency", "context_tokens"] = Field(
        description="What is varied. request_rate of a trace: its send times are stretched to this mean rate. "
        "context_tokens: every conversation opens with a prompt of this length, shared prefix included, "
        "in place of first_prompt_tokens."
    )
    from_: float = Field(alias="from", gt=0, description="Smallest load tried.")
    to: float = Field(gt=0, description="Largest load tried.")
    resolution: float | None = Field(
        default=None, gt=0, description="Stop when the answer is known this closely. Default: 1, or 1 % of a rate."
    )


class Run(Part):
    """How long and how often the simulation runs."""

    duration: Duration | None = Field(
        default=None,
        gt=0,
        description="Length of a run. May be left out when the workload has a fixed number of requests.",
    )
    warm_up: Duration = Field(default=0.0, description="Time at the start that is left out of all measures.")
    seeds: int = Field(
        default=5, gt=0, le=MOST_SEEDS, description="Independent repetitions, for the confidence interval."
    )
    seed: int = Field(default=0, ge=0, description="The first repetition's seed; the others follow it.")


class Scenario(Part):
    """Everything one question needs."""

    name: str = Field(min_length=1, description="Name in reports and of the output folder.")
    description: str | None = Field(default=None, description="One or two sentences for the reader of a report.")
    server: Server = Field(description="What serves.")
    workload: Workload = Field(description="Who asks.")
    objectives: Annotated[tuple[Objective, ...], Strict(False)] = Field(
        default=(), description="What is promised; all must hold in the steady-state window."
    )
    search: Search | None = Field(default=None, description="What is varied; without it, one load is simulated.")
    run: Run = Field(default_factory=Run, description="How long and how often.")
    active_share: float | None = Field(
        default=None, gt=0, le=1, description="Share of the registered people who are at work at the same moment."
    )
    variants: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Named sets of changes, dotted.key: value; `headcount run --variant NAME` applies one.",
    )

    _base_dir: Path = PrivateAttr(default=Path())

    def resolve(self, path: str) -> Path:
        """Returns the place of a file that the scenario names, relative to the scenario's own folder."""
        return self._base_dir / path

    def locate(self, name_or_path: str) -> str:
        """Returns the place of a model's or profile's file when the scenario names one that exists, else the name."""
        place = self.resolve(name_or_path)
        return str(place) if place.exists() else name_or_path

    def with_base_dir(self, folder: Path) -> Scenario:
        """Returns the same scenario as if it lay in `folder`."""
        copy = self.model_copy()
        copy._base_dir = folder
        return copy

    def files(self) -> tuple[str, ...]:
        """Returns the files that the workload reads, as the scenario names them."""
        return tuple(dict.fromkeys(_files(self.workload)))


def scenario_hash(scenario: Scenario) -> str:
    """Returns the SHA-256 (hex) of everything that decides the result: the scenario and the files it names.

    Defaults written out or left out, the order of keys, comments, description and the variants that were not chosen
    make no difference; the content of a trace, of a model's config.json or of a profile of one's own does.

    Raises:
        OSError: a file of the workload cannot be read.
    """
    data = scenario.model_dump(mode="json", by_alias=True, exclude={"description", "variants"})
    for kind in {"ollama", "static"} - {scenario.server.kind}:
        del data["server"][kind]  # settings of another server than the one that is simulated
    for key in _LATER_KEYS:
        if data["server"][key] in (Server.model_fields[key].get_default(), []):
            del data["server"][key]  # so that what was kept before the key existed is still found
    places = {file: scenario.resolve(file) for file in scenario.files()}
    for name in scenario.server.files():
        place = scenario.resolve(name)
        place = place / "config.json" if place.is_dir() else place
        if place.is_file():
            places[name] = place
    data["files"] = {name: hashlib.sha256(place.read_bytes()).hexdigest() for name, place in places.items()}
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


_LATER_KEYS = (
    "replicas", "router", "router_max_retries", "autoscaling", "failures", "model_switch",
    "clock_factor", "slow_gpus",
)  # fmt: skip


def _files(value: Any) -> list[str]:
    """Finds the paths in a workload, depth first."""
    if isinstance(value, Empirical):
        return [value.file]
    if isinstance(value, TraceWorkload):
        return [value.path]
    if isinstance(value, Part):
        return [file for name in type(value).model_fields for file in _files(getattr(value, name))]
    if isinstance(value, tuple):
        return [file for item in value for file in _files(item)]
    return []


__all__ = [
    "AnyWorkload",
    "Bound",
    "ClosedLoopWorkload",
    "ConversationClass",
    "Distribution",
    "DurationDistribution",
    "Empirical",
    "Exponential",
    "Fixed",
    "Flags",
    "GammaArrivals",
    "Geometric",
    "Lognormal",
    "MemoryOverrides",
    "Normal",
    "Objective",
    "OpenLoopWorkload",
    "Peaks",
    "RateChange",
    "RequestClass",
    "Retries",
    "Run",
    "Scenario",
    "Search",
    "Server",
    "Session",
    "SharedPrefix",
    "SingleRequestClass",
    "TraceWorkload",
    "Uniform",
    "UniformRatio",
    "UsersWorkload",
    "Workload",
    "scenario_hash",
]
