"""Every combination becomes a scenario, or says why it cannot be served."""

from pathlib import Path

import pytest

from sim.errors import UserError
from sim.scenario.model import ClosedLoopWorkload, OpenLoopWorkload, UsersWorkload
from sim.sweep.axes import parse_axes
from sim.sweep.points import SweepPoint, plan_points
from tests.sim.sweep.made import USERS, write

OPEN = """
name: open
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090}
workload: {kind: open_loop, classes: [{name: c, prompt_tokens: 100, output_tokens: 10}]}
run: {duration: 10s}
"""
CLOSED = OPEN.replace("kind: open_loop", "kind: closed_loop, num_requests: 5")
TRACE = """
name: replay
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090}
workload: {kind: trace, path: trace.csv}
"""


def plan(path: Path, *texts: str, sets: tuple[str, ...] = ()) -> list[SweepPoint]:
    return plan_points(path, parse_axes(list(texts)), sets)


def test_users_and_flags_land_in_the_scenario_and_its_search_goes(tmp_path: Path) -> None:
    points = plan(write(tmp_path), "server.max_num_seqs=4,8", "users=5:15:5", sets=("run.seeds=3",))
    assert [(point.number, *point.overrides.values()) for point in points][:4] == [
        (0, 4, 5),
        (1, 4, 10),
        (2, 4, 15),
        (3, 8, 5),
    ]
    for point in points:
        assert point.scenario is not None
        assert isinstance(point.scenario.workload, UsersWorkload)
        assert point.scenario.workload.users == point.overrides["users"] == point.stated_load
        assert point.scenario.server.flags.max_num_seqs == point.overrides["server.max_num_seqs"]
        assert (point.scenario.search, point.scenario.run.seeds, point.load, point.unit) == (None, 3, None, "users")


def test_the_load_may_come_from_the_sweep_alone(tmp_path: Path) -> None:
    without = write(tmp_path, changes={"search: {vary: users, from: 4, to: 64}": ""})
    assert [point.stated_load for point in plan(without, "users=3,4")] == [3, 4]
    rates = plan(write(tmp_path, OPEN), "request_rate=0.5,2")
    assert [(point.stated_load, point.unit) for point in rates] == [(0.5, "requests_per_s"), (2, "requests_per_s")]
    assert all(point.scenario and isinstance(point.scenario.workload, OpenLoopWorkload) for point in rates)


def test_a_closed_loop_may_vary_rate_and_concurrency_together(tmp_path: Path) -> None:
    points = plan(write(tmp_path, CLOSED), "request_rate=1,2", "max_concurrency=3")
    assert [point.overrides["request_rate"] for point in points] == [1, 2]
    for point in points:
        assert point.scenario is not None
        assert isinstance(point.scenario.workload, ClosedLoopWorkload)
        assert point.scenario.workload.request_rate == point.overrides["request_rate"]
        assert point.stated_load == 3


def test_the_context_and_the_rate_of_a_trace_are_told_to_the_simulation(tmp_path: Path) -> None:
    (context,) = plan(write(tmp_path), "users=3", "context_tokens=2000.0")
    assert context.scenario is not None
    assert context.scenario.search is not None
    assert (context.load, context.unit, context.scenario.search.vary) == (2000, "context_tokens", "context_tokens")
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n1,100,10\n")
    (rate,) = plan(write(tmp_path, TRACE), "request_rate=2.5")
    assert (rate.load, rate.unit) == (2.5, "requests_per_s")


def test_a_combination_that_cannot_be_served_says_why_and_the_others_stand(tmp_path: Path) -> None:
    points = plan(write(tmp_path), "server.max_num_seqs=8,512", "server.max_num_batched_tokens=256,1024", "users=2")
    assert [bool(point.cause) for point in points] == [False, False, True, False]
    assert points[2].cause.startswith("server.flags.max_num_batched_tokens: ")
    assert "must be at least max_num_seqs" in points[2].cause
    points = plan(write(tmp_path), "server.gpu_memory_utilization=0.3,0.9", "users=2")
    assert "vLLM would not start" in points[0].cause
    assert (points[0].scenario is not None, points[1].cause) == (True, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server.gpu=h100,h1000", "--vary server.gpu=h1000 users=2: gpu: unknown GPU 'h1000'; did you mean"),
        ("server.model=qwen3-0.6b,foo", "--vary server.model=foo users=2: model: unknown model 'foo'; "),
        ("server.profile=analytical,foo", "--vary server.profile=foo users=2: profile 'foo': no shipped profile"),
        ("server.max_num_seqs=8,few", "max_num_seqs=few users=2: server.flags.max_num_seqs: expected a whole number"),
    ],
)
def test_one_value_that_is_no_value_is_told_before_the_others_are_run(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        plan(write(tmp_path), text, "users=2")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("server.max_num_seq=1,2", "users=2"), "--vary server.max_num_seq=1 users=2: "),
        (("server.max_num_seqs=few", "users=2"), "--vary server.max_num_seqs=few users=2: server.flags.max_num_seqs: "),
        (("request_rate=1,2",), "--vary request_rate=1: a workload of kind users has no such quantity"),
        (("users=2.5",), "--vary users=2.5: users are counted in whole numbers; got 2.5"),
        (("users=0,4",), "--vary users=0: a load is a number above 0"),
        (("users=many",), "--vary users=many: a load is a number above 0"),
        (("users=true",), "--vary users=true: a load is a number above 0"),
        (("users=2", "server.max_model_len=400"), "no request of class 'chat' can ever fit"),
        (("users=2", "workload.classes.talk.turns=3"), "workload.classes has no item 'talk'; items: chat"),
    ],
)
def test_a_sweep_without_a_point_that_can_be_simulated_is_told_in_one_line(
    tmp_path: Path, texts: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        plan(write(tmp_path), *texts)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_wrong_with_the_file_is_told_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, USERS.replace("turns: 4", "turn: 4"))
    with pytest.raises(UserError, match=rf"(?m)^{path}:\d+:\d+: workload.classes.0.turn: unknown key"):
        plan(path, "users=3")


def test_other_servers_are_swept_too(tmp_path: Path) -> None:
    kinds = plan(write(tmp_path), "server.kind=vllm,ollama,static", "users=2")
    assert [point.cause for point in kinds] == ["", "", ""]
    assert not any(point.calibrated for point in kinds)
