"""The server that a measured run is replayed on: the one that the profile measured, with what the user changes."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from sim.deployment import Deployment, plan
from sim.engine.profile import Profile, profile_mismatches
from sim.errors import UserError
from sim.scenario.model import ClosedLoopWorkload, Fixed, Flags, MemoryOverrides, Scenario, Server, SingleRequestClass

_NAMES = {
    "vllm_version": "version",
    "num_gpu_blocks": "num_gpu_blocks_override",
    "policy": "scheduling_policy",
    "max_concurrency": "client_max_concurrency",
}
"""Other names under which recordings and server descriptions hold the same things."""

_CLIENT = "client_max_concurrency"


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """A server, and the client's cap where its file states one.

    Attributes:
        server: as a scenario describes it.
        client_max_concurrency: None where the file says nothing of it.
    """

    server: Server
    client_max_concurrency: int | None = None

    def plan(self) -> Deployment:
        """Works out memory, flags and limits of one replica.

        Raises:
            UserError: vLLM would refuse to start it, or something is named that is not known.
        """
        server = self.server
        if server.data_parallel_size > 1:
            server = server.model_copy(update={"data_parallel_size": 1})
        one = Fixed(value=1)
        workload = ClosedLoopWorkload(
            kind="closed_loop",
            num_requests=1,
            max_concurrency=1,
            classes=(SingleRequestClass(name="none", prompt_tokens=one, output_tokens=one),),
        )
        deployment = plan(Scenario(name="replay", server=server, workload=workload))
        if deployment.profile is None or server is self.server:
            return deployment
        # Compared with the profile is the server as it is, not one of its replicas.
        told = [*deployment.memory.warnings, *profile_mismatches(deployment.profile, self.server)]
        return replace(deployment, warnings=tuple(told))


def choose_server(profile: Profile, file: Path | None = None, profile_path: Path | None = None) -> ServerChoice:
    """Returns the profile's own server, changed by a file of flags.

    The file is YAML or JSON. It may hold the keys of a scenario's `server` (under `server:` or at the top), flags of
    `vllm serve` at the top or under `flags:`, `num_gpu_blocks` (the pool that the server's log states) and
    `client_max_concurrency`.

    Args:
        profile: what was measured.
        file: what is different; None: nothing.
        profile_path: where the profile was read, when it is not a shipped one.

    Raises:
        UserError: the file cannot be read, or holds a key or value that no server has.
    """
    return describe_server(_profile_values(profile, profile_path), file)


def describe_server(values: dict[str, Any], file: Path | None = None) -> ServerChoice:
    """Returns a server from the keys of a scenario's `server`, changed by a file of flags (see `choose_server`).

    Raises:
        UserError: the file cannot be read, or holds a key or value that no server has.
    """
    values = {"flags": {}, "memory": {}, **values}
    client: int | None = None
    if file is not None:
        given = _read(file)
        client = given.pop(_CLIENT, None)
        for section in ("flags", "memory"):
            values[section] = {**values[section], **given.pop(section, {})}
        values |= given
    try:
        return ServerChoice(Server.model_validate(values), client)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{file or 'server'}: {key}: {first['msg']}; got {first['input']!r}") from None


def _profile_values(profile: Profile, profile_path: Path | None) -> dict[str, Any]:
    measured = profile.server
    flags = {_NAMES.get(key, key): value for key, value in measured.flags.items()}
    if measured.async_scheduling is False:
        flags.setdefault("async_scheduling", False)
    return {
        "model": measured.model,
        "gpu": measured.gpu,
        "version": measured.vllm_version,
        "tensor_parallel_size": measured.tensor_parallel_size,
        "pipeline_parallel_size": measured.pipeline_parallel_size,
        "data_parallel_size": measured.data_parallel_size,
        "profile": profile.name if profile_path is None else str(profile_path),
        "flags": {key: value for key, value in flags.items() if key in Flags.model_fields},
        "memory": {key: value for key, value in flags.items() if key in MemoryOverrides.model_fields},
    }


def _read(file: Path) -> dict[str, Any]:
    """Returns the file's keys, each where a scenario's server has it."""
    tree = _parse(file)
    inner = tree.pop("server", None)
    if isinstance(inner, dict):
        tree |= inner
    result: dict[str, Any] = {"flags": dict(tree.pop("flags", {})), "memory": dict(tree.pop("memory", {}))}
    result["flags"] = {_NAMES.get(key, key): value for key, value in result["flags"].items()}
    for key, value in tree.items():
        name = _NAMES.get(str(key), str(key))
        if name == _CLIENT or (name in Server.model_fields and name not in ("flags", "memory", "kind")):
            result[name] = value
        elif name in Flags.model_fields:
            result["flags"][name] = value
        elif name in MemoryOverrides.model_fields:
            result["memory"][name] = value
        else:
            _unknown(file, str(key))
    cap = result.get(_CLIENT)
    if cap is not None and (type(cap) is not int or cap < 1):
        raise UserError(f"{file}: {_CLIENT}: got {cap!r}; expected a whole number, at least 1")
    return result


def _parse(file: Path) -> dict[str, Any]:
    try:
        tree = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text: {error.reason}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UserError(f"{file}{at}: not valid YAML: {(error.problem or str(error)).splitlines()[0]}") from None
    except YAMLError as error:
        raise UserError(f"{file}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{file}:1:1: expected flags of the server, such as 'max_num_seqs: 256'; got {str(tree)[:40]}")
    return tree


def _unknown(file: Path, key: str) -> None:
    known = [*Flags.model_fields, *MemoryOverrides.model_fields, *Server.model_fields, *_NAMES, _CLIENT]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else "flags have the names of `vllm serve`, with underscores"
    text = file.read_text(encoding="utf-8").splitlines()
    places = (
        (i, found.start() + 1) for i, each in enumerate(text, 1) if (found := re.search(rf"\b{re.escape(key)}\b", each))
    )
    line, column = next(places, (1, 1))
    raise UserError(f"{file}:{line}:{column}: {key}: unknown key; {hint}")
