"""The report as one HTML file: styles and charts inside, nothing fetched, no script."""

from __future__ import annotations

from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from reports.charts.plot import render_chart
from reports.charts.svg import element, marker
from reports.charts.timeline import render_timeline
from reports.content import Block, Chart, Figure, Findings, Paragraph, Report, Table, Timeline, data_table
from reports.words import Words

_FOLDER = Path(__file__).parent / "templates"


def render_html(report: Report, words: Words) -> str:
    """Returns the report as a complete HTML document."""
    template = _environment().get_template("report.html.j2")
    return template.render(
        report=report,
        words=words,
        css=Markup((_FOLDER / "report.css").read_text(encoding="utf-8")),
        groups=grouped,
        data_table=data_table,
        figure_svg=lambda figure: Markup(figure_svg(figure, words)),
        legend=lambda figure: [(Markup(sign), title) for sign, title in legend(figure)],
    )


def grouped(blocks: tuple[Block, ...]) -> list[tuple[str, list[Any]]]:
    """Returns the blocks with neighbouring figures taken together, each group with its kind."""
    return [(kind, list(items)) for kind, items in groupby(blocks, key=_kind)]


def figure_svg(figure: Figure, words: Words) -> str:
    """Returns a figure as SVG."""
    return render_timeline(figure, words) if isinstance(figure, Timeline) else render_chart(figure, words)


def legend(figure: Figure) -> list[tuple[str, str]]:
    """Returns a sign and a title for each series; none where one series says it all in its axis."""
    if isinstance(figure, Timeline):
        return [(_sign(element("rect", x=3, y=2, width=18, height=8, class_=f"span f{index}")), title)
                for index, title in enumerate(figure.phases)]  # fmt: skip
    entries = []
    for series in figure.series:
        if figure.stacked or series.style == "bars":
            sign = element("rect", x=3, y=2, width=18, height=8, class_=f"fill f{series.colour}")
        else:
            sign = element("path", d="M1 6H23", class_=f"line s{series.colour} d{series.dash}")
            if series.style in ("line", "dots"):
                sign = ("" if series.style == "dots" else sign) + marker(series.dash, 12, 6, f"dot f{series.colour}")
        entries.append((_sign(sign), series.title))
    if figure.bands:
        band = element("rect", x=3, y=1, width=18, height=10, class_="band")
        entries.append((_sign(band), figure.bands[0].title))
    return entries if len(entries) > 1 else []


def _sign(content: str) -> str:
    return element("svg", content, viewBox="0 0 24 12", width=24, height=12, aria_hidden="true")


def _kind(block: Block) -> str:
    match block:
        case Chart() | Timeline():
            return "figures"
        case Table():
            return "tables"
        case Findings():
            return "findings"
        case Paragraph():
            return "paragraphs"


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
