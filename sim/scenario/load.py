"""Reads a scenario, applies the changes asked for, and says in one line each what is wrong.

file -> plain data (source.py) -> changes (overrides.py) -> models (model.py) -> cross-field checks (checks.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from sim.scenario.checks import cross_check
from sim.scenario.explain import explain, suggestion
from sim.scenario.model import Scenario
from sim.scenario.overrides import full_path, parse_override, replace
from sim.scenario.problems import ContradictionError, Path, Problem, ScenarioError, dotted
from sim.scenario.source import Source, parse_source, read_source


def load_scenario(path: str | FilePath, overrides: Iterable[str] = (), variant: str | None = None) -> Scenario:
    """Reads a scenario file.

    Args:
        path: the YAML file.
        overrides: texts like `server.max_num_seqs=64`, applied in order, after the variant.
        variant: the name of one of the file's `variants`; it is appended to the scenario's name.

    Raises:
        ScenarioError: what is wrong, one line for each problem.
    """
    return _build(_Draft(read_source(path)), FilePath(path).parent, overrides, variant)


def scenario_from_text(text: str, file: str = "scenario.yaml", overrides: Iterable[str] = ()) -> Scenario:
    """Reads a scenario from YAML text; `file` names it in errors, and its folder is where the workload's files lie.

    Raises:
        ScenarioError: what is wrong, one line for each problem.
    """
    return _build(_Draft(parse_source(text, file)), FilePath(file).parent, overrides, None)


def override(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """Returns the scenario with values replaced: `{"server.max_num_seqs": 64, "run.duration": "10min"}`.

    Values are those a file would hold, so durations are text with a unit; None takes the default.

    Raises:
        ScenarioError: an unknown key or an unsuitable value.
    """
    data = scenario.model_dump(mode="json", by_alias=True)
    draft = _Draft(Source("", data))
    for key, value in changes.items():
        draft.change(key, value, f"{key}={value}")
    return draft.scenario(scenario.resolve("."))


def locate_problem(
    path: str | FilePath, key: Path, message: str, overrides: Iterable[str] = (), variant: str | None = None
) -> Problem:
    """Returns a problem that a later check found, at its place in the file or at the `--set` that caused it.

    Raises:
        ScenarioError: the file can no longer be read.
    """
    draft = _Draft(read_source(path))
    draft.apply_variant(variant)
    draft.apply_overrides(overrides)
    return draft.problem(key, message)


@dataclass
class _Draft:
    """The data of a scenario on its way to a model, and where each changed value came from."""

    source: Source
    origins: dict[Path, str | Path] = field(default_factory=dict)  # `--set …`, or the path within `variants`
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data: Any = self.source.data

    def change(self, key: str, value: Any, origin: str | Path) -> None:
        """Replaces one value; a key that makes no sense becomes a problem."""
        try:
            path = full_path(key, self.data)
        except ValueError as error:
            self.problems.append(self._at_origin(origin, (), str(error)))
            return
        self.data = replace(self.data, path, value)
        self.origins[path] = origin

    def apply_overrides(self, overrides: Iterable[str]) -> None:
        """Applies the texts of `--set`."""
        for text in overrides:
            try:
                key, value = parse_override(text)
            except ValueError as error:
                self.problems.append(Problem(f"--set {text}", "", str(error)))
            else:
                self.change(key, value, f"--set {text}")

    def apply_variant(self, name: str | None) -> None:
        """Applies the named set of changes and appends its name to the scenario's."""
        if name is None:
            return
        variants = self.data.get("variants")
        variants = variants if isinstance(variants, dict) else {}
        if name not in variants:
            known = suggestion(name, variants, noun="variants") if variants else "the scenario has no variants"
            raise ScenarioError([Problem(self.source.file, "variants", f"unknown variant {name!r}; {known}")])
        changes = variants[name]
        if isinstance(changes, dict):  # else the model says what is wrong with it
            for key, value in changes.items():
                self.change(key, value, ("variants", name, key))
            if "name" not in changes and isinstance(self.data.get("name"), str):
                self.data = {**self.data, "name": f"{self.data['name']}-{name}"}

    def problem(self, path: Path, message: str, *, at_key: bool = False) -> Problem:
        """Returns a problem at the place that the value at `path` came from."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self._at_origin(self.origins[path[:length]], path, message)
        beyond = path[: self.source.depth(path) + 1]  # the first key that the file does not have
        for changed, origin in self.origins.items():
            if changed[: len(beyond)] == beyond:
                return self._at_origin(origin, path, message)
        return self.source.problem(path, message, at_key=at_key)

    def scenario(self, folder: FilePath) -> Scenario:
        """Validates the data.

        Raises:
            ScenarioError: all that is wrong; a ContradictionError where that is how sound values go together.
        """
        scenario: Scenario | None = None
        try:
            scenario = Scenario.model_validate(self.data).with_base_dir(folder)
        except ValidationError as error:
            for path, message, at_key in explain(error, Scenario, self.data):
                self.problems.append(self.problem(path, message, at_key=at_key))
        sound = scenario is not None and not self.problems
        if scenario is not None:
            self.problems += [self.problem(path, message) for path, message in cross_check(scenario)]
        if scenario is None or self.problems:
            raise (ContradictionError if sound else ScenarioError)(self.problems)
        return scenario

    def _at_origin(self, origin: str | Path, path: Path, message: str) -> Problem:
        if isinstance(origin, str):
            return Problem(origin, dotted(path), message)
        line, column = self.source.locate(origin, at_key=not path)
        return Problem(f"{self.source.file}:{line}:{column}", dotted(path or origin), message, (line, column))


def _build(draft: _Draft, folder: FilePath, overrides: Iterable[str], variant: str | None) -> Scenario:
    draft.apply_variant(variant)
    draft.apply_overrides(overrides)
    return draft.scenario(folder)
