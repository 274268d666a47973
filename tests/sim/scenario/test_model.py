"""A scenario is the same thing as text, as data and as an object, and its hash says what it is."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sim.scenario.load import load_scenario, override
from sim.scenario.model import (
    ClosedLoopWorkload,
    GammaArrivals,
    Lognormal,
    OpenLoopWorkload,
    Scenario,
    SharedPrefix,
    TraceWorkload,
    Uniform,
    UniformRatio,
    UsersWorkload,
    scenario_hash,
)

from .texts import CLOSED, OPEN, TRACE, USERS, edited, load


def test_the_users_scenario_reads_as_it_is_written() -> None:
    scenario = load(USERS)
    assert scenario.server.version == "0.32"
    assert scenario.server.flags.max_num_seqs == 64
    assert scenario.server.flags.max_num_batched_tokens is None
    workload = scenario.workload
    assert isinstance(workload, UsersWorkload)
    chat = workload.classes[0]
    assert chat.shared_prefix == (SharedPrefix(tokens=800, scope="all"),)
    assert chat.num_shared_tokens == 800
    assert isinstance(chat.think_time, Lognormal)
    assert (chat.think_time.median, chat.think_time.p95) == (45.0, 240.0)
    assert workload.client_timeout == 120.0
    assert [objective.text for objective in scenario.objectives] == ["ttft.p95 <= 2s", "errors <= 0.1%"]
    assert scenario.search is not None
    assert (scenario.search.vary, scenario.search.from_, scenario.search.to) == ("users", 1, 400)
    assert (scenario.run.duration, scenario.run.warm_up, scenario.run.seeds) == (1800.0, 300.0, 5)


def test_the_other_workloads_read_as_they_are_written(tmp_path: Path) -> None:
    public = load(OPEN).workload
    assert isinstance(public, OpenLoopWorkload)
    assert public.arrivals == GammaArrivals(burstiness=0.25)
    assert public.request_rate == 5.0
    bench = load(CLOSED).workload
    assert isinstance(bench, ClosedLoopWorkload)
    assert bench.request_rate == math.inf
    assert bench.classes[0].prompt_tokens == UniformRatio(mean=1024, ratio=0.5)
    (tmp_path / "requests.jsonl").write_text("{}\n")
    (tmp_path / "s.yaml").write_text(TRACE)
    replay = load_scenario(tmp_path / "s.yaml")
    assert isinstance(replay.workload, TraceWorkload)
    assert replay.resolve(replay.workload.path) == tmp_path / "requests.jsonl"


@pytest.mark.parametrize("text", [USERS, OPEN, CLOSED], ids=["users", "open", "closed"])
def test_a_scenario_written_out_reads_back_as_itself(text: str) -> None:
    scenario = load(text)
    data: Any = scenario.model_dump(mode="json", by_alias=True)
    assert Scenario.model_validate(data) == scenario
    assert scenario_hash(Scenario.model_validate(data)) == scenario_hash(scenario)


def test_a_scenario_survives_being_sent_to_another_process(tmp_path: Path) -> None:
    scenario = load(USERS).with_base_dir(tmp_path)
    copy = pickle.loads(pickle.dumps(scenario))
    assert copy == scenario
    assert copy.resolve("x") == tmp_path / "x"


def test_a_scenario_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load(USERS).name = "other"  # type: ignore[misc]


def test_a_key_without_a_value_takes_its_default() -> None:
    text = edited(USERS, "    max_model_len: 32768\n    max_num_seqs: 64\n", "    # max_num_seqs: 64\n")
    assert load(text).server.flags == load(text).server.flags.__class__()


def test_a_kind_of_distribution_can_be_built_and_compared_in_code() -> None:
    assert Uniform(low=1, high=2) == Uniform(low=1.0, high=2.0)
    assert Uniform(low=1, high=2).model_dump() == {"uniform": {"low": 1, "high": 2}}
    assert Lognormal(median=100, p95=100).sigma == 0.0
    assert Lognormal(median=100, p95=200).sigma == pytest.approx(math.log(2) / 1.6449, rel=1e-4)


def test_the_smallest_draw_of_each_distribution() -> None:
    text = edited(CLOSED, "{uniform_ratio: {mean: 1024, ratio: 0.5}}", "%s")
    smallest = {
        "7": 7,
        "{fixed: 7}": 7,
        "{uniform: {low: 3, high: 9}}": 3,
        "{uniform_ratio: {mean: 1024, ratio: 0.5}}": 512,
        "{normal: {mean: 9, std: 2, min: 4}}": 4,
        "{normal: {mean: 9, std: 0}}": 9,
        "{lognormal: {median: 9, p95: 20}}": 0,
        "{exponential: {mean: 3}}": 0,
        "{geometric: {mean: 3}}": 1,
    }
    for written, value in smallest.items():
        workload = load(text % written).workload
        assert isinstance(workload, ClosedLoopWorkload)
        assert workload.classes[0].prompt_tokens.smallest() == value


def test_what_does_not_decide_the_result_does_not_change_the_hash() -> None:
    plain = scenario_hash(load(USERS))
    same = edited(USERS, "name: team", "# a remark\nname: team\ndescription: more words\nactive_share:")
    same += "  seeds: 5\nvariants: {big: {server.gpu: h100}}\n"
    assert scenario_hash(load(same)) == plain
    assert scenario_hash(load(edited(USERS, "120s", "2min"))) == plain
    assert scenario_hash(load(edited(USERS, "120s", "121s"))) != plain
    assert len(plain) == 64


def test_the_hash_follows_the_content_of_the_trace(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TRACE)
    hashes = set()
    for content in ("1\n", "2\n", "1\n"):
        (tmp_path / "requests.jsonl").write_text(content)
        hashes.add(scenario_hash(load_scenario(tmp_path / "s.yaml")))
    assert len(hashes) == 2


def test_a_model_file_beside_the_scenario_is_found(tmp_path: Path) -> None:
    scenario = override(load(USERS), {"server.model": "mine/config.json"}).with_base_dir(tmp_path)
    assert scenario.locate(scenario.server.model) == "mine/config.json"
    before = scenario_hash(scenario)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    assert scenario.locate(scenario.server.model) == str(tmp_path / "mine" / "config.json")
    assert scenario_hash(scenario) != before


def test_reading_a_scenario_imports_nothing_heavy() -> None:
    code = (
        "import sys, sim.scenario.load; "
        "print(sorted({'numpy', 'scipy', 'pandas', 'pyarrow', 'matplotlib', 'simpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
