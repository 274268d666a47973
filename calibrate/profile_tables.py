"""The error tables of the shipped profiles, as their README shows them: rendered from the profiles, never by hand.

python -m calibrate.profile_tables     # writes them into calibrate/profiles/README.md
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.engine.profile import PROFILES_DIR, ErrorTable, MeasuredError, Profile, load_profile, profile_names

README = PROFILES_DIR / "README.md"
BEGIN = "<!-- error tables: python -m calibrate.profile_tables -->"
END = "<!-- end of error tables -->"

_LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2el_ms": "E2E"}
_TOTALS = {
    "duration_s": "duration",
    "request_throughput_per_s": "requests/s",
    "output_throughput_per_s": "tokens/s",
    "preemptions": "preemptions",
}
_STATISTICS = ("mean", "p50", "p90", "p99")


def error_tables(profiles: Sequence[Profile]) -> list[str]:
    """Returns the lines of the README from the first profile's heading to the last table."""
    lines: list[str] = []
    for profile in profiles:
        lines += [f"### {profile.name}", "", *_tables(profile), ""]
    return lines[:-1]


def shipped() -> list[Profile]:
    """Returns the shipped profiles in the order of their names."""
    return [load_profile(name) for name in profile_names()]


def with_tables(readme: str, profiles: Sequence[Profile]) -> str:
    """Returns the README with the tables between its markers replaced."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return "\n".join([before + BEGIN, "", *error_tables(profiles), "", END + after])


def _tables(profile: Profile) -> list[str]:
    steps = [table for table in profile.errors if table.run.startswith("steps: ")]
    runs = [table for table in profile.errors if table not in steps]
    lines: list[str] = []
    if runs:
        lines += _run_lines(runs)
    if steps:
        lines += [""] if lines else []
        lines += ["| steps left out of the fit | error of their mean duration |", "|---|---|"]
        lines += [f"| {_band(table)} | {table.rows[0].error_percent:+.1f} % |" for table in steps]
    return lines


def _band(table: ErrorTable) -> str:
    return table.run.removeprefix("steps: ").split(" (in per cent")[0]


def _run_lines(runs: Sequence[ErrorTable]) -> list[str]:
    metrics = [name for name in _LATENCIES if any(row.metric == name for table in runs for row in table.rows)]
    totals = [name for name in _TOTALS if any(row.metric == name for table in runs for row in table.rows)]
    columns = [*(f"{_LATENCIES[name]} {'/'.join(_shown(runs, name))}" for name in metrics)]
    columns += [_TOTALS[name] for name in totals]
    lines = [f"| run | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for table in runs:
        cells = [" / ".join(_cell(table, name, each) for each in _shown(runs, name)) for name in metrics]
        cells += [_cell(table, name, None) for name in totals]
        lines.append(f"| {table.run}{'' if table.held_out else ' (fitted)'} | {' | '.join(cells)} |")
    return lines + _spread_lines(runs)


def _shown(runs: Sequence[ErrorTable], metric: str) -> list[str]:
    present = {row.statistic for table in runs for row in table.rows if row.metric == metric}
    return [each for each in _STATISTICS if each in present]


def _cell(table: ErrorTable, metric: str, statistic: str | None) -> str:
    row = next((row for row in table.rows if (row.metric, row.statistic) == (metric, statistic)), None)
    if row is None:
        return "-"
    if row.metric == "preemptions":
        return f"{row.measured:.0f}, predicted {row.predicted:.0f}"
    return f"{row.error_percent:+.1f}"


def _spread_lines(runs: Sequence[ErrorTable]) -> list[str]:
    """Says how far the server's own repeats differ, largest value of each metric."""
    rows: list[MeasuredError] = [row for table in runs for row in table.rows if row.server_spread_percent is not None]
    if not rows:
        return []
    spreads = {(row.metric, row.statistic): row.server_spread_percent for row in rows}
    usual = min(value for value in spreads.values() if value is not None)
    more = [
        f"{_LATENCIES.get(metric, metric)} {statistic} {value:g} %"
        for (metric, statistic), value in spreads.items()
        if value is not None and value > usual
    ]
    return ["", f"The server's own spread: {', '.join([f'{usual:g} %', *more])}."]


def main() -> None:
    """Writes the tables."""
    README.write_text(with_tables(README.read_text(encoding="utf-8"), shipped()), encoding="utf-8")


if __name__ == "__main__":
    main()
