"""Numbers from the columns of a CSV file with a header, block by block, so that a million rows stay arrays.

A block that does not parse is looked at cell by cell, and the error names line, column and what was expected.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from sim.errors import UserError
from sim.workload.text_files import Lines, open_lines

_ROWS = 65536
_MOST = 2**62

LATEST_SECONDS = 9e9
"""The longest time in a recording: 285 years. It leaves room for seconds since 1970, but not for milliseconds."""

SECONDS = "a number of seconds, from 0 to 9e9"
"""What `seconds` expects."""

CellParser = Callable[[Sequence[str]], NDArray[Any]]
"""Turns cells into values; raises ValueError when any of them is not as expected."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a reader looks for.

    Attributes:
        names: the headers it may have, the usual one first; case does not matter.
        parse: its cells' parser.
        expects: what a cell has to be, for the error.
        optional: whether it may be missing.
    """

    names: tuple[str, ...]
    parse: CellParser
    expects: str
    optional: bool = False


def read_columns(path: Path, columns: Mapping[str, Column]) -> dict[str, NDArray[Any]]:
    """Returns the values of each column that the file has, by its key in `columns`.

    Raises:
        UserError: the file is empty or broken, a column is missing, or a cell is not what it has to be.
    """
    with open_lines(path) as lines:
        table = _Table(path, lines, columns)
        blocks = list(table.blocks())
    if not blocks:
        raise UserError(f"{path}:2:1: no rows after the header")
    return {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}


def read_header(path: Path) -> list[str]:
    """Returns the cells of the first row that is not blank.

    Raises:
        UserError: the file cannot be read, or there is none.
    """
    with open_lines(path) as lines:
        header = next(_rows(path, lines), [])
    if not header:
        raise UserError(f"{path}:1:1: empty; expected numbers")
    return [cell.strip() for cell in header]


def whole_numbers(minimum: int) -> CellParser:
    """Parses whole numbers (12 or 12.0), at least `minimum`, that fit 64 bits."""

    def parse(cells: Sequence[str]) -> NDArray[np.int64]:
        values = np.array(list(map(float, cells)))
        if not (np.isfinite(values) & (values == np.rint(values)) & (values >= minimum) & (values < _MOST)).all():
            raise ValueError
        return values.astype(np.int64)

    return parse


def numbers(cells: Sequence[str]) -> NDArray[np.float64]:
    """Parses finite numbers, at least 0."""
    values = np.array(list(map(float, cells)))
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError
    return values


def seconds(cells: Sequence[str]) -> NDArray[np.float64]:
    """Parses times in seconds that can be counted in nanoseconds of 64 bits: from 0 to `LATEST_SECONDS`."""
    values = numbers(cells)
    if (values > LATEST_SECONDS).any():
        raise ValueError
    return values


def utc_nanoseconds(cells: Sequence[str]) -> NDArray[np.int64]:
    """Parses UTC times like 2023-11-16 18:17:03.9799600, to nanoseconds since 1970."""
    stamps = np.array([cell.removesuffix("Z").removesuffix("+00:00") for cell in cells], dtype="datetime64[ns]")
    if np.isnat(stamps).any():
        raise ValueError
    return stamps.astype(np.int64)


class Labels:
    """Numbers texts in the order in which they first appear."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The texts seen so far."""
        return tuple(self._numbers)

    def parse(self, cells: Sequence[str]) -> NDArray[np.int32]:
        """Returns each cell's number; an empty cell is an error."""
        if not all(cells):
            raise ValueError
        numbers = self._numbers
        return np.array([numbers.setdefault(cell, len(numbers)) for cell in cells], dtype=np.int32)


class _Table:
    """The rows below a header."""

    def __init__(self, path: Path, lines: Lines, columns: Mapping[str, Column]) -> None:
        self._path = path
        self._lines = lines
        self._rows = _rows(path, lines)
        self._columns = columns
        self._header = next(self._rows, [])
        if not self._header:
            raise UserError(f"{path}:1:1: empty; expected a header with {', '.join(_needed(columns))}")
        self._places = {key: place for key in columns if (place := self._find(columns[key])) is not None}

    def blocks(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yields the values of a block of rows at a time, by column."""
        num_rows = 0
        while rows := list(islice(self._rows, _ROWS)):
            uneven = next((i for i, row in enumerate(rows) if len(row) != len(self._header)), None)
            if uneven is not None:
                what = f"{len(rows[uneven])} cells, but the header has {len(self._header)}"
                self._fail(num_rows + uneven, 0, what)
            cells = list(zip(*rows, strict=True))
            yield {key: self._parse(key, cells[place], num_rows) for key, place in self._places.items()}
            num_rows += len(rows)

    def _find(self, column: Column) -> int | None:
        """Returns the place of a column in the header; None: it may be missing, and is."""
        known = [name.strip().lower() for name in self._header]
        for name in column.names:
            if name.lower() in known:
                return known.index(name.lower())
        if column.optional:
            return None
        others = f" (or {', '.join(column.names[1:])})" if column.names[1:] else ""
        taken = {name.lower() for other in self._columns.values() for name in other.names}
        close = get_close_matches(column.names[0].lower(), [name for name in known if name not in taken], n=1)
        meant = f"; is it '{self._header[known.index(close[0])]}'?" if close else ""
        raise UserError(
            f"{self._path}:1:1: no column '{column.names[0]}'{others}; got {', '.join(self._header)}{meant}"
        )

    def _parse(self, key: str, cells: tuple[str, ...], num_rows_before: int) -> NDArray[Any]:
        column = self._columns[key]
        try:
            return column.parse(cells)
        except (ValueError, OverflowError):
            row = next(i for i, cell in enumerate(cells) if _is_bad(cell, column))
            place = self._places[key]
            what = f"{self._header[place]}: got {cells[row]!r}; expected {column.expects}"
            self._fail(num_rows_before + row, place, what)

    def _fail(self, row: int, place: int, what: str) -> NoReturn:
        """Reads the file once more, up to the row, to say in which line and at which character the cell stands."""
        with open_lines(self._path) as lines:
            cells = next(islice(_rows(self._path, lines), row + 1, None))
            column = 1 + sum(len(cell) + 1 for cell in cells[:place])
            raise UserError(f"{self._path}:{lines.number}:{column}: {what}")


def _rows(path: Path, lines: Lines) -> Iterator[list[str]]:
    """Yields the rows that are not blank."""
    try:
        for row in csv.reader(lines):
            if row:
                yield row
    except csv.Error as error:
        raise UserError(f"{path}:{lines.number}:1: not CSV: {error}") from None


def _is_bad(cell: str, column: Column) -> bool:
    try:
        column.parse((cell,))
    except (ValueError, OverflowError):
        return True
    return False


def _needed(columns: Mapping[str, Column]) -> list[str]:
    return [column.names[0] for column in columns.values() if not column.optional]
