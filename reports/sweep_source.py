"""What a folder of `headcount sweep` holds: every point as a flat row, taken together by configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.stored_run import read_json
from sim.errors import UserError
from sim.sweep.axes import LOADS, as_text
from sim.sweep.tables import FORMAT

SWEEP_FILE = "sweep.json"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The points that differ in their load alone.

    Attributes:
        values: axis key -> value, loads left out.
        points: its rows, by load.
    """

    values: dict[str, Any]
    points: tuple[Row, ...]

    @property
    def name(self) -> str:
        """The values as a command line has them; empty where only the load is varied."""
        return " ".join(f"{short_key(key)}={as_text(value)}" for key, value in self.values.items())

    @property
    def holds_at(self) -> Row | None:
        """The point with the largest load of those below the first that does not hold."""
        found = None
        for point in self.points:
            if not point["holds"]:
                break
            found = point
        return found

    @property
    def breaks_at(self) -> Row | None:
        """The first point that was judged and does not hold."""
        return next((point for point in self.points if point["holds"] is False), None)

    @property
    def failed(self) -> str:
        """Why none of its points could be simulated; empty where one could."""
        causes = [point["cause"] for point in self.points if point["status"] == "failed"]
        return str(causes[0]) if len(causes) == len(self.points) else ""


@dataclass(frozen=True, slots=True)
class SweepSource:
    """A sweep.

    Attributes:
        name: of its scenario.
        document: `sweep.json`.
        key: tells it from others in the same report.
    """

    name: str
    document: dict[str, Any]
    key: str = "sweep"

    @classmethod
    def read(cls, folder: Path, key: str = "sweep") -> SweepSource:
        """Reads the folder of a sweep that is complete.

        Raises:
            UserError: it is none, of another version, or not complete.
        """
        document = read_json(folder / SWEEP_FILE)
        if document.get("format") != FORMAT:
            raise UserError(f"{folder / SWEEP_FILE}: format {document.get('format')!r}; known: {FORMAT}")
        if not document["points"]:
            raise UserError(f"{folder / SWEEP_FILE}: the sweep has no point")
        return cls(document["scenario"], document, key)

    @property
    def points(self) -> list[Row]:
        """Every point, in the order of the sweep."""
        return list(self.document["points"])

    @property
    def load_key(self) -> str | None:
        """The axis that is a load, if one is."""
        return next((key for key in self.document["vary"] if key in LOADS), None)

    @property
    def other_keys(self) -> list[str]:
        """The other axes."""
        return [key for key in self.document["vary"] if key != self.load_key]

    @property
    def unit(self) -> str:
        """What the loads are counted in."""
        units = [point["unit"] for point in self.points if point["unit"]]
        return str(units[0]) if units else "users"

    @property
    def calibrated(self) -> bool:
        """Whether the step times of every point were fitted to a real server."""
        return all(point["calibrated"] for point in self.points if point["calibrated"] is not None)

    def configurations(self) -> list[Configuration]:
        """Returns the points by configuration, in the order of the sweep."""
        groups: dict[str, list[Row]] = {}
        for point in self.points:
            groups.setdefault(repr([point[key] for key in self.other_keys]), []).append(point)
        return [
            Configuration(
                {key: points[0][key] for key in self.other_keys},
                tuple(sorted(points, key=lambda point: point["load"] if point["load"] is not None else 0.0)),
            )
            for points in groups.values()
        ]


def short_key(key: str) -> str:
    """Returns a key without the sections that go without saying."""
    return key.removeprefix("server.").removeprefix("flags.")
