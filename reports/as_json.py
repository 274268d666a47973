"""The report as JSON: the same content, numbers as numbers, keys that do not depend on the language."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from reports.content import (
    Block,
    Chart,
    Findings,
    Headline,
    Paragraph,
    Report,
    Section,
    Table,
    Timeline,
    data_table,
    plain,
)

FORMAT = 1


def render_json(report: Report) -> str:
    """Returns the report as one JSON object."""
    document = {
        "format": FORMAT,
        "title": report.title,
        "subtitle": report.subtitle,
        "lang": report.lang,
        "headline": _headline(report.headline) if report.headline else None,
        "sections": [_section(section) for section in report.sections],
        "footer": list(report.footer),
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _headline(headline: Headline) -> dict[str, Any]:
    data = {name: getattr(headline, name) for name in ("answer", "tone", "calibration", "calibrated", "changes_note")}
    data |= {name: list(getattr(headline, name)) for name in ("lines", "binds")}
    data |= {name: [asdict(each) for each in getattr(headline, name)] for name in ("limits", "changes", "facts")}
    return data | {"chart": _block(headline.chart) if headline.chart else None}


def _section(section: Section) -> dict[str, Any]:
    return {"key": section.key, "title": section.title, "blocks": [_block(block) for block in section.blocks]}


def _block(block: Block) -> dict[str, Any]:
    match block:
        case Paragraph(text=text, tone=tone):
            return {"kind": "paragraph", "text": text, "tone": tone}
        case Findings(items=items):
            return {"kind": "findings", "code": "T7", "items": [asdict(each) for each in items]}
        case Table():
            return {"kind": "table", **_table(block)}
        case Chart() | Timeline():
            described = {"kind": "chart", "key": block.key, "code": block.code, "title": block.title}
            return described | {"caption": block.caption, "alt": block.alt, "data": _table(data_table(block))}


def _table(table: Table) -> dict[str, Any]:
    return {
        "key": table.key,
        "code": table.code,
        "title": table.title,
        "columns": [{"key": each.key, "title": each.title, "unit": each.unit} for each in table.columns],
        "rows": [[plain(cell) for cell in row] for row in table.rows],
        "note": table.note,
    }
