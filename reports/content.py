"""What a report says, free of any format: sections of tables, charts and findings, with the numbers as numbers.

`model.py` fills it once; `html.py`, `markdown.py` and `as_json.py` render the same content. Texts are in the reader's
language already; numbers are formatted by the renderer, so that JSON keeps them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Value = str | int | float | bool | None

Kind = Literal["text", "flag", "count", "number", "ms", "seconds", "share", "gib", "money", "at_least"]
"""How a value is written: `number` to three digits, `count` in full, `share` as a percentage, `ms` from milliseconds,
`flag` as it stands on a command line, `at_least` as a number that may be larger."""

Tone = Literal["good", "bad", "warn", "plain"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A value that is written differently from the rest of its column."""

    value: Value
    kind: Kind = "text"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `key` is its stable name in JSON, `unit` stands in the header."""

    key: str
    title: str
    kind: Kind = "number"
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `code` is the number under which planners know it (T1 to T11), `wide` asks for a row of its own."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value | Cell, ...], ...]
    note: str = ""
    code: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: what it shows, in which unit, and its scale."""

    title: str
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"
    kind: Kind = "number"
    at_least: float | None = None
    """The axis reaches at least this far."""

    @property
    def label(self) -> str:
        """Title and unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class Series:
    """A line, or a layer of a stack. `colour` is a slot of the palette; dashes and markers tell series apart as well.

    Attributes:
        key: stable name.
        title: in the legend.
        x: along the horizontal axis.
        y: values; None where there is none.
        colour: slot 0 to 5 of the palette.
        style: how it is drawn.
        dash: slot 0 (solid) to 3 of the dash patterns.
    """

    key: str
    title: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    colour: int = 0
    style: Literal["line", "dots", "step", "area", "bars"] = "line"
    dash: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A straight line across the plot: an objective, the answer, a budget."""

    axis: Literal["x", "y"]
    value: float
    title: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the horizontal axis: an interval."""

    start: float
    end: float
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with axes.

    Attributes:
        key: stable name.
        title: what it shows.
        caption: which run, how many seeds.
        alt: what a reader who cannot see it has to know.
        x, y: axes.
        series: what is drawn.
        marks: lines across it.
        bands: stretches of the horizontal axis.
        stacked: whether the series add up.
        code: F1 to F10, where it has one.
        data: the table behind it, where it is not just the series.
    """

    key: str
    title: str
    caption: str
    alt: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    bands: tuple[Band, ...] = ()
    stacked: bool = False
    code: str = ""
    data: Table | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time of one row of a timeline; `phase` is an index into its phases."""

    start: float
    end: float
    phase: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """A Gantt chart: one row a request, coloured by phase; times in seconds."""

    key: str
    title: str
    caption: str
    alt: str
    axis: Axis
    phases: tuple[str, ...]
    labels: tuple[str, ...]
    spans: tuple[tuple[Span, ...], ...]
    data: Table
    code: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or a few."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Finding:
    """A symptom, what causes it, the numbers that say so, and what to change."""

    key: str
    symptom: str
    cause: str
    evidence: str
    cure: str
    tone: Tone = "warn"


@dataclass(frozen=True, slots=True)
class Findings:
    """Several findings."""

    items: tuple[Finding, ...]


Figure = Chart | Timeline
Block = Paragraph | Table | Chart | Timeline | Findings


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report under one heading."""

    key: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A small number with its name: the strip under the answer."""

    key: str
    title: str
    value: Value
    kind: Kind = "number"
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """How much of a limit is used at the answer: 1 is all of it."""

    key: str
    title: str
    used: float
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the server or the workload, with what a simulation of it gave."""

    title: str
    effect: str
    tone: Tone
    flag: str = ""


@dataclass(frozen=True, slots=True)
class Headline:
    """The first screen.

    Attributes:
        answer: the number with its unit, or the verdict on a single load.
        tone: whether it is good news.
        lines: interval, registered people, objectives.
        binds: what stands in the way, in a sentence or two.
        calibration: where the step times come from, and their error.
        calibrated: whether they were fitted to a measured server.
        limits: the nearest limits first.
        changes: the most useful changes.
        changes_note: why there are none, where there are none.
        facts: a strip of numbers.
        chart: latency against load.
    """

    answer: str
    tone: Tone
    lines: tuple[str, ...]
    binds: tuple[str, ...]
    calibration: str
    calibrated: bool
    limits: tuple[Limit, ...]
    changes: tuple[Change, ...]
    changes_note: str
    facts: tuple[Fact, ...]
    chart: Chart | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a report says about one run or search, or about several side by side."""

    title: str
    subtitle: str
    lang: str
    headline: Headline | None
    sections: tuple[Section, ...]
    footer: tuple[str, ...] = field(default=())

    def tables(self) -> list[Table]:
        """Returns every table, those behind charts not included."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Table)]

    def figures(self) -> list[Figure]:
        """Returns every chart in reading order, that of the first screen included."""
        first: list[Figure] = [self.headline.chart] if self.headline and self.headline.chart else []
        rest = [block for section in self.sections for block in section.blocks if isinstance(block, Chart | Timeline)]
        return first + rest


def plain(cell: Value | Cell) -> Value:
    """Returns the value of a cell."""
    return cell.value if isinstance(cell, Cell) else cell


def data_table(figure: Figure) -> Table:
    """Returns the numbers behind a figure: one row an x where all series share them, else one row a point."""
    if isinstance(figure, Timeline):
        return figure.data
    if figure.data is not None:
        return figure.data
    xs = {series.x for series in figure.series}
    head = Column("x", figure.x.title, figure.x.kind, figure.x.unit)
    if len(xs) == 1:
        columns = [head] + [Column(each.key, each.title, figure.y.kind, figure.y.unit) for each in figure.series]
        rows: Sequence[tuple[Value, ...]] = list(
            zip(next(iter(xs)), *(series.y for series in figure.series), strict=True)
        )
    else:
        columns = [Column("series", "", "text"), head, Column("y", figure.y.title, figure.y.kind, figure.y.unit)]
        rows = [(each.title, x, y) for each in figure.series for x, y in zip(each.x, each.y, strict=True)]
    return Table(f"{figure.key}_data", figure.title, tuple(columns), tuple(rows))
