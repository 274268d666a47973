"""Where `--out` keeps things: `result.json`, and one folder a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sim.records import RunRecord
from sim.results.storage import check_writable, write_run, write_text


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A folder for the runs of one scenario; picklable, since each run is written where it was simulated.

    Attributes:
        path: the folder.
        scenario: the scenario's name.
        scenario_hash: of all that decides the result.
        unit: what loads are counted in.
    """

    path: Path
    scenario: str
    scenario_hash: str
    unit: str

    def prepare(self) -> None:
        """Makes the folder and tries it, so that a search does not fail after its first run.

        Raises:
            UserError: it cannot be made or written.
        """
        check_writable(self.path)

    def __call__(self, run: RunRecord, load: float | None, seed: int) -> None:
        """Writes one run to its own folder, `users-64/seed-0`.

        Raises:
            UserError: it cannot be written.
        """
        name = "own-load" if load is None else f"{self.unit}-{load:g}"
        about = {
            "scenario": self.scenario,
            "scenario_hash": self.scenario_hash,
            "unit": self.unit,
            "load": load,
            "seed": seed,
        }
        write_run(self.path / name / f"seed-{seed}", run, about)

    def write_scenario(self, text: str) -> None:
        """Writes `scenario.json`: what was simulated, with all changes applied; a report needs it.

        Raises:
            UserError: it cannot be written.
        """
        write_text(self.path / "scenario.json", text)

    def write_result(self, text: str) -> None:
        """Writes `result.json`.

        Raises:
            UserError: it cannot be written.
        """
        write_text(self.path / "result.json", text)
