"""A configuration on its way to a simulation: the scenario that it makes, or why its server does not start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.deployment import Deployment, plan
from sim.errors import UserError
from sim.scenario.checks import check_lengths
from sim.scenario.load import override
from sim.scenario.model import Scenario
from sim.scenario.problems import ScenarioError, dotted
from sim.scenario.server import Flags
from sim.search.space import Parameters
from sim.sweep.kept import address


@dataclass(frozen=True, slots=True)
class Configuration:
    """One choice of flags.

    Attributes:
        parameters: dotted key -> value.
        scenario: what is simulated; None when the server would not start or could serve none of the requests.
        cause: why not; empty when it can be simulated.
        address: the content hash of everything that decides the result, every flag written out: configurations that
            mean the same server have the same one.
    """

    parameters: Parameters
    scenario: Scenario | None
    cause: str = ""
    address: str = ""


def configure(base: Scenario, parameters: Mapping[str, Any]) -> Configuration:
    """Returns what a choice of flags makes of a scenario."""
    chosen = dict(parameters)
    try:
        scenario = override(base, chosen)
    except ScenarioError as error:
        said = (f"{each.key}: {each.message}" if each.key else each.message for each in error.problems)
        return Configuration(chosen, None, "; ".join(said))
    try:
        deployment = plan(scenario)
    except UserError as error:
        return Configuration(chosen, None, str(error))
    for key, message in check_lengths(scenario, deployment.flags.max_model_len):
        return Configuration(chosen, None, f"{dotted(key)}: {message}")
    return Configuration(chosen, scenario, address=address(_written_out(scenario, deployment), None, scenario.run.seed))


def resolved(scenario: Scenario, keys: tuple[str, ...]) -> Parameters:
    """Returns the values that a scenario's server has, defaults included; none when it would not start."""
    try:
        flags: Any = plan(scenario).flags
    except UserError:
        flags = scenario.server.flags
    names = {key: key.removeprefix("server.") for key in keys}
    return {key: getattr(flags if name in Flags.model_fields else scenario.server, name) for key, name in names.items()}


def _written_out(scenario: Scenario, deployment: Deployment) -> Scenario:
    """Returns the scenario with every flag at the value that it has in this server."""
    flags = {name: getattr(deployment.flags, name) for name in Flags.model_fields}
    server = scenario.server.model_copy(update={"flags": scenario.server.flags.model_copy(update=flags)})
    return scenario.model_copy(update={"server": server})
