"""Finished runs on disk: one JSON file a run, under an address made of everything that decides its result.

    runs/<address>.json      the numbers of one run, and which run it is
    failed/<address>.txt     the traceback of a run that ended in an exception; never read back

A sweep that is interrupted, extended by further values, or split over the nodes of a cluster finds here what is done.
Change the scenario, a file it names, the profile or the code, and the address is another one: nothing stale is found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

import sim
from sim.engine.profile import PROFILES_DIR
from sim.results.metrics import Bounds, GroupMetrics, RunMetrics
from sim.results.storage import check_writable, write_text
from sim.scenario.model import Bound, Run, Scenario, scenario_hash

FORMAT = 1
"""Of the files; part of the address, so that files of another format are not found."""

_METRICS = TypeAdapter(RunMetrics)
_NOT_SOURCES = ("cli",)  # parts of the package that print results and cannot change them


def address(scenario: Scenario, load: float | None, seed: int, *, reference: bool = False) -> str:
    """Returns the name of a run: a hash of scenario, files, profile, load, seed and code.

    The scenario's name, its number of seeds and the people it stands for decide nothing and make no difference.
    """
    run = scenario.run.model_copy(update={name: Run.model_fields[name].default for name in ("seeds", "seed")})
    alike = scenario.model_copy(update={"name": "-", "run": run, "active_share": None})
    parts = {
        "format": FORMAT,
        "scenario": scenario_hash(alike),
        "profiles": _shipped_profiles(scenario),
        "load": load,
        "seed": seed,
        "reference": reference,
        "code": code_version(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _shipped_profiles(scenario: Scenario) -> str | None:
    """Returns a hash of the profiles that headcount brings, with their tables, when the scenario names one of them.

    The content of a profile of one's own is in `scenario_hash`.
    """
    if not any((PROFILES_DIR / f"{name}.yaml").is_file() for name in scenario.server.files()):
        return None
    return _digest(PROFILES_DIR, [path for path in PROFILES_DIR.rglob("*") if path.is_file() and path.suffix != ".md"])


def _digest(root: Path, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def code_version() -> str:
    """Returns the version of headcount, of the libraries that draw and compute, and a hash of the package's sources."""
    root = Path(sim.__file__).parent
    sources = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in _NOT_SOURCES]
    libraries = " ".join(f"{name} {version(name)}" for name in ("numpy", "simpy"))
    return f"headcount {sim.__version__} {_digest(root, sources)} {libraries}"


@dataclass(frozen=True, slots=True)
class KeptRuns:
    """The folder of a sweep."""

    folder: Path

    def prepare(self) -> None:
        """Makes the folder and tries it, so that a sweep does not fail after its first run.

        Raises:
            UserError: it cannot be made or written.
        """
        check_writable(self.folder / "runs")

    def get(self, name: str) -> RunMetrics | None:
        """Returns a finished run's numbers; None when it is not here, or its file is damaged."""
        try:
            data = json.loads((self.folder / "runs" / f"{name}.json").read_bytes())
            return _from_data(data["metrics"])
        except (OSError, ValueError, KeyError, TypeError):  # ValueError: not JSON, not UTF-8, not a run
            return None

    def keep(self, name: str, metrics: RunMetrics, about: Mapping[str, Any]) -> None:
        """Keeps a finished run, complete or not at all.

        Args:
            name: its address.
            metrics: its numbers.
            about: which run it is, for a person who looks into the folder.

        Raises:
            UserError: it cannot be written.
        """
        text = json.dumps({"format": FORMAT, **about, "metrics": _to_data(metrics)}, indent=1, allow_nan=False)
        write_text(self.folder / "runs" / f"{name}.json", text + "\n")

    def keep_failure(self, name: str, details: str) -> Path:
        """Keeps the traceback of a failed run and returns its place.

        Raises:
            UserError: it cannot be written.
        """
        path = self.folder / "failed" / f"{name}.txt"
        write_text(path, details)
        return path


def _to_data(metrics: RunMetrics) -> dict[str, Any]:
    """Returns plain data; goodput is a list of pairs, since its keys are no text."""
    without = {"goodput"}
    data: dict[str, Any] = _METRICS.dump_python(
        metrics, mode="json", exclude={"total": without, "classes": dict.fromkeys(metrics.classes, without)}
    )
    for group, dumped in [
        (metrics.total, data["total"]),
        *((metrics.classes[n], d) for n, d in data["classes"].items()),
    ]:
        pairs = [[list(map(list, bounds)), share] for bounds, share in group.goodput.items()]
        dumped["goodput"] = sorted(pairs, key=str)
    return data


def _from_data(data: dict[str, Any]) -> RunMetrics:
    """Returns the numbers that `_to_data` was given.

    Raises:
        ValueError, KeyError, TypeError: the data are not of that form.
    """
    shares = {name: group.pop("goodput") for name, group in [("", data["total"]), *data["classes"].items()]}
    for group in (data["total"], *data["classes"].values()):
        group["goodput"] = {}
    try:
        metrics = _METRICS.validate_python(data)
    except ValidationError as error:
        raise ValueError(str(error)) from None
    return replace(
        metrics,
        total=_with_goodput(metrics.total, shares[""]),
        classes={name: _with_goodput(group, shares[name]) for name, group in metrics.classes.items()},
        bounds=tuple(Bound(*bound) for bound in metrics.bounds),
    )


def _with_goodput(group: GroupMetrics, shares: list[Any]) -> GroupMetrics:
    goodput: dict[Bounds, float | None] = {tuple(Bound(*bound) for bound in bounds): share for bounds, share in shares}
    return replace(group, goodput=goodput)
