"""Ollama profiles: what a batch and a load cost on one server, fitted to its responses or set by hand.

The same YAML as a vLLM profile (calibrate/profiles/README.md) for `step_time`, `client_latency`, `data`, `errors` and
`notes`; `server` names the Ollama server, and `load` what a load costs.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sim.engine.fitted import FittedModel
from sim.engine.profile import ClientSide, ErrorTable
from sim.engine.profile_terms import Coefficient, FittedStepTime, LinearStepTime, Part
from sim.engine.profile_yaml import read_yaml, write_yaml
from sim.engine.step_time import ClientLatency, StepTimeModel


class MeasuredOllama(Part):
    """What was measured."""

    model: str
    gpu: str
    ollama_version: str
    weights: str | None = None
    num_parallel: int = Field(default=1, ge=1)
    num_ctx: int | None = Field(default=None, ge=1)


class LoadCost(Part):
    """What a load costs, as `load_duration` shows it."""

    load_ms: Coefficient
    """From nothing to a model that is ready."""


class OllamaProfile(Part):
    """One profile file of an Ollama server."""

    format: Literal[1]
    kind: Literal["ollama"]
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str | None = None
    calibrated: Literal[True, "prior"]
    """true: fitted to responses of the server; prior: derived otherwise, and shown as uncalibrated."""
    date: datetime.date
    source: str
    data: tuple[str, ...] = Field(min_length=1, strict=False)
    server: MeasuredOllama
    step_time: Annotated[FittedStepTime | LinearStepTime, Field(discriminator="kind")]
    load: LoadCost | None = None
    client_latency: ClientSide = ClientSide()
    errors: tuple[ErrorTable, ...] = Field(default=(), strict=False)
    notes: tuple[str, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _calibrated_has_errors(self) -> Self:
        if self.calibrated is True and not self.errors:
            raise ValueError("calibrated: true needs errors: how far are the profile's predictions from the data?")
        return self

    def step_time_model(self) -> StepTimeModel:
        """Returns a fresh model of what batches cost, in nanoseconds."""
        cost, calibrated = self.step_time, self.calibrated is True
        if isinstance(cost, LinearStepTime):
            return cost.model(self.name, calibrated=calibrated)
        return FittedModel(cost.coefficients(), name=self.name, calibrated=calibrated, async_scheduling=False)

    def latency(self) -> ClientLatency:
        """Returns the time outside the server."""
        return self.client_latency.latency()


def load_ollama_profile(path: Path) -> OllamaProfile:
    """Reads a profile.

    Raises:
        UserError: no such file, or one that breaks the format: file, line, column, key and cure.
    """
    return read_yaml(path, OllamaProfile)


def save_ollama_profile(profile: OllamaProfile, path: Path) -> None:
    """Writes a profile that `load_ollama_profile` reads back as the same; the file appears whole or not at all."""
    write_yaml(path, profile.model_dump(exclude_defaults=True, mode="python") | {"format": 1, "kind": "ollama"})
