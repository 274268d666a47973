"""The run that the tests of reports share, and the committed sample; `python -m tests.reports.sample` writes it."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path

from reports.as_json import render_json
from reports.document import Document
from reports.html import render_html
from reports.markdown import render_markdown
from reports.model import build_report
from reports.source import RunKey, Source
from reports.what_if import simulate_what_if
from reports.words import Words
from sim.capacity import CapacityResult, find_capacity
from sim.records import RunRecord
from sim.scenario.load import load_scenario
from sim.scenario.model import Scenario
from sim.simulate import simulate

FOLDER = Path(__file__).parents[2] / "reports" / "samples"
SCENARIO = FOLDER / "small-office.yaml"
WHAT_IF = FOLDER / "small-office.what-if.json"


@cache
def scenario() -> Scenario:
    """The sample's scenario."""
    return load_scenario(SCENARIO)


@cache
def searched() -> tuple[CapacityResult, dict[RunKey, RunRecord]]:
    """The search, really simulated, with the records of every run."""
    runs: dict[RunKey, RunRecord] = {}

    def keep(run: RunRecord, load: float | None, seed: int) -> None:
        runs[load, seed] = run

    return find_capacity(scenario(), simulate, store=keep), runs


@cache
def _source() -> Source:
    result, runs = searched()
    source = Source.of_result(scenario(), result, runs)
    source.document["versions"] = {"headcount": "sample"}  # the only part that another machine changes
    return source


def source(*, with_what_if: bool = True) -> Source:
    """The sample's numbers, in memory; each call may change what it gets."""
    made = _source()
    what_if: Document | None = json.loads(WHAT_IF.read_text(encoding="utf-8")) if with_what_if else None
    return Source(made.name, copy.deepcopy(made.document), made.scenario, None, what_if, made._runs)


def rendered(lang: str = "en") -> dict[str, str]:
    """The sample in every format, by the suffix of its file."""
    words = Words.of(lang)
    report = build_report([source()], words)
    return {"html": render_html(report, words), "md": render_markdown(report, words), "json": render_json(report)}


def write_what_if() -> None:
    """Simulates the sample's changes."""
    found = simulate_what_if(source(with_what_if=False), simulate)
    WHAT_IF.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_what_if()
    for suffix, text in rendered().items():
        (FOLDER / f"small-office.{suffix}").write_text(text, encoding="utf-8", newline="\n")
