"""`headcount report` and `serve-metrics`: files, streams, and errors in one line."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from sim.cli.report import report
from sim.cli.serve_metrics import serve_metrics
from sim.errors import UserError
from sim.results.folder import ResultFolder
from tests.reports import sample

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(report)
app.command(name="serve-metrics")(serve_metrics)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small-office")
    source = sample.source()
    keeper = ResultFolder(folder, source.name, source.document["scenario_hash"], source.unit)
    for (load, seed), record in source._runs.items():
        if load in (source.shown_load, source.broken_load):
            keeper(record, load, seed)
    keeper.write_result(json.dumps(source.document))
    (folder / "scenario.json").write_text(json.dumps(sample.scenario().model_dump(mode="json", by_alias=True)))
    (folder / "what-if.json").write_text(sample.WHAT_IF.read_text())
    return folder


def called(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    result = called(*arguments)
    assert isinstance(result.exception, UserError)
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_html_goes_beside_the_run_and_its_name_to_stdout(stored: Path) -> None:
    result = called("report", stored)
    assert (result.exit_code, result.stdout) == (0, f"{stored / 'report.html'}\n")
    assert (stored / "report.html").read_text(encoding="utf-8") == sample.rendered()["html"]


@pytest.mark.parametrize("format_", ["md", "json"])
def test_other_formats_go_to_stdout(stored: Path, format_: str) -> None:
    assert called("report", stored, "--format", format_).stdout == sample.rendered()[format_]


def test_runs_whose_folders_have_one_name_are_told_apart_by_where_these_lie(stored: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "monday" / "run", tmp_path / "friday" / "run", tmp_path / "friday" / "again"]
    for folder in folders:
        folder.mkdir(parents=True)
        for file in ("result.json", "scenario.json"):
            (folder / file).write_bytes((stored / file).read_bytes())
    document = json.loads(called("report", *folders, "--format", "json").stdout)
    table = next(
        block for section in document["sections"] for block in section["blocks"] if block.get("key") == "slo_comparison"
    )
    assert [row[0] for row in table["rows"]] == ["monday/run", "friday/run", "friday/again"]
    assert f"{stored.name} (2)" in called("report", stored, stored, "--format", "json").stdout


def test_out_takes_any_format(stored: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "report.md"
    assert called("report", stored, "--format", "md", "--out", target, "--lang", "pt-BR").exit_code == 0
    assert target.read_text(encoding="utf-8") == sample.rendered("pt-BR")["md"]


def test_a_dash_is_stdout_and_a_folder_no_file(stored: Path, tmp_path: Path) -> None:
    assert called("report", stored, "--format", "html", "--out", "-").stdout == sample.rendered()["html"]
    assert refused("report", stored, "--out", tmp_path).startswith(f"{tmp_path}: is a folder; --out names the file")


def test_prices_bring_costs(stored: Path) -> None:
    text = called("report", stored, "--format", "md", "--gpu-price", "0.4", "--currency", "EUR").stdout
    assert "### Cost" in text
    assert "0.40 EUR a GPU hour" in text


def test_two_runs_are_compared(stored: Path) -> None:
    text = called("report", stored, stored, "--format", "md").stdout
    assert text.startswith("# Comparison: small-office")
    assert "may be chance" in text


@pytest.mark.parametrize(
    ("format_", "start"),
    [
        ("bench", "============ Serving Benchmark Result"),
        ("bench-json", '{"date": "19700101-000000"'),
        ("prometheus", "# HELP vllm:num_requests_running"),
        ("openmetrics", "# TYPE vllm:num_requests_running gauge"),
    ],
)
def test_formats_of_vllms_world(stored: Path, format_: str, start: str) -> None:
    result = called("report", stored, "--format", format_)
    assert result.exit_code == 0
    assert result.stdout.startswith(start)


def test_a_run_can_be_chosen(stored: Path) -> None:
    load = sample.source().broken_load
    chosen = called("report", stored, "--format", "bench", "--load", load, "--seed", 2).stdout
    assert chosen != called("report", stored, "--format", "bench").stdout


@pytest.mark.parametrize("choice", [("--load", 2), ("--seed", 2)])
def test_a_report_shows_all_runs(stored: Path, choice: tuple[str, int]) -> None:
    said = refused("report", stored, "--format", "md", *choice)
    assert said.startswith(f"{choice[0]}: --format md shows all runs; one can be chosen for bench, ")


@pytest.mark.parametrize("option", [("--lang", "pt-BR"), ("--what-if",), ("--gpu-price", "2")])
def test_formats_of_vllms_world_have_no_place_for_more(stored: Path, option: tuple[str, ...]) -> None:
    said = refused("report", stored, "--format", "bench", *option)
    assert said == f"{option[0]}: --format bench has no place for it; html, md and json have"


def test_changes_are_simulated_for_one_run_alone(stored: Path) -> None:
    said = refused("report", stored, stored, "--what-if")
    assert said == "--what-if: changes are simulated for the report of one run; got 2 runs"


def test_without_what_if_it_is_left_out(stored: Path) -> None:
    assert "No change was simulated" in called("report", stored, "--format", "md", "--no-what-if").stdout


def test_a_long_what_if_is_not_begun_unasked(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stored / "what-if.json").rename(stored / "kept")
    monkeypatch.setattr("sim.cli.report._AFFORDABLE_STEPS", 1000)
    result = called("report", stored, "--format", "md")
    (stored / "kept").rename(stored / "what-if.json")
    assert "No change was simulated" in result.stdout
    assert "million steps; --what-if does it" in result.stderr


def test_a_what_if_is_kept_with_the_run(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what_if = json.loads((stored / "what-if.json").read_text())
    (stored / "what-if.json").unlink()
    monkeypatch.setattr("reports.what_if.simulate_what_if", lambda source, simulate, **more: what_if)
    assert called("report", stored, "--format", "md", "--what-if").stdout == sample.rendered()["md"]
    assert json.loads((stored / "what-if.json").read_text()) == what_if


def test_a_measured_server_stands_beside(stored: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "end.prom"
    snapshot.write_text(called("report", stored, "--format", "prometheus").stdout)
    assert "Measured beside simulated" in called("report", stored, "--format", "md", "--measured", snapshot).stdout


def test_errors_are_one_line(stored: Path, tmp_path: Path) -> None:
    assert "no result.json" in refused("report", tmp_path)
    assert "unknown language 'fr'; known: en, pt-BR" in refused("report", stored, "--lang", "fr")
    assert "no run at load 1234 was kept" in refused("report", stored, "--format", "bench", "--load", "1234")
    assert "shows one run; got 2 runs" in refused("report", stored, stored, "--format", "bench")
    assert "belongs to one run; got 2 runs" in refused("report", stored, stored, "--scenario", sample.SCENARIO)
    (tmp_path / "plain").write_text("")
    assert "--gpu-price inf: expected a price of an hour" in refused("report", stored, "--gpu-price", "inf")
    assert "cannot be written" in refused("report", stored, "--out", tmp_path / "plain" / "x.html")


def test_a_folder_without_its_scenario_cannot_simulate_changes(stored: Path) -> None:
    for name in ("scenario.json", "what-if.json"):
        (stored / name).rename(stored / f"{name}.kept")
    message = refused("report", stored, "--what-if")
    for name in ("scenario.json", "what-if.json"):
        (stored / f"{name}.kept").rename(stored / name)
    assert "does not hold its scenario; give it with --scenario FILE" in message


def test_a_port_in_use_is_said(stored: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        message = refused("serve-metrics", stored, "--port", taken.getsockname()[1])
    assert "cannot be opened" in message


def test_help_needs_no_plots_and_no_parquet() -> None:
    heavy = ("numpy", "pyarrow", "jinja2", "scipy", "pandas", "matplotlib")
    loaded = f"print([name for name in {heavy} if name in sys.modules])"
    code = f"import sys, sim.cli.report, sim.cli.serve_metrics; {loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
