"""A dotted key changes one value, and an error about it names the change."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.scenario.load import load_scenario, locate_problem, override
from sim.scenario.model import Fixed, UsersWorkload
from sim.scenario.problems import ScenarioError

from .texts import OPEN, USERS, lines_for, load


def _users(*overrides: str) -> UsersWorkload:
    workload = load(USERS, *overrides).workload
    assert isinstance(workload, UsersWorkload)
    return workload


def test_a_flag_may_leave_out_flags() -> None:
    assert load(USERS, "server.max_num_seqs=32").server.flags.max_num_seqs == 32
    assert load(USERS, "server.flags.max_num_seqs=32").server.flags.max_num_seqs == 32
    assert load(OPEN, "server.max_num_seqs=32").server.flags.max_num_seqs == 32


def test_values_are_read_as_yaml() -> None:
    assert load(USERS, "run.duration=1h").run.duration == 3600.0
    assert load(USERS, 'server.version="0.22"').server.version == "0.22"
    assert load(USERS, "server.enable_prefix_caching=false").server.flags.enable_prefix_caching is False
    assert [item.text for item in load(USERS, "objectives=[ttft.p99 <= 1s]").objectives] == ["ttft.p99 <= 1s"]


def test_a_class_goes_by_its_name_or_its_position() -> None:
    assert _users("workload.classes.chat.output_tokens=300").classes[0].output_tokens == Fixed(value=300)
    assert _users("workload.classes.0.output_tokens=300").classes[0].output_tokens == Fixed(value=300)
    assert _users("workload.classes.chat.think_time.lognormal.median=1s").classes[0].think_time.smallest() == 0


def test_null_takes_the_default() -> None:
    assert load(USERS, "server.max_num_seqs=null").server.flags.max_num_seqs is None
    assert load(USERS, "server.flags=").server.flags.max_model_len is None


def test_later_changes_win() -> None:
    assert load(USERS, "run.seeds=2", "run.seeds=3").run.seeds == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("server.max_num_seqs=many", "server.flags.max_num_seqs: expected a whole number; got 'many'"),
        ("server.max_num_seq=64", "server.max_num_seq: unknown key; did you mean 'flags.max_num_seqs'?"),
        ("max_num_seqs=64", "max_num_seqs: unknown key; did you mean 'server.max_num_seqs'?"),
        ("gpu=h100", "gpu: unknown key; did you mean 'server.gpu'?"),
        ("sever.gpu=h100", "sever: unknown key; did you mean 'server'?"),
        ("server.memory.kv_gib=3", "server.memory.kv_gib: unknown key; did you mean 'kv_cache_gib'?"),
        ("workload.retries.backoff=3s", "workload.retries.max: missing key (most further tries)"),
        ("server.model.x=1", "server.model holds 'Qwen/Qwen2.5-7B-Instruct', which has no key 'x'"),
        ("workload.classes.chatt.share=1", "workload.classes has no item 'chatt'; items: chat"),
        ("objectives.7=errors <= 1%", "objectives has no item '7'; items: 0 to 1"),
        (
            "run.warm_up=40min",
            "run.warm_up: must be shorter than run.duration; got 40min; run.duration is 30min",
        ),
        ("server.gpu=[1", "not valid YAML: a bracket that is never closed"),
        ("server={gpu: a, gpu: b}", "gpu: duplicate key; first given in line 1"),
        ("server..gpu=h100", "an empty part between dots; got 'server..gpu'"),
        ("server.gpu", "expected KEY=VALUE, for example server.max_num_seqs=64"),
        ("=5", "expected KEY=VALUE, for example server.max_num_seqs=64"),
    ],
)
def test_an_error_of_a_change_names_the_change(change: str, message: str) -> None:
    assert lines_for(USERS, [change]) == [f"--set {change}: {message}"]


def test_an_error_elsewhere_keeps_its_place_in_the_file() -> None:
    assert lines_for(USERS, ["run.duration=4min"]) == [
        "s.yaml:29:12: run.warm_up: must be shorter than run.duration; got 5min; run.duration is 4min",
    ]


VARIANTS = (
    USERS + "variants:\n  big: {server.gpu: h100, server.max_num_seqs: 256}\n  bad:\n    server.max_num_seqs: x\n"
)


@pytest.fixture
def variants(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(VARIANTS)
    return path


def test_a_variant_is_a_set_of_changes_and_part_of_the_name(variants: Path) -> None:
    scenario = load_scenario(variants, variant="big")
    assert (scenario.name, scenario.server.gpu, scenario.server.flags.max_num_seqs) == ("team-big", "h100", 256)
    assert load_scenario(variants, ["server.gpu=h200"], "big").server.gpu == "h200"
    assert load_scenario(variants).server.gpu == "rtx-4090"


def test_an_error_of_a_variant_has_its_place_in_the_file(variants: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(variants, variant="bad")
    assert str(caught.value) == f"{variants}:33:26: server.flags.max_num_seqs: expected a whole number; got 'x'"


def test_an_unknown_variant_is_said(variants: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(variants, variant="bigg")
    assert str(caught.value) == f"{variants}: variants: unknown variant 'bigg'; did you mean 'big'?"


def test_a_later_check_finds_the_place_of_a_value(variants: Path) -> None:
    path = ("server", "gpu")
    assert str(locate_problem(variants, path, "no")) == f"{variants}:4:8: server.gpu: no"
    assert str(locate_problem(variants, path, "no", variant="big")) == f"{variants}:31:21: server.gpu: no"
    changed = locate_problem(variants, path, "no", ["server.gpu=l4"], "big")
    assert str(changed) == "--set server.gpu=l4: server.gpu: no"


def test_a_scenario_can_be_changed_in_code() -> None:
    scenario = load(USERS)
    changed = override(scenario, {"server.max_num_seqs": 8, "run.duration": "10min", "workload.users": 3})
    assert changed.server.flags.max_num_seqs == 8
    assert changed.run.duration == 600.0
    assert scenario.server.flags.max_num_seqs == 64
    with pytest.raises(ScenarioError) as caught:
        override(scenario, {"server.max_num_seq": 8})
    assert (
        str(caught.value) == "server.max_num_seq=8: server.max_num_seq: unknown key; did you mean 'flags.max_num_seqs'?"
    )


def test_a_changed_scenario_keeps_its_folder(tmp_path: Path) -> None:
    scenario = load(USERS).with_base_dir(tmp_path)
    assert override(scenario, {"run.seeds": 1}).resolve("x") == tmp_path / "x"
