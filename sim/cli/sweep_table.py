"""The table that `headcount sweep` prints: columns of fixed width, so that each row can be printed when it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.sweep.axes import as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.sweep import Axis, SweepPoint, SweepTable

_COLUMNS: tuple[tuple[str, str], ...] = (
    ("TTFT p50", "ttft_p50_ms"),
    ("p95", "ttft_p95_ms"),
    ("p99", "ttft_p99_ms"),
    ("ITL p50", "itl_p50_ms"),
    ("p95", "itl_p95_ms"),
    ("E2EL p95", "e2el_p95_ms"),
    ("req/s", "requests_per_s"),
    ("out tok/s", "output_tokens_per_s"),
    ("running", "running_mean"),
    ("waiting", "waiting_mean"),
    ("KV %", "kv_mean"),
    ("max", "kv_max"),
    ("preempt", "preemptions"),
    ("hit %", "prefix_hit_share"),
    ("good %", "goodput_share"),
)
_SHARES = ("kv_mean", "kv_max", "prefix_hit_share", "goodput_share")
_WIDTH = 7  # of a number of three digits, as it is shown


def header(table: SweepTable, points: Sequence[SweepPoint], part: tuple[int, int] = (1, 1)) -> str:
    """Returns what stands above the rows; `part` is the shard of the runs that is made, and of how many."""
    sizes = " x ".join(str(len(axis.values)) for axis in table.axes)
    seeds = "1 seed" if len(table.seeds) == 1 else f"{len(table.seeds)} seeds"
    shard = "" if part[1] == 1 else f"part {part[0]} of {part[1]}: each row is the mean over this part's runs alone\n"
    calibrated = {point.calibrated for point in points if not point.cause}
    source = "fitted to measured servers" if calibrated == {True} else "UNCALIBRATED, not fitted to a measured server"
    if len(calibrated) == 2:
        source = (
            "UNCALIBRATED for some points (column calibrated of points.csv), fitted to measured servers for the rest"
        )
    titles = [_title(axis).rjust(_axis_width(axis)) for axis in table.axes]
    titles += [title.rjust(max(_WIDTH, len(title))) for title, _ in _COLUMNS]
    return (
        f"{table.name}: {sizes} points, {seeds} each (latencies in ms, means over the seeds)\n"
        f"{shard}"
        f"step times: {source}\n\n{'  '.join(titles)}  objectives\n"
    )


def line(row: dict[str, Any], axes: tuple[Axis, ...]) -> str:
    """Returns one point's row."""
    cells = [as_text(row[axis.key]).rjust(_axis_width(axis)) for axis in axes]
    for title, name in _COLUMNS:
        value = row.get(name)
        shown = _show(100 * value if name in _SHARES and value is not None else value)
        cells.append(shown.rjust(max(_WIDTH, len(title))))
    return f"{'  '.join(cells)}  {_verdict(row)}\n"


def footer(table: SweepTable) -> str:
    """Returns what stands below the rows: what the reader has to know of the runs."""
    if not table.warnings:
        return ""
    return "\n".join(["", "Warnings", *(f"  {text}" for text in table.warnings)]) + "\n"


def _title(axis: Axis) -> str:
    return axis.key.removeprefix("server.")


def _axis_width(axis: Axis) -> int:
    return max(len(_title(axis)), *(len(as_text(value)) for value in axis.values))


def _verdict(row: dict[str, Any]) -> str:
    if row["status"] == "failed":
        return f"failed: {row['cause']}"
    judged = {name.removeprefix("met[")[:-1]: met for name, met in row.items() if name.startswith("met[")}
    broken = [text for text, met in judged.items() if met is False]
    if broken:
        return f"broken: {', '.join(broken)}"
    if row["overloaded"]:
        return "overloaded"
    unjudged = [text for text, met in judged.items() if met is None]
    if unjudged:
        return f"met (no data: {', '.join(unjudged)})"
    return "met" if judged else "-"


def _show(value: float | None) -> str:
    """Returns three digits, and never an exponent."""
    if value is None:
        return "-"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
