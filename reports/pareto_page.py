"""The result of a flag search as a page: the front, plots of the measures against each other, command lines, trials."""

from __future__ import annotations

from typing import Literal

from reports.content import Axis, Block, Cell, Chart, Column, Paragraph, Report, Section, Series, Table, Value
from reports.document import Document
from reports.words import Words
from sim.sweep.axes import as_text

_WIDE = 20  # a range this wide is shown on a logarithmic axis


def search_report(document: Document, words: Words) -> Report:
    """Builds the page."""
    sections = (
        Section("front", words("pareto.section_front"), tuple(_front(document, words))),
        Section("commands", words("pareto.section_commands"), (_command_table(document, words),)),
        Section("trials", words("pareto.section_trials"), tuple(_all_trials(document, words))),
    )
    return Report(
        title=words("pareto.title", scenario=document["scenario"]),
        subtitle=words("pareto.subtitle", objectives=_wanted(document, words)),
        lang=words.lang,
        headline=None,
        sections=sections if document["front"] else (sections[0], sections[2]),
        footer=(f"headcount {document['versions']['headcount']}", f"study {document['study']}"),
    )


def _front(document: Document, words: Words) -> list[Block]:
    key = "pareto.found" if document["front"] else "pareto.none"
    blocks: list[Block] = [
        Paragraph(
            words(
                key, front=len(document["front"]), simulated=document["num_simulated"],
                all=document["num_configurations"], refused=document["num_refused"],
            ),
            "plain" if document["front"] else "bad",
        ),
        Paragraph(words("pareto.required", required=_required(document, words))),
    ]  # fmt: skip
    if not document["calibrated"]:
        blocks.append(Paragraph(words("pareto.uncalibrated"), "warn"))
    if document["front"]:
        blocks.append(_table("front", words("pareto.table_front"), document["front"], document, words))
        blocks += _charts(document, words)
    blocks += [Paragraph(text, "warn") for text in document["warnings"]]
    return blocks


def _all_trials(document: Document, words: Words) -> list[Block]:
    blocks: list[Block] = [_table("trials", words("pareto.table_trials"), document["trials"], document, words)]
    if document["failures"]:
        columns = (Column("trial", words("pareto.trial"), "count"), Column("cause", words("pareto.cause"), "text"))
        rows: list[tuple[Value | Cell, ...]] = [
            (each["trial"], f"{_flags(each['parameters'])}: {each['cause']}") for each in document["failures"]
        ]
        blocks.append(Table("failures", words("pareto.table_failures"), columns, tuple(rows), wide=True))
    return blocks


def _table(key: str, title: str, trials: list[Document], document: Document, words: Words) -> Table:
    """Returns one row a trial: its flags, its measures, what holds."""
    flags, objectives = list(document["vary"]), document["objectives"]
    columns = [Column("trial", words("pareto.trial"), "count")]
    columns += [Column(flag, flag.removeprefix("server."), "flag") for flag in flags]
    units = [_unit(each, trials) for each in objectives]
    columns += [
        Column(each["metric"], each["metric"], "number", unit) for each, unit in zip(objectives, units, strict=True)
    ]
    columns += [
        Column("load", words(f"load.{document['unit']}.title"), "number"),
        Column("verdict", words("column.verdict"), "text"),
    ]
    rows: list[tuple[Value | Cell, ...]] = [
        (
            row["trial"],
            *(as_text(row["parameters"][flag]) for flag in flags),
            *(
                _in_unit(row["measures"][each["metric"]], each["unit"], unit)
                for each, unit in zip(objectives, units, strict=True)
            ),
            row["load"],
            _verdict(row, words),
        )
        for row in trials
    ]
    return Table(key, title, tuple(columns), tuple(rows), wide=True)


def _verdict(row: Document, words: Words) -> str:
    if row["broken"]:
        return words("verdict.broken", names=", ".join(row["broken"]))
    equal = f" ({words('pareto.equal', trials=', '.join(map(str, row['equal'])))})" if row["equal"] else ""
    return f"{words('verdict.met')}{equal}"


def _command_table(document: Document, words: Words) -> Table:
    columns = (
        Column("trial", words("pareto.trial"), "count"),
        Column("serve", words("pareto.serve"), "flag"),
        Column("run", words("pareto.again"), "flag"),
    )
    rows = tuple((row["trial"], row["serve"], row["run"]) for row in document["front"])
    return Table("commands", words("pareto.section_commands"), columns, rows, wide=True)


def _charts(document: Document, words: Words) -> list[Chart]:
    """Draws the first measure against each of the others; with one alone there is nothing to draw."""
    first, *others = document["objectives"]
    return [_chart(first, other, document, words) for other in others]


def _chart(across: Document, up: Document, document: Document, words: Words) -> Chart:
    """Draws what is allowed alone: what is not lies far off, and would press all others together."""
    front = {row["trial"] for row in document["front"]} | {each for row in document["front"] for each in row["equal"]}
    groups = (
        ("front", [row for row in document["trials"] if row["trial"] in front]),
        ("beaten", [row for row in document["trials"] if row["feasible"] and row["trial"] not in front]),
    )
    shown = [each for _, rows in groups for each in rows]
    axes = tuple(_axis(each, shown) for each in (across, up))
    series = tuple(
        Series(name, words(f"pareto.{name}"), *_places(rows, (across, up), axes), place, "dots", place)
        for place, (name, rows) in enumerate(groups)
        if rows
    )
    title = words("pareto.chart", up=up["metric"], across=across["metric"])
    return Chart(
        key=f"front_{up['metric']}".replace(".", "_"),
        title=title,
        caption=words("pareto.caption", seeds=len(document["seeds"])),
        alt=words("pareto.alt", title=title, front=len(document["front"])),
        x=axes[0],
        y=axes[1],
        series=series,
    )


def _places(
    rows: list[Document], objectives: tuple[Document, Document], axes: tuple[Axis, ...]
) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """Returns where the trials lie, in the units of the axes."""
    across, up = (
        tuple(_in_unit(row["measures"][each["metric"]], each["unit"], axis.unit) for row in rows)
        for each, axis in zip(objectives, axes, strict=True)
    )
    known = [(x, y) for x, y in zip(across, up, strict=True) if x is not None]
    return tuple(x for x, _ in known), tuple(y for _, y in known)


def _axis(objective: Document, rows: list[Document]) -> Axis:
    known = [row["measures"][objective["metric"]] for row in rows]
    values = [value for value in known if value is not None]
    scale: Literal["linear", "log"] = "linear"
    if values and min(values) > 0 and max(values) > _WIDE * min(values):
        scale = "log"
    return Axis(objective["metric"], _unit(objective, rows), scale)


def _unit(objective: Document, rows: list[Document]) -> str:
    """Returns the unit that suits the values: milliseconds where all lie below a second."""
    known = [row["measures"][objective["metric"]] for row in rows]
    short = all(value < 1 for value in known if value is not None)
    return "ms" if objective["unit"] == "s" and short else str(objective["unit"])


def _in_unit(value: float | None, unit: str, wanted: str) -> float | None:
    return value if value is None or unit == wanted else 1000 * value


def _required(document: Document, words: Words) -> str:
    return ", ".join(words(f"pareto.required_{name}") for name in document["required"])


def _flags(parameters: Document) -> str:
    return " ".join(f"{key.removeprefix('server.')}={as_text(value)}" for key, value in parameters.items())


def _wanted(document: Document, words: Words) -> str:
    return ", ".join(f"{words('pareto.' + each['direction'])} {each['metric']}" for each in document["objectives"])
