"""Published measurements beside the repository, and the bars that predictions of them must meet.

The tests are skipped where there are no measurements. `make accuracy` prints every bar: the error, what it may be at
most, and how far the server's own repeats differ, for no prediction can be better than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from calibrate.comparison import Comparison
from calibrate.readers.ladder import Key
from sim.engine.profile import ErrorTable, Profile
from tests.factories import shared_folder

LATENCIES = tuple((metric, s) for metric in ("ttft_ms", "tpot_ms", "e2el_ms") for s in ("p50", "p90", "p99"))


def measurements(name: str) -> Path:
    """Returns the folder of one source of measurements, or skips the test."""
    folder = shared_folder()
    if folder is None or not (folder / "data" / name).is_dir():
        pytest.skip(f"no measurements {name}: set HEADCOUNT_SHARED to the folder that holds data/{name}")
    return folder / "data" / name


@dataclass
class Bars:
    """Errors of one run against their bars; prints each as it is set, and `check` says which are missed.

    Attributes:
        run: its name.
        errors: signed per cent, by metric and statistic.
        spread: per cent by which the server's own repeats differ, by metric and statistic.
        missed: the bars that were not met.
    """

    run: str
    errors: Mapping[Key, float]
    spread: Mapping[Key, float] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def each(self, key: Key, most: float) -> None:
        """One number must be within a bar."""
        error = self.errors.get(key, float("nan"))
        self._set(f"{key[0]} {key[1] or ''}", error, most, self.spread.get(key))

    def median_and_worst(self, keys: Sequence[Key], median: float, worst: float) -> None:
        """The median and the worst of several numbers must be."""
        for key in keys:
            self._print(f"{key[0]} {key[1] or ''}", f"{self.errors[key]:+.2f} %", "", self.spread.get(key))
        sizes = [abs(self.errors[key]) for key in keys]
        known = [self.spread[key] for key in keys if key in self.spread]
        self._set("  median of these", float(np.median(sizes)), median, float(np.median(known)) if known else None)
        self._set("  worst of these", max(sizes), worst, max(known, default=None))

    def number(self, what: str, predicted: float, measured: float, percent: float) -> None:
        """A number beside the errors must be within so many per cent of the measured one."""
        self._set(f"{what} {predicted:g}, measured {measured:g}", 100 * (predicted / measured - 1), percent, None)

    def check(self) -> None:
        """Fails when a bar was missed."""
        assert not self.missed, f"{self.run}: " + "; ".join(self.missed)

    def _set(self, what: str, error: float, most: float, spread: float | None) -> None:
        met = abs(error) <= most
        self._print(what, f"{error:+.2f} %", f"{'met' if met else 'MISSED'}: at most {most:g} %", spread)
        if not met:
            self.missed.append(f"{what.strip()}: {error:+.2f} %, at most {most:g} %")

    def _print(self, what: str, error: str, bar: str, spread: float | None) -> None:
        own = "" if spread is None else f"the server's own spread {spread:g} %"
        print(f"{self.run:<28}{what:<44}{error:>10}  {bar:<24}{own}".rstrip())


def of_comparison(run: str, table: Comparison, spread: Mapping[Key, float]) -> Bars:
    """Returns the bars of a replayed run."""
    return Bars(run, _known((row.metric, row.statistic, row.error_percent) for row in table.rows), spread)


def of_held_out(profile: Profile, run: str) -> Bars:
    """Returns the bars of a run as the profile states its errors; the run was left out of the fit that predicts it."""
    table = next(table for table in profile.errors if table.run == run)
    assert table.held_out, run
    errors = _known((row.metric, row.statistic, row.error_percent) for row in table.rows)
    return Bars(f"{run}, left out", errors, spreads([table]))


def spreads(tables: Iterable[ErrorTable]) -> dict[Key, float]:
    """Returns the server's own spread by metric and statistic."""
    return {
        (row.metric, row.statistic): row.server_spread_percent
        for table in tables
        for row in table.rows
        if row.server_spread_percent is not None
    }


def _known(rows: Iterable[tuple[str, str | None, float | None]]) -> dict[Key, float]:
    return {(metric, statistic): error for metric, statistic, error in rows if error is not None}
