"""A scenario that was read and can be served: what `check` says and what every other command starts from.

The scenario alone cannot know whether its model fits its GPU: these checks look at models, GPUs, memory, profiles and
traces, and say what is wrong at the place in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sim.errors import UserError

if TYPE_CHECKING:
    from sim.hardware import Gpu
    from sim.memory import MemoryBudget
    from sim.models import ModelSpec
    from sim.scenario.model import Scenario
    from sim.scenario.problems import Path as KeyPath

_T = TypeVar("_T")


def load_checked(path: Path, overrides: Sequence[str] = (), variant: str | None = None) -> Scenario:
    """Reads a scenario and makes sure that its server would start and its requests can be sent.

    Raises:
        ScenarioError: all that is wrong with the file; or, when the file is sound, with the server or the requests.
    """
    from sim.scenario.load import load_scenario, locate_problem
    from sim.scenario.problems import ScenarioError

    scenario = load_scenario(path, overrides, variant)
    found = list(_findings(scenario))
    if found:
        overrides = tuple(overrides)
        raise ScenarioError(locate_problem(path, key, message, overrides, variant) for key, message in found)
    return scenario


def gpu_named(option: str, name: str) -> str:
    """Returns what the table calls a GPU that an option names.

    Raises:
        UserError: no such GPU; the message names the option.
    """
    from sim.hardware import find_gpu

    try:
        return find_gpu(name).name
    except UserError as error:
        raise UserError(f"{option}: {str(error).removeprefix('gpu: ')}") from None


def _findings(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Yields the key at fault and what is wrong."""
    from sim.hardware import find_gpu
    from sim.models import find_model
    from sim.scenario.checks import check_lengths

    server = scenario.server
    if server.kind == "ollama":
        yield from _ollama_findings(scenario)
        return
    model, problem = _try(lambda: find_model(scenario.locate(server.model)), ("server", "model"))
    yield from problem
    gpu, problem = _try(lambda: find_gpu(server.gpu), ("server", "gpu"))
    yield from problem
    if model is not None and gpu is not None:
        budget, problem = _try(lambda: _budget(scenario, model, gpu), ("server",))
        yield from problem
        if budget is not None and budget.refusal is not None:
            yield ("server",), f"vLLM would not start: {budget.refusal}"
        elif budget is not None and (server.profile != "analytical" or server.data_parallel_size > 1):
            yield from _plan_findings(scenario)
        if budget is not None and server.flags.max_model_len is None:
            yield from check_lengths(scenario, budget.max_model_len)
    if scenario.files():
        yield from _file_findings(scenario)


def _ollama_findings(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Plans the whole server: names, memory and profiles of every model."""
    from sim.ollama_deployment import plan_ollama

    yield from _try(lambda: plan_ollama(scenario), ("server", "ollama"))[1]
    if scenario.files():
        yield from _file_findings(scenario)


def _budget(scenario: Scenario, model: ModelSpec, gpu: Gpu) -> MemoryBudget:
    """Returns the memory budget: `sim.deployment` has the same steps, but brings the whole engine with it."""
    from sim.memory import memory_budget
    from sim.server_spec import server_spec

    return memory_budget(model, gpu, server_spec(scenario.server))


def _plan_findings(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Plans the whole server, for its profile: that loads the engine, which most scenarios can be checked without."""
    from sim.deployment import plan

    yield from _try(lambda: plan(scenario), ("server", "profile"))[1]


def _file_findings(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Reads traces and empirical files by building the smallest load."""
    from sim.scenario.checks import check_class_names
    from sim.workload.build import build_workload

    load = scenario.search.from_ if scenario.search else None
    workload, problem = _try(lambda: build_workload(scenario, scenario.run.seed, load), ("workload",))
    yield from problem
    if workload is not None:
        yield from check_class_names(scenario, workload.class_names)


def _try(action: Callable[[], _T], key: KeyPath) -> tuple[_T | None, list[tuple[KeyPath, str]]]:
    """Returns what the action returns, or the problem it raised, at the key that the message names or else at `key`."""
    try:
        return action(), []
    except UserError as error:
        named, message = _key_named(str(error))
        return None, [(named or key, message)]


def _key_named(message: str) -> tuple[KeyPath | None, str]:
    """Splits `max_model_len: too long` into the key of the file and the rest."""
    from sim.scenario.server import Flags, Server

    section = re.match(r"((?:ollama|static)\.[\w.]+): ", message)
    if section is not None:
        parts = (int(part) if part.isdecimal() else part for part in section[1].split("."))
        return ("server", *parts), message[section.end() :]
    match = re.match(r"(?:server\.)?(\w+)(: )?", message)
    word = match[1] if match else ""
    rest = message[match.end() :] if match and match[2] else message
    if word in Server.model_fields and match and match[2]:
        return ("server", word), rest
    if word in Flags.model_fields:
        return ("server", "flags", word), rest
    return None, message
