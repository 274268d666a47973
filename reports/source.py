"""Where a report's numbers come from: a folder that `headcount run --out` wrote, or a result still in memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reports.document import FORMAT, Document, build_document
from reports.stored_run import read_json, read_manifest, read_run
from sim.capacity import CapacityResult
from sim.deployment import plan_server
from sim.errors import UserError
from sim.records import RunRecord
from sim.results.metrics import RunMetrics, is_finite, summarize, summarize_window
from sim.results.window import Window
from sim.scenario.load import scenario_from_text
from sim.scenario.model import Objective, Scenario, scenario_hash
from sim.scenario.problems import ScenarioError

SCENARIO_FILE = "scenario.json"
"""The scenario as it was run, changes of the command line included: its `model_dump(mode="json", by_alias=True)`."""

WHAT_IF_FILE = "what-if.json"

RunKey = tuple[float | None, int]
"""Load and seed."""


@dataclass
class Source:
    """One run or search.

    Attributes:
        name: of the run, in comparisons.
        document: the result, as `headcount run --json` prints it.
        scenario: what was simulated; None when the folder does not hold it.
        folder: where it is stored, if it is.
        what_if: changes that were simulated, as `simulate_what_if` gives them.
    """

    name: str
    document: Document
    scenario: Scenario | None
    folder: Path | None = None
    what_if: Document | None = None
    _runs: dict[RunKey, RunRecord] = field(default_factory=dict)

    @classmethod
    def of_result(
        cls, scenario: Scenario, result: CapacityResult, runs: Mapping[RunKey, RunRecord], name: str | None = None
    ) -> Source:
        """Returns a result that is still in memory, with the records of the runs that are to be shown in detail."""
        document = build_document(scenario, plan_server(scenario), result)
        return cls(name or scenario.name, document, scenario, _runs=dict(runs))

    @classmethod
    def read(cls, folder: Path, scenario: Scenario | None = None) -> Source:
        """Reads a folder that `headcount run --out` wrote.

        Args:
            folder: the folder.
            scenario: what was run, when the folder does not say or its files have to be found.

        Raises:
            UserError: the folder is none, is of another version, or is of another scenario than the one given.
        """
        if not (folder / "result.json").is_file():
            raise UserError(f"{folder}: no result.json: give a folder that `headcount run --out DIR` wrote")
        document = read_json(folder / "result.json")
        if document.get("format") != FORMAT:
            raise UserError(f"{folder / 'result.json'}: format {document.get('format')!r}; known: {FORMAT}")
        stored_scenario = _stored_scenario(folder, None if scenario is None else scenario.resolve("."))
        if scenario is not None and stored_scenario is not None:
            scenario = stored_scenario  # as it was run, with its files found
        if scenario is not None and scenario_hash(scenario) != document["scenario_hash"]:
            raise UserError(f"--scenario: not the scenario that {folder} is of: name, values or files differ")
        what_if = folder / WHAT_IF_FILE
        stored = read_json(what_if) if what_if.is_file() else None
        if stored is not None and stored.get("scenario_hash") != document["scenario_hash"]:
            stored = None  # of an earlier run in the same folder
        return cls(document["scenario"], document, scenario or stored_scenario, folder, stored)

    @property
    def unit(self) -> str:
        """What loads are counted in."""
        return str(self.document["unit"])

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The scenario's objectives."""
        return tuple(Objective.model_validate(text) for text in self.document["objectives"])

    @property
    def shown_load(self) -> float | None:
        """The load that the report looks at closely: the answer, or the one that broke when none holds."""
        document = self.document
        if document["search"] is None:
            found: float | None = document["points"][0]["load"] if document["points"] else None
        else:
            found = document["supported_users"]["value"] or document["search"]["next_load"]
        return found

    @property
    def broken_load(self) -> float | None:
        """The load at which something breaks, if one was tried."""
        document = self.document
        if document["search"] is not None:
            found: float | None = document["search"]["next_load"]
            return found
        return self.shown_load if document["binding_objective"] is not None else None

    def point(self, load: float | None) -> Document | None:
        """Returns what was found at a load."""
        return next((point for point in self.document["points"] if point["load"] == load), None)

    def run(self, load: float | None, seed: int) -> RunRecord | None:
        """Returns the records of one run, or None when they were not kept."""
        key = (load, seed)
        if key not in self._runs and (folder := self._run_folder(load, seed)) is not None:
            self._runs[key] = read_run(folder)
        return self._runs.get(key)

    def _run_folder(self, load: float | None, seed: int) -> Path | None:
        """Returns where a run is kept; None where there is none, or one that another scenario left in the folder."""
        if self.folder is None:
            return None
        name = "own-load" if load is None else f"{self.unit}-{load:g}"
        folder = self.folder / name / f"seed-{seed}"
        if not (folder / "manifest.json").is_file():
            return None
        same = read_manifest(folder)["scenario_hash"] == self.document["scenario_hash"]
        return folder if same else None

    def chosen_run(self, load: float | None, seed: int | None) -> RunRecord:
        """Returns the records of a run that was asked for; seed None: the first one kept.

        Raises:
            UserError: no such run was kept.
        """
        point = self.point(load)
        seeds = [seed] if seed is not None else point["seeds"] if point is not None else self.document["seeds"]
        for each in seeds:
            run = self.run(load, each)
            if run is not None:
                return run
        loads = ", ".join(f"{each:g}" for each in self._kept_loads())
        shown = "its own load" if load is None else f"load {load:g}"
        asked = "" if seed is None else f", seed {seed}"
        raise UserError(f"{self.folder or self.name}: no run at {shown}{asked} was kept; loads: {loads or 'none'}")

    def _kept_loads(self) -> list[float]:
        """Returns the loads of which a run was kept: those of the points, and those of single seeds between them."""
        loads = {load for load, _ in self._runs if load is not None}
        for path in () if self.folder is None else self.folder.glob(f"{self.unit}-*"):
            with suppress(ValueError):
                load = float(path.name.removeprefix(f"{self.unit}-"))
                if any(self._run_folder(load, seed) is not None for seed in self.document["seeds"]):
                    loads.add(load)
        return sorted(loads)

    def detail(self, load: float | None) -> Detail | None:
        """Returns the run of a load that is worst for what binds, in detail; None when no run of it was kept.

        Averages over seeds are the verdict's business; a picture of one run is drawn of a bad day.
        """
        point = self.point(load)
        if point is None:
            return None
        for seed in _worst_first(point, self.document["binding_objective"]):
            run = self.run(load, seed)
            if run is not None:
                return Detail(load, seed, run, self.metrics(run))
        return None

    def metrics(self, run: RunRecord) -> RunMetrics:
        """Sums up a run over the window of the scenario; over all of it when the scenario is not known."""
        if self.scenario is not None:
            return summarize(run, self.scenario)
        return summarize_window(run, Window(0, run.arrivals_end_ns, finite=False), self.objectives)

    @property
    def is_finite(self) -> bool:
        """Whether the workload is a fixed amount of work."""
        return self.scenario is not None and is_finite(self.scenario)


@dataclass(frozen=True, slots=True)
class Detail:
    """One run: its records and its numbers."""

    load: float | None
    seed: int
    run: RunRecord
    metrics: RunMetrics


def _worst_first(point: Document, binding: str | None) -> list[int]:
    """Returns the seeds of a point, the one with the worst measure of what binds first."""
    judged: list[Any] = [each for each in point["objectives"] if each["objective"] == binding]
    if not judged:
        return list(point["seeds"])
    sign = -1 if "<=" in judged[0]["objective"] else 1
    values = judged[0]["per_seed"]
    order = [
        (sign * value if value is not None else 0.0, seed) for value, seed in zip(values, point["seeds"], strict=True)
    ]
    return [seed for _, seed in sorted(order)]


def _stored_scenario(folder: Path, base_dir: Path | None) -> Scenario | None:
    """Reads the scenario of a run; None where there is none, or where the files that it names are elsewhere.

    Args:
        folder: of the run.
        base_dir: where its files lie, if that is known.
    """
    path = folder / SCENARIO_FILE
    if not path.is_file():
        return None
    if base_dir is not None:
        try:
            return Scenario.model_validate(read_json(path)).with_base_dir(base_dir)
        except ValueError as error:
            raise UserError(f"{path}: not a scenario of this version: {str(error).splitlines()[0]}") from None
    try:
        return scenario_from_text(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ScenarioError as error:
        if all("no such file" in problem.message for problem in error.problems):
            return None
        raise
