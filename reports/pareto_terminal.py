"""The result of a flag search as text: the front as a table and a plot, then the command lines."""

from __future__ import annotations

from typing import Any

from reports.document import Document
from sim.sweep.axes import as_text

_WIDTH, _HEIGHT = 60, 14
_REQUIRED = {"starts": "the server starts", "objectives": "objectives hold", "preemptions": "no preemptions"}
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def render_search(document: Document) -> str:
    """Returns the text, free of anything that depends on when or where it is made."""
    sections = [_headline(document), _table(document), _plot(document), _commands(document), _warnings(document)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _headline(document: Document) -> list[str]:
    tried = f"{document['num_simulated']} of {document['num_configurations']} configurations simulated"
    if document["num_refused"]:
        tried += f", {document['num_refused']} more do not start"
    if document["num_failed"]:
        tried += f", {document['num_failed']} failed"
    front = document["front"]
    found = f"{len(front)} on the front" if front else "none meets what is required"
    stopped = "interrupted, so far " if document["interrupted"] else ""
    seeds = f"means over {len(document['seeds'])} seeds" if len(document["seeds"]) > 1 else "one seed"
    where = "at the load that is each one's answer" if document["searches_capacity"] else "all at one load"
    wanted = ", ".join(f"{each['direction']} {each['metric']}" for each in document["objectives"])
    times = "fitted to measured servers" if document["calibrated"] else "UNCALIBRATED, not fitted to a measured server"
    lines = [
        f"{document['scenario']}: {stopped}{found} ({tried})",
        f"  {wanted} ({seeds}, {where})",
        f"  required: {', '.join(_REQUIRED[name] for name in document['required'])}",
    ]
    refused = [each for each in document["failures"] if each["state"] == "refused"]
    if refused:
        values = refused[0]["parameters"].items()
        parameters = ", ".join(f"{key.removeprefix('server.')}={as_text(value)}" for key, value in values)
        lines.append(f"  does not start: {parameters}: {refused[0]['cause']}")
    return [*lines, f"  step times: {times}"] if document["trials"] else lines


def _table(document: Document) -> list[str]:
    """Returns one row a configuration that nothing beats; where there is none, those that break least."""
    rows = document["front"] or _nearest(document)
    if not rows:
        return []
    flags, names = list(document["vary"]), [each["metric"] for each in document["objectives"]]
    last = "breaks next" if document["searches_capacity"] else "objectives"
    header = ["", "trial", *(key.removeprefix("server.") for key in flags), *names, "load", last]
    cells = [header] + [
        [
            _LETTERS[place % len(_LETTERS)] if document["front"] else "",
            str(row["trial"]),
            *(as_text(row["parameters"][key]) for key in flags),
            *(_measure(row, name, document["unit"]) for name in names),
            "-" if row["load"] is None else f"{row['load']:g}",
            _verdict(row, searched=document["searches_capacity"]),
        ]
        for place, row in enumerate(rows)
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    title = "Nothing beats these" if document["front"] else "None is feasible; these break least"
    lines = [f"{title} (load in {document['unit']})"]
    for line in cells:
        shown = [cell.rjust(width) for cell, width in zip(line[:-1], widths, strict=False)]
        lines.append(f"  {'  '.join(shown)}  {line[-1]}".rstrip())
    return lines


def _nearest(document: Document) -> list[Document]:
    return sorted(document["trials"], key=lambda row: (len(row["broken"]), row["trial"]))[:5]


def _measure(row: Document, name: str, unit: str) -> str:
    """Returns a value; the answer of a capacity search with its interval."""
    shown = str(row["shown"][name])
    is_answer = name in ("users", "request_rate", "max_concurrency", "context_tokens") and bool(unit)
    if not is_answer:
        return shown
    shown = f"≥ {shown}" if row["ceiling_reached"] else shown
    if row["low"] is None or row["high"] is None:
        return shown
    return f"{shown} ({row['low']:g} to {row['high']:g})"


def _verdict(row: Document, *, searched: bool) -> str:
    if row["broken"]:
        return f"broken: {', '.join(row['broken'])}"
    equal = f"; equal: trial {', '.join(map(str, row['equal']))}" if row["equal"] else ""
    return f"{row['binding_objective'] or ('-' if searched else 'met')}{equal}"


def _plot(document: Document) -> list[str]:
    """Draws the first two measures: the front by its letters, what it beats as dots."""
    if len(document["objectives"]) < 2 or not document["front"]:
        return []
    across, up = _axes(document)
    others = [row for row in document["trials"] if row["feasible"] and _has(row, across, up)]
    front = [row for row in document["front"] if _has(row, across, up)]
    if len(front) + len(others) < 2 or not front:
        return []
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    spans = [_span([row["measures"][each["metric"]] for row in others + front]) for each in (across, up)]
    marked = [(row, "·") for row in others]
    marked += [(row, _LETTERS[place % len(_LETTERS)]) for place, row in reversed(list(enumerate(front)))]
    for row, sign in marked:
        column, line = (
            round(_share(row["measures"][each["metric"]], span) * (size - 1))
            for each, span, size in ((across, spans[0], _WIDTH), (up, spans[1], _HEIGHT))
        )
        grid[_HEIGHT - 1 - line][column] = sign
    low, high = (f"{spans[0][end]:.4g}" for end in (0, 1))
    title = f"{_titled(up)} against {_titled(across)}; letters: the front, dots: what it beats"
    labels = [f"{spans[1][1]:.4g}", *[""] * (_HEIGHT - 2), f"{spans[1][0]:.4g}"]
    width = max(map(len, labels))
    lines = [f"  {label.rjust(width)} |{''.join(cells).rstrip()}" for label, cells in zip(labels, grid, strict=True)]
    base = f"  {'':>{width}} +{'-' * _WIDTH}"
    return [title, *lines, base, f"  {'':>{width}}  {low}{high.rjust(_WIDTH - len(low))}"]


def _axes(document: Document) -> tuple[Document, Document]:
    """Returns a measure to be small and one to be large, where there are both; else the first two."""
    small = [each for each in document["objectives"] if each["direction"] == "minimize"]
    large = [each for each in document["objectives"] if each["direction"] == "maximize"]
    if small and large:
        return small[0], large[0]
    return document["objectives"][0], document["objectives"][1]


def _titled(objective: Document) -> str:
    return f"{objective['metric']} ({objective['unit']})" if objective["unit"] else str(objective["metric"])


def _has(row: Document, *objectives: Document) -> bool:
    return all(row["measures"][each["metric"]] is not None for each in objectives)


def _span(values: list[Any]) -> tuple[float, float]:
    return min(values), max(values)


def _share(value: float, span: tuple[float, float]) -> float:
    low, high = span
    return (value - low) / (high - low) if high > low else 0.5


def _commands(document: Document) -> list[str]:
    if not document["front"]:
        return []
    lines = ["To start a server, and to simulate it again"]
    for place, row in enumerate(document["front"]):
        lines += [f"  {_LETTERS[place % len(_LETTERS)]}  {row['serve']}", f"     {row['run']}"]
    return lines


def _warnings(document: Document) -> list[str]:
    """Returns each warning once, with the letters of those that it is about where it is not about all."""
    lines = []
    for text in document["warnings"]:
        about = [place for place, row in enumerate(document["front"]) if text in row["warnings"]]
        letters = ", ".join(_LETTERS[place % len(_LETTERS)] for place in about)
        lines.append(f"  {letters}: {text}" if 0 < len(about) < len(document["front"]) else f"  {text}")
    return ["Warnings", *lines] if lines else []
