"""Profiles: the fitted cost model of one (model, GPU, parallelism, vLLM version), with its data and its errors.

A profile is a YAML file; `calibrate/profiles/README.md` describes the format key by key, and the shipped ones lie
beside it. Every number has its unit in its name. A coefficient is a plain number, or `{value: 41.0, stderr: 0.3}`.
"""

from __future__ import annotations

import datetime
import difflib
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from sim.engine.fitted import FittedModel, Validity
from sim.engine.operator_files import read_operator_tables
from sim.engine.operator_table import Collective, OperatorTableModel, OperatorTables
from sim.engine.profile_terms import ZERO, Coefficient, FittedStepTime, LinearStepTime, OperatorTableStepTime, Part
from sim.engine.profile_yaml import read_yaml, write_yaml
from sim.engine.step_time import ClientLatency, StepTimeModel
from sim.errors import UnknownNameError, UserError
from sim.hardware import find_gpu
from sim.models import find_model

PROFILES_DIR = Path(__file__).parents[2] / "calibrate" / "profiles"
"""Where the shipped profiles lie, in a checkout and in an installed wheel alike."""


class ProfiledServer(Part):
    """What was measured: a prediction for anything else is a guess, and said to be one."""

    model: str
    gpu: str
    vllm_version: str
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    data_parallel_size: int = Field(default=1, ge=1)
    async_scheduling: bool = True
    """Whether the measured engine scheduled asynchronously (vLLM's default on GPUs)."""
    flags: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """vLLM flags of the measured server that were not left at their defaults."""


class ValidUpTo(Part):
    """The largest values of a step in the data; a prediction beyond them says that it extrapolates."""

    num_tokens: int | None = Field(default=None, ge=1)
    num_requests: int | None = Field(default=None, ge=1)
    attention_pairs: int | None = Field(default=None, ge=1)
    decode_context: int | None = Field(default=None, ge=1)
    chunk_context: int | None = Field(default=None, ge=1)


class ClientSide(Part):
    """Time outside the engine, which delays the client and does not hold the batch."""

    request_ms: Coefficient = ZERO
    per_prompt_token_us: Coefficient = ZERO
    response_ms: Coefficient = ZERO
    serial_ms: Coefficient = ZERO
    """How long after the one before it each of several requests sent at once reaches the engine."""

    def latency(self) -> ClientLatency:
        """Returns it as the simulation takes it."""
        return ClientLatency(
            request_ns=round(1e6 * self.request_ms.value),
            per_prompt_token_ns=1e3 * self.per_prompt_token_us.value,
            response_ns=round(1e6 * self.response_ms.value),
            serial_ns=round(1e6 * self.serial_ms.value),
        )


class MeasuredError(Part):
    """One number of a measured run beside the profile's prediction of it."""

    metric: Literal[
        "ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "duration_s",
        "request_throughput_per_s", "output_throughput_per_s", "preemptions",
    ]  # fmt: skip
    statistic: str | None = Field(default=None, pattern=r"^(mean|median|max|p\d{1,2}(\.\d+)?)$")
    measured: float
    predicted: float
    server_spread_percent: float | None = Field(default=None, ge=0)
    """How far the real server's own repeats differ: no prediction can be better."""

    @property
    def error_percent(self) -> float:
        """Signed: positive where the profile predicts more than was measured; 0 when both are 0."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else math.inf
        return 100.0 * (self.predicted - self.measured) / self.measured


class ErrorTable(Part):
    """The profile's errors on one measured run."""

    run: str
    band: Literal["low", "middle", "saturated"] | None = None
    held_out: bool = False
    """Whether the run was left out of the fit: only then is the error one of prediction."""
    rows: tuple[MeasuredError, ...] = Field(min_length=1, strict=False)


class Profile(Part):
    """One profile file."""

    format: Literal[1]
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str | None = None
    calibrated: Literal[True, "prior"]
    """true: fitted to measurements of the server; prior: derived otherwise, and shown as uncalibrated."""
    date: datetime.date
    source: str
    data: tuple[str, ...] = Field(min_length=1, strict=False)
    server: ProfiledServer
    step_time: Annotated[FittedStepTime | LinearStepTime | OperatorTableStepTime, Field(discriminator="kind")]
    valid_up_to: ValidUpTo = ValidUpTo()
    client_latency: ClientSide = ClientSide()
    errors: tuple[ErrorTable, ...] = Field(default=(), strict=False)
    notes: tuple[str, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _calibrated_has_errors(self) -> Self:
        if self.calibrated is True and not self.errors:
            raise ValueError("calibrated: true needs errors: how far are the profile's predictions from the data?")
        return self

    def step_time_model(self, async_scheduling: bool = True) -> StepTimeModel:
        """Returns a fresh model (it remembers how far out of range it was asked); times in nanoseconds.

        Args:
            async_scheduling: whether the simulated engine schedules asynchronously: then the host's work hides
                behind the device's.
        """
        calibrated = self.calibrated is True
        if isinstance(self.step_time, LinearStepTime):
            return self.step_time.model(self.name, calibrated=calibrated)
        if isinstance(self.step_time, OperatorTableStepTime):
            return _operator_table_model(self, self.step_time)
        return FittedModel(
            self.step_time.coefficients(),
            name=self.name,
            calibrated=calibrated,
            async_scheduling=async_scheduling,
            validity=Validity(**self.valid_up_to.model_dump()),
        )

    def latency(self) -> ClientLatency:
        """Returns the time outside the engine."""
        return self.client_latency.latency()


def _operator_table_model(profile: Profile, step_time: OperatorTableStepTime) -> OperatorTableModel:
    return OperatorTableModel(
        _operator_tables(PROFILES_DIR / step_time.tables, profile.server.model, step_time.expert_parallel_size),
        name=profile.name,
        graph_sizes=step_time.graph_sizes,
        collectives=[
            Collective(each.per_step, tuple((tokens, 1e3 * us) for tokens, us in each.time_us))
            for each in step_time.collectives
        ],
        step_ns=1e3 * step_time.step_us.value,
        calibrated=profile.calibrated is True,
    )


@lru_cache(maxsize=4)
def _operator_tables(folder: Path, model: str, expert_parallel_size: int) -> OperatorTables:
    """Reads tables once for all runs of a search."""
    return read_operator_tables(folder, find_model(model), expert_parallel_size)


def profile_names() -> list[str]:
    """Returns the names of the shipped profiles, sorted."""
    return sorted(path.stem for path in PROFILES_DIR.glob("*.yaml"))


def load_profile(name_or_path: str | Path) -> Profile:
    """Reads a shipped profile by name, or any profile by path (a text with a slash or ending in .yaml or .yml).

    Raises:
        UnknownNameError: no such profile.
        UserError: a file that cannot be read or breaks the format: file, line, column, key and cure.
    """
    text = str(name_or_path)
    is_path = isinstance(name_or_path, Path) or "/" in text or text.endswith((".yaml", ".yml"))
    path = Path(text) if is_path else PROFILES_DIR / f"{text}.yaml"
    if not is_path and text not in profile_names():
        near = difflib.get_close_matches(text, profile_names(), n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(profile_names())}"
        raise UnknownNameError(f"profile {text!r}: no shipped profile has this name; {hint} (a path ends in .yaml)")
    return read_yaml(path, Profile)


def save_profile(profile: Profile, path: Path) -> None:
    """Writes a profile that `load_profile` reads back as the same; the file appears whole or not at all."""
    write_yaml(path, profile.model_dump(exclude_defaults=True, mode="python"))


class ServerLike(Protocol):
    """What of a scenario's server decides whether a profile speaks of it."""

    @property
    def model(self) -> str:
        """As the scenario names it."""

    @property
    def gpu(self) -> str:
        """Name or alias of a GPU."""

    @property
    def version(self) -> str:
        """Release of vLLM."""

    @property
    def tensor_parallel_size(self) -> int:
        """GPUs that share each layer."""

    @property
    def pipeline_parallel_size(self) -> int:
        """Stages."""

    @property
    def data_parallel_size(self) -> int:
        """Replicas."""

    @property
    def flags(self) -> Any:
        """vLLM flags as attributes; None or missing is the default."""


# Flags that change what a step costs, and what vLLM takes where they are not given.
_COST_FLAGS: dict[str, Any] = {
    "dtype": "bfloat16",
    "kv_cache_dtype": "auto",
    "quantization": None,
    "enforce_eager": False,
    "enable_expert_parallel": False,
}
# One type under several names; `auto` is bfloat16 for nearly all models of today.
_DTYPES = {"auto": "bfloat16", "half": "float16", "float": "float32", "fp8": "fp8_e4m3"}


def for_server(profile: Profile, server: ServerLike) -> Profile:
    """Returns the profile; a prior, where its model, its GPU or its number of GPUs is another than the server's.

    Its errors were measured there, and say nothing of a server that differs so much.
    """
    measured = profile.server
    names = ("model", "gpu", "tensor_parallel_size", "pipeline_parallel_size")
    if profile.calibrated is not True or all(
        _same(name, getattr(measured, name), getattr(server, name)) for name in names
    ):
        return profile
    return profile.model_copy(update={"calibrated": "prior"})


def profile_mismatches(profile: Profile, server: ServerLike) -> list[str]:
    """Returns one sentence for each way in which the server is not the one that was measured.

    Only what changes the duration of a step is compared; limits such as max_num_seqs are the scheduler's business.
    """
    measured = profile.server
    pairs: list[tuple[str, Any, Any]] = [
        ("model", measured.model, server.model),
        ("gpu", measured.gpu, server.gpu),
        ("tensor_parallel_size", measured.tensor_parallel_size, server.tensor_parallel_size),
        ("pipeline_parallel_size", measured.pipeline_parallel_size, server.pipeline_parallel_size),
        ("version", _minor(measured.vllm_version), _minor(server.version)),
    ]
    for flag, default in _COST_FLAGS.items():
        given = getattr(server.flags, flag, None)
        pairs.append((flag, measured.flags.get(flag, default), default if given is None else given))
    if getattr(server.flags, "enable_expert_parallel", None) or measured.flags.get("enable_expert_parallel"):
        # Only then do the ranks share a step; otherwise replicas are servers of their own.
        pairs.append(("data_parallel_size", measured.data_parallel_size, server.data_parallel_size))
    asynchronous = getattr(server.flags, "async_scheduling", None)
    if asynchronous is not None:
        pairs.append(("async_scheduling", measured.async_scheduling, asynchronous))
    return [
        f"profile {profile.name} was measured with {key} {was}; this server has {now}: its step times may differ"
        for key, was, now in pairs
        if not _same(key, was, now)
    ]


def _minor(version: str) -> str:
    """Releases are compared by their first two numbers: 0.23.0 is 0.23."""
    return ".".join(version.removeprefix("v").split("+")[0].split(".")[:2])


def _same(key: str, was: Any, now: Any) -> bool:
    if key == "gpu":
        return _gpu_name(was) == _gpu_name(now)
    if key == "model":
        return bool(_shape(was) == _shape(now))
    if key in ("dtype", "kv_cache_dtype"):
        return bool(_DTYPES.get(was, was) == _DTYPES.get(now, now))
    return bool(was == now)


def _gpu_name(name: str) -> str:
    """Returns the built-in table's name for a GPU, so that aliases are equal; the text itself where it has none."""
    try:
        return find_gpu(name).name
    except UserError:
        return name.casefold()


def _shape(name: str) -> Any:
    """Returns the model's shape without its name, for equal shapes cost the same; the text where it is unknown."""
    try:
        return replace(find_model(name), name="")
    except UserError:
        return name.casefold()
