"""What a plan tries: the scenario's server on other GPUs, with other numbers of them.

A candidate's changes are written as `--set` takes them, so that each row of a plan can be run alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sim.deployment import ANALYTICAL, plan
from sim.engine.profile import load_profile, profile_mismatches, profile_names
from sim.errors import UnknownNameError, UserError
from sim.hardware import find_gpu
from sim.memory.weights import check_parallel
from sim.models import find_model
from sim.scenario.load import override
from sim.scenario.model import Scenario
from sim.server_spec import server_spec

_DEGREES = (1, 2, 4, 8)
_OWN_SIZES = ("server.num_gpu_blocks_override", "server.kv_cache_memory_bytes", "server.memory")
_LIFE = ("server.autoscaling", "server.failures", "server.model_switch", "server.slow_gpus")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve.

    Attributes:
        gpu: the GPU's name in the built-in table.
        tensor_parallel_size: GPUs of a replica that share each layer.
        scenario: with that server, one replica of it; None when it would not start.
        changes: dotted key -> value, what was changed in the scenario.
        notes: what of the scenario's own settings was left out, and why.
        problem: why it would not start; None when it would.
    """

    gpu: str
    tensor_parallel_size: int
    scenario: Scenario | None
    changes: dict[str, Any]
    notes: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        if self.scenario is None:
            return self.tensor_parallel_size
        return self.scenario.server.gpus_per_replica

    def with_replicas(self, replicas: int) -> Scenario:
        """Returns the scenario with so many of them."""
        assert self.scenario is not None, f"{self.gpu} x {self.tensor_parallel_size} does not start: {self.problem}"
        return override(self.scenario, {"server.replicas": replicas})

    def settings(self, replicas: int) -> list[str]:
        """Returns the changes as `--set` takes them."""
        return [f"{key}={_yaml(value)}" for key, value in {**self.changes, "server.replicas": replicas}.items()]


def candidates(
    scenario: Scenario, gpus: Sequence[str] = (), degrees: Sequence[int] = (), router: str | None = None
) -> tuple[Candidate, ...]:
    """Returns what is tried, one GPU after the other, each with growing tensor parallelism.

    Args:
        scenario: what is to be served.
        gpus: names or aliases; none: the scenario's own.
        degrees: tensor parallel sizes; none: the smallest that starts, and twice that.
        router: how requests are divided; None: the scenario's rule where it has several replicas, else by fewest
            requests in flight.

    Raises:
        UserError: an unknown GPU, model or profile, a degree that the model cannot be spread over, or a server that is
            not vLLM.
    """
    if scenario.server.kind != "vllm":
        raise UserError(f"server.kind: plans are made for vllm; got {scenario.server.kind}")
    _check_degrees(scenario, degrees)
    several = scenario.server.replicas > 1 or scenario.server.autoscaling is not None
    rule = router or (scenario.server.router if several else "least_requests")
    found: list[Candidate] = []
    for name in dict.fromkeys(find_gpu(each).name for each in gpus or (scenario.server.gpu,)):
        tried = [_candidate(scenario, name, degree, rule) for degree in degrees or _DEGREES]
        if not degrees:
            tried = _smallest_and_twice(tried)
        found += tried
    return tuple(found)


def _check_degrees(scenario: Scenario, degrees: Sequence[int]) -> None:
    """Refuses what vLLM rejects whatever the GPU is: only what does not fit is a candidate that does not start."""
    model = find_model(scenario.locate(scenario.server.model))
    for degree in degrees:
        try:
            check_parallel(model, replace(server_spec(scenario.server), tensor_parallel_size=degree))
        except UserError as error:
            raise UserError(f"--tp {degree}: {str(error).removeprefix('tensor_parallel_size: ')}") from None


def _smallest_and_twice(tried: list[Candidate]) -> list[Candidate]:
    starts = [candidate for candidate in tried if candidate.problem is None]
    return starts[:2] if starts else tried[-1:]


def _candidate(scenario: Scenario, gpu: str, degree: int, router: str) -> Candidate:
    server = scenario.server
    changes: dict[str, Any] = {"server.gpu": gpu, "server.tensor_parallel_size": degree, "server.router": router}
    notes: list[str] = []
    is_own = find_gpu(server.gpu).name == gpu and server.tensor_parallel_size == degree
    if not is_own:
        changes |= dict.fromkeys(_own_sizes(scenario))
        if len(changes) > 3:
            notes.append("measured memory and given KV sizes are of another server, and left out")
    for key in _LIFE:
        if getattr(server, key.removeprefix("server.")):
            changes[key] = None
            notes.append(f"{key.removeprefix('server.')} left out: a plan looks at the steady state")
    if server.interconnect == "nvlink" and find_gpu(gpu).nvlink_bytes_per_s is None:
        changes["server.interconnect"] = None
    if not is_own:
        changes["server.profile"] = _best_profile(scenario, changes)
    try:
        changed = override(scenario, {**changes, "server.replicas": 1})
        plan(changed)
    except UnknownNameError:
        raise
    except UserError as error:
        return Candidate(gpu, degree, None, changes, tuple(notes), str(error))
    return Candidate(gpu, degree, changed, changes, tuple(notes))


def _own_sizes(scenario: Scenario) -> list[str]:
    """Returns the keys by which the scenario states sizes of its own hardware."""
    server = scenario.server
    given = {
        "server.num_gpu_blocks_override": server.flags.num_gpu_blocks_override,
        "server.kv_cache_memory_bytes": server.flags.kv_cache_memory_bytes,
        "server.memory": server.memory.model_fields_set or None,
    }
    return [key for key in _OWN_SIZES if given[key] is not None]


def _best_profile(scenario: Scenario, changes: dict[str, Any]) -> str:
    """Returns a shipped profile that was measured on just this server, else `analytical`."""
    try:
        server = override(scenario, {**changes, "server.profile": ANALYTICAL}).server
    except UserError:
        return ANALYTICAL
    for name in profile_names():
        profile = load_profile(name)
        if profile.calibrated is True and not profile_mismatches(profile, server):
            return name
    return ANALYTICAL


def _yaml(value: Any) -> str:
    return "null" if value is None else value if isinstance(value, str) else json.dumps(value)
