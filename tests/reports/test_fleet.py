"""Several replicas in a result: a table of them, and the counts of what failures cost."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from reports.content import Table
from reports.document import build_document
from reports.markdown import render_markdown
from reports.model import build_report
from reports.source import Source
from reports.step_split import step_split_document
from reports.stored_run import read_run
from reports.terminal import render
from reports.words import Words
from sim.capacity import find_capacity
from sim.deployment import plan
from sim.results.folder import ResultFolder
from sim.results.metrics import summarize
from sim.results.step_split import step_times
from sim.scenario.model import scenario_hash
from sim.simulate import simulate
from tests.sim.fleet.build import open_loop

FAILING = {
    "replicas": 2,
    "router": "least_requests",
    "router_max_retries": 1,
    "failures": [{"after": "20s", "replica": 1, "restart": "10s"}],
}


def test_the_document_holds_each_replica_and_fits_its_schema(tmp_path: Path) -> None:
    case = open_loop(tmp_path, 40.0, server=FAILING)
    document = build_document(case, plan(case), find_capacity(case, simulate))
    schema = json.loads(files("sim.results").joinpath("run.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(document)
    assert document["server"]["replicas"] == 2
    (point,) = document["points"]
    fleet = point["fleet"]
    assert sum(each["num_requests"] for each in fleet["replicas"]) == point["num_requests"]
    assert fleet["num_lost"] == point["errors"]["lost"]
    assert fleet["num_rerouted"] > 0
    assert fleet["replicas"][1]["up_s"] == fleet["replicas"][0]["up_s"] - 10
    text = render(document)
    assert "Replicas at load 40 (router least_requests" in text
    assert f"requests lost {fleet['num_lost']}, tried again by clients 0, " in text
    assert f"sent to another replica {fleet['num_rerouted']}" in text


def test_a_server_with_one_replica_says_nothing_of_replicas(tmp_path: Path) -> None:
    case = open_loop(tmp_path, 4.0)
    document = build_document(case, plan(case), find_capacity(case, simulate))
    assert "fleet" not in document["points"][0]
    assert "replicas" not in document["server"]
    assert "Replicas" not in render(document)


def test_a_stored_run_of_replicas_reads_back_as_it_was(tmp_path: Path) -> None:
    case = open_loop(tmp_path, 40.0, server=FAILING)
    run = simulate(case, seed=0)
    ResultFolder(tmp_path / "out", case.name, scenario_hash(case), "requests_per_s")(run, 40.0, 0)
    back = read_run(tmp_path / "out" / "requests_per_s-40" / "seed-0")
    assert back.fleet == run.fleet
    assert summarize(back, case).fleet == summarize(run, case).fleet


def test_a_key_that_came_later_does_not_change_the_hash(tmp_path: Path) -> None:
    """Else everything that was kept would be forgotten."""
    one = open_loop(tmp_path, 4.0)
    two = open_loop(tmp_path, 4.0, server={"replicas": 1, "router": "round_robin", "failures": []})
    assert scenario_hash(one) == scenario_hash(two)
    assert scenario_hash(one) != scenario_hash(open_loop(tmp_path, 4.0, server={"replicas": 2}))


def test_where_the_step_time_goes_is_in_document_terminal_and_report(tmp_path: Path) -> None:
    case = open_loop(tmp_path, 10.0, server=FAILING)
    result = find_capacity(case, simulate)
    times = step_times(simulate(case, seed=0, step_split=True).step_split)
    assert times is not None
    split = step_split_document(times, 10.0, 0)
    document = build_document(case, plan(case), result, split)
    schema = json.loads(files("sim.results").joinpath("run.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(document)
    shares = [part["share"] for part in document["step_split"]["all"]["parts"].values()]
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    text = render(document)
    assert "Where the step time goes at load 10 (mean step in ms and %; stated, as its terms tell" in text
    for language in ("en", "pt-BR"):
        words = Words.of(language)
        report = build_report([Source("case", document, case)], words)
        blocks = [block for section in report.sections for block in section.blocks]
        tables = {block.key: block for block in blocks if isinstance(block, Table)}
        assert len(tables["replicas"].rows) == 2
        assert [row[-1] for row in tables["step_split"].rows] == [*split["kernels"].values(), ""]
        assert words("steps.base") in render_markdown(report, words)
