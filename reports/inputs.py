"""What `headcount report` is given: folders of runs, sweeps and spot checks, and snapshots of /metrics, told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.check_source import CHECK_FILE, CheckSource
from reports.model import Beside
from reports.snapshots import read_snapshots
from reports.source import Source
from reports.sweep_source import SWEEP_FILE, SweepSource
from sim.errors import UserError
from sim.scenario.model import Scenario


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that was given, in order.

    Attributes:
        sources: runs and searches; those of one name are called by their folders.
        beside: the rest.
    """

    sources: tuple[Source, ...]
    beside: Beside


def read_inputs(paths: Sequence[Path], scenario: Scenario | None, snapshots: Sequence[Path] = ()) -> Inputs:
    """Reads folders and files of any kind.

    Args:
        paths: folders of `run`, `sweep` and `spot-check`, files of spot checks (.json) and snapshots of /metrics.
        scenario: of the one run, where its files have to be found.
        snapshots: more of them.

    Raises:
        UserError: one is nothing of that kind, or cannot be read.
    """
    runs, sweeps, checks = list[Path](), list[SweepSource](), list[CheckSource]()
    pages = list[Path]()
    for path in paths:
        match _kind(path):
            case "run":
                runs.append(path)
            case "sweep":
                sweeps.append(SweepSource.read(path, f"sweep_{len(sweeps) + 1}"))
            case "check":
                checks.append(CheckSource.read(path, f"check_{len(checks) + 1}"))
            case _:
                pages.append(path)
    if scenario is not None and len(runs) != 1:
        raise UserError(f"--scenario: belongs to one run; got {len(runs)} runs")
    sources = [Source.read(folder, scenario) for folder in runs]
    _name_apart(sources, runs)
    pages += snapshots
    measured = read_snapshots(pages) if pages else None
    return Inputs(tuple(sources), Beside(measured, tuple(sweeps), tuple(checks)))


def _kind(path: Path) -> str:
    """Returns run, sweep, check, or metrics."""
    if not path.is_dir():
        return "check" if path.suffix == ".json" else "metrics"
    for kind, file in (("run", "result.json"), ("sweep", SWEEP_FILE), ("check", CHECK_FILE)):
        if (path / file).is_file():
            return kind
    raise UserError(
        f"{path}: no result.json, {SWEEP_FILE} or {CHECK_FILE} in it: give a folder that `headcount run --out DIR`, "
        "`sweep` or `spot-check --out DIR` wrote"
    )


def _name_apart(sources: list[Source], folders: list[Path]) -> None:
    """Calls runs of the same scenario by their folders: by as much of the path as tells them apart."""
    names = [source.name for source in sources]
    alike = [place for place, name in enumerate(names) if names.count(name) > 1]
    parts = {place: folders[place].resolve().parts for place in alike}
    different, length = set(parts.values()), 1
    while len({each[-length:] for each in different}) < len(different):
        length += 1
    given: list[tuple[str, ...]] = []
    for place in alike:
        given.append(parts[place])
        again = given.count(parts[place])
        name = str(Path(*parts[place][-length:]))
        sources[place].name = name if again == 1 else f"{name} ({again})"
