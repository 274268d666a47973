"""A finished run is found again if and only if nothing that decides its result has changed."""

import json
from pathlib import Path

import pytest

from sim.results.metrics import RunMetrics, summarize
from sim.scenario.load import load_scenario, override
from sim.scenario.model import Scenario
from sim.simulate import simulate
from sim.sweep import kept
from sim.sweep.kept import KeptRuns, address
from tests.sim.sweep.made import write


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return override(load_scenario(write(tmp_path)), {"search": None, "workload.users": 3})


def metrics_of(scenario: Scenario) -> RunMetrics:
    return summarize(simulate(scenario, seed=0), scenario)


def test_a_kept_run_comes_back_equal_in_every_number(scenario: Scenario, tmp_path: Path) -> None:
    bounds = ["goodput(ttft <= 1s, tpot <= 50ms) >= 90%", "ttft.p99.9[chat] <= 3s", "e2el.mean <= 20s"]
    asked = override(scenario, {"objectives": bounds})
    runs, metrics = KeptRuns(tmp_path / "kept"), metrics_of(asked)
    runs.keep("name", metrics, {"seed": 0})
    assert runs.get("name") == metrics


def test_a_run_without_requests_comes_back_too(scenario: Scenario, tmp_path: Path) -> None:
    idle = override(scenario, {"run.duration": "1ms", "workload.start": "fresh"})
    runs, metrics = KeptRuns(tmp_path / "kept"), metrics_of(idle)
    runs.keep("name", metrics, {})
    assert metrics.total.num_requests == 0
    assert runs.get("name") == metrics


def test_what_decides_nothing_does_not_change_the_address(scenario: Scenario) -> None:
    alike = override(scenario, {"name": "other", "run.seeds": 9, "run.seed": 4, "active_share": 0.5})
    assert address(alike, None, 0) == address(scenario, None, 0)


def test_scenario_seed_load_scheduler_and_code_change_the_address(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        address(scenario, None, 0),
        address(scenario, None, 1),
        address(scenario, 4.0, 0),
        address(scenario, None, 0, reference=True),
        address(override(scenario, {"server.max_num_seqs": 9}), None, 0),
        address(override(scenario, {"objectives": ["ttft.p90 <= 1s"]}), None, 0),
    ]
    monkeypatch.setattr(kept, "code_version", lambda: "another")
    names.append(address(scenario, None, 0))
    assert len(set(names)) == len(names)


def test_the_content_of_files_changes_the_address(scenario: Scenario, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    names = []
    for text in ("10\n20\n", "10\n30\n"):
        lengths.write_text(text)
        changed = override(scenario, {"workload.classes.0.output_tokens": {"empirical": {"file": "lengths.csv"}}})
        names.append(address(changed, None, 0))
    assert names[0] != names[1]


def test_the_content_of_a_shipped_profile_changes_the_address(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "PROFILES_DIR", tmp_path)
    fitted = override(scenario, {"server.profile": "mine"})
    names = [address(fitted, None, 0)]
    for text in ("name: mine", "name: mine # edited"):
        (tmp_path / "mine.yaml").write_text(text)
        names.append(address(fitted, None, 0))
    assert len(set(names)) == 3
    assert address(scenario, None, 0) == address(scenario, None, 0)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"metrics": {}}', '{"metrics": {"total": {"goodput": 3}}}', "\xff"])
def test_a_damaged_file_is_no_result(scenario: Scenario, tmp_path: Path, damage: str) -> None:
    runs = KeptRuns(tmp_path / "kept")
    runs.keep("name", metrics_of(scenario), {})
    (tmp_path / "kept" / "runs" / "name.json").write_bytes(damage.encode("latin-1"))
    assert runs.get("name") is None


def test_a_file_says_which_run_it_is(scenario: Scenario, tmp_path: Path) -> None:
    KeptRuns(tmp_path / "kept").keep("name", metrics_of(scenario), {"overrides": {"users": 3}, "seed": 7})
    data = json.loads((tmp_path / "kept" / "runs" / "name.json").read_text())
    assert (data["overrides"], data["seed"]) == ({"users": 3}, 7)
