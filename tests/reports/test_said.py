"""What the simulation itself says is translated too, and a sentence that changes there is noticed here."""

import ast
from functools import cache
from pathlib import Path
from string import Formatter

import pytest
from ruamel.yaml import YAML

from reports.content import Paragraph
from reports.model import build_report
from reports.source import Source
from reports.words import Words, placeholders
from sim.capacity import find_capacity
from sim.records import RunRecord
from sim.results.window import Window
from sim.scenario.load import scenario_from_text
from sim.simulate import simulate
from tests.reports.worlds import WORLDS

ROOT = Path(__file__).parents[2]
ENTRIES = YAML(typ="safe").load(ROOT / "reports" / "i18n" / "said.pt-BR.yaml")
PT = Words.of("pt-BR")


def shape(text: str) -> str:
    """A text with its placeholders emptied."""
    return "".join(before + ("{}" if name is not None else "") for before, name, _, _ in Formatter().parse(text))


@cache
def sentences() -> set[str]:
    """Every string that the simulation's code holds, values in it emptied."""
    found = set()
    for path in [*(ROOT / "sim").rglob("*.py"), *(ROOT / "calibrate").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
                found.add("".join(str(part) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["said"][:40] for entry in ENTRIES])
def test_each_sentence_is_still_said_and_keeps_its_values(entry: dict[str, str]) -> None:
    assert any(shape(entry["said"]) in text for text in sentences()), "the sentence has changed in the simulation"
    assert placeholders(entry["here"]) == placeholders(entry["said"])


def test_numbers_follow_the_locale_and_names_do_not() -> None:
    said = (
        "profile a.b: steps of up to 4096 tokens were priced, but the data it was fitted to ends at 2048: these step "
    )
    assert PT.said(said + "times are extrapolated").startswith("perfil a.b: foram calculados passos de até 4096 tokens")
    window = Window(0, 1_500_000_000, finite=True).sentence()
    assert PT.said(window) == "janela: a execução inteira, 1,5 s"
    assert Words.of("en").said(window) == window


def test_what_is_not_known_is_shown_as_it_was_said() -> None:
    assert PT.said("something new") == "something new"


@pytest.mark.parametrize(
    "changes",
    [
        ("workload.request_rate=30", "server.flags.max_num_seqs=2"),
        ("workload.request_rate=0.3", "workload.classes.0.shared_prefix={tokens: 100, scope: user}"),
        ("server.kind=ollama", "server.ollama={model: 'qwen2.5:7b', num_ctx: 256}"),
        ("server.profile=qwen2.5-0.5b-l4", "workload.request_rate=0.5"),
    ],
)
def test_a_portuguese_report_says_nothing_in_english(changes: tuple[str, ...]) -> None:
    scenario = scenario_from_text(WORLDS["public"], overrides=(*changes, "objectives=['ttft.p95 <= 1s']"))
    runs: dict[tuple[float | None, int], RunRecord] = {}
    result = find_capacity(scenario, simulate, store=lambda run, load, seed: runs.__setitem__((load, seed), run))
    source = Source.of_result(scenario, result, runs)
    report = build_report([source], PT)
    texts = [block.text for section in report.sections for block in section.blocks if isinstance(block, Paragraph)]
    said = [*source.document["notes"], *source.document["warnings"], source.document["points"][0]["window"]]
    assert any(PT.said(sentence) in text for sentence in said for text in texts)
    assert not any(sentence in text for sentence in said for text in texts)
