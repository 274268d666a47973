"""What `headcount spot-check --out DIR` kept: a live server and its simulation, number by number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.stored_run import read_json
from sim.errors import UserError

CHECK_FILE = "spot-check.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CheckSource:
    """A spot check.

    Attributes:
        name: of its scenario.
        document: `spot-check.json`.
        key: tells it from others in the same report.
    """

    name: str
    document: dict[str, Any]
    key: str = "check"

    @classmethod
    def read(cls, path: Path, key: str = "check") -> CheckSource:
        """Reads a spot check from its folder or its file.

        Raises:
            UserError: it is none, or of another version.
        """
        file = path / CHECK_FILE if path.is_dir() else path
        document = read_json(file)
        if document.get("format") != _FORMAT or "distributions" not in document:
            raise UserError(f"{file}: not a spot check of this version; `headcount spot-check --out DIR` writes one")
        return cls(document["scenario"], document, key)

    @property
    def median_error(self) -> float | None:
        """Median of the absolute errors of the latencies, as a share."""
        percent = self.document["median_error_percent"]
        return None if percent is None else float(percent) / 100
