"""What `--vary` says: every value once, in the order given; what cannot be meant is told in one line."""

from typing import Any

import pytest

from sim.errors import UserError
from sim.scenario.source import parse_value
from sim.sweep.axes import as_text, combinations, parse_axes


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("server.max_num_seqs=16,64,256", [16, 64, 256]),
        ("users=10:50:20", [10, 30, 50]),
        ("users=10:55:20", [10, 30, 50]),
        ("users=50:10:-20", [50, 30, 10]),
        ("users=5:5:1", [5]),
        ("request_rate=0.1:0.3:0.1", [0.1, 0.2, 0.3]),
        ("request_rate=.5:2:.5", [0.5, 1, 1.5, 2]),
        ("users=1:3:1,10, 2", [1, 2, 3, 10]),
        ("server.max_num_seqs=16:512:log", [16, 32, 64, 128, 256, 512]),
        ("server.max_num_seqs=16:100:log", [16, 32, 64, 100]),
        ("server.max_num_seqs=7:7:log", [7]),
        ("server.max_num_batched_tokens=1024:8192:log:7", [1024, 1448, 2048, 2896, 4096, 5793, 8192]),
        ("request_rate=0.5:4:log", [0.5, 1.0, 2.0, 4]),
        ("server.scheduling_policy=fcfs,priority", ["fcfs", "priority"]),
        ("server.enable_prefix_caching=true,false", [True, False]),
        ("server.max_model_len=null,4096", [None, 4096]),
        ("workload.request_rate=5,inf,.inf", [5, "inf"]),
        ('server.version="0.19","0.32"', ["0.19", "0.32"]),
        ("workload.classes.chat.output_tokens={uniform: {low: 1, high: 9}},7", [{"uniform": {"low": 1, "high": 9}}, 7]),
        ("objectives=['ttft.p95 <= 1s', errors <= 1%]", [["ttft.p95 <= 1s", "errors <= 1%"]]),
    ],
)
def test_values_are_lists_ranges_or_both(text: str, values: list[Any]) -> None:
    (axis,) = parse_axes([text])
    assert list(axis.values) == values
    assert [type(value) for value in axis.values] == [type(value) for value in values]


def test_every_combination_comes_once_and_the_last_axis_changes_fastest() -> None:
    axes = parse_axes(["server.max_num_seqs=1,2", "users=3,4"])
    assert [axis.is_load for axis in axes] == [False, True]
    assert combinations(axes) == [
        {"server.max_num_seqs": seqs, "users": users} for seqs in (1, 2) for users in (3, 4)
    ]  # fmt: skip


@pytest.mark.parametrize("value", [16, 0.25, True, None, "fcfs", "0.32", "16", "true", "a, b", {"fixed": [1, "x"]}])
def test_a_value_written_out_reads_back(value: Any) -> None:
    assert parse_value(as_text(value)) == value


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "--vary: missing; "),
        (["users"], "--vary users: expected KEY=VALUE,VALUE or KEY=FROM:TO:STEP"),
        (["users="], "--vary users=: expected KEY=VALUE,VALUE"),
        (["=1"], "--vary =1: expected KEY=VALUE,VALUE"),
        (["users=1,,2"], "--vary users=1,,2: not valid YAML: "),
        (["users=1:5"], "a range is FROM:TO:STEP in numbers, as in 10:200:10, or FROM:TO:log; got 1:5"),
        (["users=0:8:log"], "a logarithmic range climbs from a number above 0; got 0:8:log"),
        (["users=8:1:log"], "a logarithmic range climbs from a number above 0; got 8:1:log"),
        (["users=1:8:log:1"], "FROM:TO:log:NUMBER has 2 values at least, 100000 at most; got 1"),
        (["users=1:5:0"], "the step must lead from 1 to 5; got 0"),
        (["users=5:1:1"], "the step must lead from 5 to 1; got 1"),
        (["users=0:1:0.000001"], "1000001 values; at most 100000"),
        (["users=1", "users=2"], "--vary users: given twice; put all values in one: users=A,B"),
        (["run.seeds=1,2"], "every point is simulated with the same seeds; their number is --seeds"),
        (["search.to=10"], "a sweep makes no search and no variants"),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_line(texts: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_axes(texts)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
