"""`headcount run --report`: a page beside the answer, with the changes that help most simulated on its first screen."""

import json
from pathlib import Path

import pytest

from reports.source import Source
from sim.scenario.load import load_scenario
from tests.sim.cli.test_run import SCENARIO, fails, invoke


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "tiny.yaml").write_text(SCENARIO)
    out = folder / "kept"
    result = invoke(folder / "tiny.yaml", "--report", "--out", str(out))
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, f"report: {out / 'report.html'}")
    assert result.stdout.splitlines()[0] == invoke(folder / "tiny.yaml").stdout.splitlines()[0]
    return out


def test_the_first_screen_has_three_changes_that_were_simulated(made: Path) -> None:
    page, what_if = (made / "report.html").read_text(), json.loads((made / "what-if.json").read_text())
    helpful = [each for each in what_if["changes"] if (each["value"] or 0) > what_if["baseline"]["value"]]
    assert len(helpful) >= 3
    first_screen = page[page.index('id="answer"') : page.index("<nav")]
    assert first_screen.count("<li class=") == 3
    best = max(helpful, key=lambda each: each["value"])
    assert f"{what_if['baseline']['value']} → {best['value']}" in first_screen
    assert "--set server.flags.max_num_seqs=16" in first_screen


def test_without_a_folder_the_report_lies_under_the_scenarios_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    result = invoke(tmp_path / "tiny.yaml", "--users", "4", "--report", "--lang", "pt-BR", "--no-what-if")
    assert result.stderr.splitlines()[-1] == "report: out/tiny/report.html"
    assert '<html lang="pt-BR">' in (tmp_path / "out" / "tiny" / "report.html").read_text()
    assert not (tmp_path / "out" / "tiny" / "what-if.json").exists()


def test_a_run_of_a_trace_is_reported_wherever_its_folder_lies(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    lines = [
        json.dumps({"timestamp": 1000 * n, "input_length": 100, "output_length": 5, "hash_ids": []}) for n in range(5)
    ]
    (tmp_path / "here" / "trace.jsonl").write_text("\n".join(lines) + "\n")
    head, _, _ = SCENARIO.partition("workload:")
    rest = "workload: {kind: trace, format: mooncake, path: trace.jsonl}\nobjectives: [ttft.p95 <= 1s]\nrun: {}\n"
    scenario, out = tmp_path / "here" / "tiny.yaml", tmp_path / "there" / "kept"
    scenario.write_text(head + rest)
    result = invoke(scenario, "--report", "--out", str(out))
    assert result.stderr.splitlines()[-1] == f"report: {out / 'report.html'}", result.output
    assert Source.read(out).scenario is None  # its trace is not beside it
    found = Source.read(out, load_scenario(scenario)).scenario
    assert found is not None
    assert found.files() == ("trace.jsonl",)


def test_an_unknown_language_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    said = fails(tmp_path / "tiny.yaml", "--report", "--lang", "fr", "--out", str(tmp_path / "kept"))
    assert said == "--lang: unknown language 'fr'; known: en, pt-BR"
    assert not (tmp_path / "kept").exists()
