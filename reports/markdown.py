"""The report as Markdown: for a pull request, a wiki, a terminal. Charts become the tables behind them."""

from __future__ import annotations

from reports.content import (
    Block,
    Chart,
    Column,
    Findings,
    Headline,
    Paragraph,
    Report,
    Section,
    Table,
    Timeline,
    data_table,
)
from reports.words import Words

_MOST_ROWS = 24  # of the table behind a chart: more is what JSON is for
_LEFT = {"text", "flag"}


def render_markdown(report: Report, words: Words) -> str:
    """Returns the report as GitHub-flavoured Markdown."""
    parts = [f"# {_escape(report.title)}", _escape(report.subtitle)]
    if report.headline is not None:
        parts += _headline(report.headline, words)
    for section in report.sections:
        parts += _section(section, words)
    parts.append("---")
    parts += [f"<sub>{_escape(line)}</sub>" for line in report.footer]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(headline: Headline, words: Words) -> list[str]:
    badge = words("badge.calibrated" if headline.calibrated else "badge.uncalibrated")
    parts = [f"## {_escape(headline.answer)}", f"**{badge}** – {_escape(headline.calibration)}"]
    parts.append("\n".join(f"- {_escape(line)}" for line in headline.lines))
    if headline.binds:
        parts += [f"### {words('headline.binds')}", " ".join(_escape(line) for line in headline.binds)]
    if headline.limits:
        columns = (Column("limit", words("column.limit"), "text"), Column("used", words("column.used"), "share"),
                   Column("text", "", "text"))  # fmt: skip
        rows = tuple((limit.title, limit.used, limit.text) for limit in headline.limits)
        parts += [f"### {words('headline.limits')}", _grid(Table("limits", "", columns, rows), words)]
    if headline.changes or headline.changes_note:
        parts.append(f"### {words('headline.changes')}")
        changes = [f"1. **{_escape(each.title)}**: {_escape(each.effect)}" for each in headline.changes]
        parts.append("\n".join(changes) or _escape(headline.changes_note))
    if headline.facts:
        parts += _facts(headline, words)
    return parts + (_block(headline.chart, words) if headline.chart is not None else [])


def _facts(headline: Headline, words: Words) -> list[str]:
    named = (Column("fact", words("column.quantity"), "text"), Column("value", words("column.value"), "number"))
    facts = tuple((fact.title, words.value(fact.value, fact.kind)) for fact in headline.facts)
    return [f"### {words('headline.facts')}", _grid(Table("facts", "", named, facts), words)]


def _section(section: Section, words: Words) -> list[str]:
    parts = [f"## {_escape(section.title)}"]
    for block in section.blocks:
        parts += _block(block, words)
    return parts


def _block(block: Block, words: Words) -> list[str]:
    match block:
        case Paragraph(text=text, tone=tone):
            return [f"> ⚠ {_escape(text)}" if tone == "warn" else _escape(text)]
        case Findings(items=items):
            return [
                f"**{_escape(each.symptom)}** {_escape(each.cause)}\n\n- {_escape(each.evidence)}\n"
                f"- {words('word.cure')}: {_escape(each.cure)}"
                for each in items
            ]
        case Table():
            return [f"### {_title(block.code, block.title)}", _grid(block, words), _escape(block.note)]
        case Chart() | Timeline():
            table = _thinned(data_table(block))
            caption = f"{_escape(block.alt)} *{_escape(block.caption)}*"
            return [f"### {_title(block.code, block.title)}", caption, _grid(table, words)]


def _title(code: str, title: str) -> str:
    return f"{_escape(title)} ({code})" if code else _escape(title)


def _thinned(table: Table) -> Table:
    """Returns every n-th row of a long table, its last one included."""
    if len(table.rows) <= _MOST_ROWS:
        return table
    step = -(-len(table.rows) // _MOST_ROWS)
    return Table(table.key, table.title, table.columns, (*table.rows[:-1:step], table.rows[-1]))


def _grid(table: Table, words: Words) -> str:
    titles = [f"{column.title} ({column.unit})" if column.unit else column.title for column in table.columns]
    marks = [":--" if column.kind in _LEFT else "--:" for column in table.columns]
    rows = [[words.cell(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]
    lines = [titles, marks, *rows]
    return "\n".join(
        f"| {' | '.join(_escape(cell) if line is not marks else cell for cell in line)} |" for line in lines
    )


def _escape(text: str) -> str:
    """Keeps a text from being read as markup."""
    for sign in ("\\", "|", "*", "_", "<", "`"):
        text = text.replace(sign, f"\\{sign}")
    return text
