"""The points of a sweep: every combination of the values, each with the scenario it makes or the reason it makes none.

A combination that cannot be served (its weights do not fit, its flags contradict each other) is a result of the sweep
like any other. The sweep itself is at fault when none can be simulated, and when one names a model, a GPU or a profile
that does not exist or gives a value that its key cannot have: that is said before the first run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sim.capacity.loads import UNITS, Unit, own_load, unit_of
from sim.deployment import Deployment, plan_server
from sim.errors import UnknownNameError, UserError
from sim.scenario.checks import check_lengths, cross_check
from sim.scenario.load import load_scenario, override
from sim.scenario.model import Scenario, Search, TraceWorkload
from sim.scenario.problems import ContradictionError, ScenarioError, dotted
from sim.sweep.axes import LOADS, Axis, as_text, combinations

_WHOLE = tuple(name for name in LOADS if name != "request_rate")


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination.

    Attributes:
        number: its place in the sweep, from 0.
        overrides: axis key -> value.
        scenario: what is simulated, without a search of its own; None when the combination makes no sense.
        load: what `simulate` takes beside the scenario; None where the scenario holds the load already.
        cause: why it cannot be simulated; empty when it can.
        calibrated: whether its step times were fitted to a real server.
    """

    number: int
    overrides: Mapping[str, Any]
    scenario: Scenario | None
    load: float | None = None
    cause: str = ""
    calibrated: bool = False

    @property
    def unit(self) -> Unit | None:
        """What its load is counted in."""
        return unit_of(self.scenario) if self.scenario else None

    @property
    def stated_load(self) -> float | None:
        """Its load, wherever it comes from."""
        if self.load is not None or self.scenario is None:
            return self.load
        return own_load(self.scenario)


def plan_points(
    path: Path, axes: tuple[Axis, ...], sets: Sequence[str] = (), variant: str | None = None
) -> list[SweepPoint]:
    """Returns every point of a sweep of a scenario file.

    Args:
        path: the scenario.
        axes: what is varied.
        sets: changes to all points, as texts of `--set`.
        variant: a variant of the scenario.

    Raises:
        UserError: the scenario or a value is at fault, or no point can be simulated.
    """
    chosen = combinations(axes)
    base = _base(path, chosen, sets, variant)
    for axis in axes:
        if axis.is_load:
            _check_load(base, axis)
    points = [_point(number, base, overrides) for number, overrides in enumerate(chosen)]
    if all(point.cause for point in points):
        others = f" (and so with all {len(points)} combinations)" if len(points) > 1 else ""
        raise UserError(f"--vary {_named(points[0].overrides)}: {points[0].cause}{others}")
    return points


def _base(path: Path, chosen: list[dict[str, Any]], sets: Sequence[str], variant: str | None) -> Scenario:
    """Reads the scenario; what it lacks by itself (the users) may come from the values of the first point."""
    try:
        return load_scenario(path, sets, variant)
    except ScenarioError as error:
        first = [f"{_key(name)}={as_text(value)}" for name, value in chosen[0].items()]
        try:
            return load_scenario(path, [*sets, *first], variant)
        except ScenarioError:
            raise error from None


def _check_load(base: Scenario, axis: Axis) -> None:
    """Checks the loads as those of a search would be.

    Raises:
        UserError: the workload has no such quantity, or a value is no load.
    """
    for value in axis.values:
        where = f"--vary {axis.key}={as_text(value)}"
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise UserError(f"{where}: a load is a number above 0")
        search = Search.model_validate({"vary": axis.key, "from": value, "to": value})
        for key, message in cross_check(base.model_copy(update={"search": search})):
            if key[0] == "search":
                raise UserError(f"{where}: {message}")


def _point(number: int, base: Scenario, overrides: dict[str, Any]) -> SweepPoint:
    try:
        scenario, load = _apply(base, overrides)
    except ScenarioError as error:
        said = "; ".join(f"{each.key}: {each.message}" if each.key else each.message for each in error.problems)
        if not isinstance(error, ContradictionError):
            raise UserError(f"--vary {_named(overrides)}: {said}") from None
        return SweepPoint(number, overrides, None, cause=said)
    point = SweepPoint(number, overrides, scenario, load)
    try:
        deployment = plan_server(scenario)
    except UnknownNameError as error:
        raise UserError(f"--vary {_named(overrides)}: {error}") from None
    except UserError as error:
        return replace(point, cause=str(error))
    if not isinstance(deployment, Deployment):
        return replace(point, calibrated=deployment.calibrated)
    for key, message in check_lengths(scenario, deployment.flags.max_model_len):
        return replace(point, cause=f"{dotted(key)}: {message}")
    return replace(point, calibrated=deployment.profile is not None and deployment.profile.calibrated is True)


def _apply(base: Scenario, overrides: dict[str, Any]) -> tuple[Scenario, float | None]:
    """Returns the scenario of a combination, and the load that no key of it can hold."""
    changes: dict[str, Any] = {"search": None}
    load, varied = None, None
    for name, value in overrides.items():
        number = int(value) if name in _WHOLE else value
        if name == "context_tokens" or (name == "request_rate" and isinstance(base.workload, TraceWorkload)):
            load, varied = number, name
        else:
            changes[_key(name)] = number
    scenario = override(base, changes)
    if varied == "context_tokens":
        search = Search.model_validate({"vary": varied, "from": load, "to": load})
        scenario = scenario.model_copy(update={"search": search})
    return scenario, load


def _key(name: str) -> str:
    """Returns the dotted key of an axis; loads lie in the workload."""
    return f"workload.{name}" if name in UNITS else name


def _named(overrides: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={as_text(value)}" for key, value in overrides.items())
