"""A replayed trace sends what was recorded, when it was recorded, or behind a cap of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.errors import UserError
from sim.workload import replay
from sim.workload.build import build_workload
from sim.workload.client import ClientRequest, Workload
from tests.sim.workload.made import scenario
from tests.sim.workload.server import SECOND, serve
from tests.sim.workload.test_traces import BENCH, CSV, MOONCAKE, write


def replayed(folder: Path, text: str, load: float | None = None, search: Any = None, **workload: Any) -> Workload:
    write(folder, text)
    run = workload.pop("run", {})
    made = scenario({"kind": "trace", "path": "trace", **workload}, folder, run=run, search=search)
    return build_workload(made, 0, load)


def sent(workload: Workload) -> list[ClientRequest]:
    return serve(workload).sent


def seconds(workload: Workload) -> list[float]:
    return [request.sent_ns / SECOND for request in sent(workload)]


def test_every_request_is_sent_at_its_time_with_its_lengths(tmp_path: Path) -> None:
    requests = sent(replayed(tmp_path, CSV, priority=3, client_timeout="9s"))
    assert [(r.sent_ns, r.queued_ns, r.num_prompt_tokens, r.output_tokens, r.max_tokens) for r in requests] == [
        (500_000_000, 500_000_000, 100, 10, 10),
        (2_000_000_000, 2_000_000_000, 200, 20, 20),
    ]
    assert {(r.user_id, r.turn, r.priority, r.timeout_ns) for r in requests} == {(-1, 0, 3, 9 * SECOND)}


def test_a_trace_is_one_class_unless_it_names_its_own(tmp_path: Path) -> None:
    assert replayed(tmp_path, CSV).class_names == ("trace",)
    assert replayed(tmp_path, CSV, class_name="recorded").class_names == ("recorded",)
    text = (
        "arrival_s,input_tokens,output_tokens,class,user,priority\n0,1,1,chat,u1,0\n0,1,1,batch,u2,9\n0,1,1,chat,u2,0\n"
    )
    workload = replayed(tmp_path, text, format="csv")
    assert workload.class_names == ("chat", "batch")
    assert [(r.class_id, r.user_id, r.priority) for r in sent(workload)] == [(0, 0, 0), (1, 1, 9), (0, 1, 0)]


def test_hashed_blocks_are_shared_prefixes_of_512_tokens(tmp_path: Path) -> None:
    one, other = sent(replayed(tmp_path, MOONCAKE))
    assert [length for _, length in one.prompt] == [512, 512, 6]
    assert [length for _, length in other.prompt] == [512, 88]
    assert one.prompt[0] == other.prompt[0]
    streams = {stream for request in (one, other) for stream, _ in request.prompt}
    assert len(streams) == 4
    assert streams.isdisjoint({one.output_stream, other.output_stream})


def test_prompt_tokens_without_a_hash_are_text_that_nobody_has(tmp_path: Path) -> None:
    text = '{"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [7]}\n'
    text += '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [7]}\n'
    text += '{"timestamp": 0, "input_length": 9, "output_length": 1}\n'
    one, other, bare = sent(replayed(tmp_path, text))
    assert ([length for _, length in one.prompt], other.prompt) == ([512, 488], (one.prompt[0],))
    assert len(bare.prompt) == 1
    assert bare.prompt[0][0] not in (7, one.prompt[1][0])


@pytest.mark.parametrize(
    ("scaling", "times"),
    [
        ({}, [0.5, 2]),
        ({"rate_scale": 2}, [0.25, 1]),
        ({"time_scale": 2}, [1, 4]),
        ({"rate_scale": 4, "time_scale": 2}, [0.25, 1]),
    ],
)
def test_times_are_scaled_in_rate_or_in_time(tmp_path: Path, scaling: Any, times: list[float]) -> None:
    assert seconds(replayed(tmp_path, CSV, **scaling)) == times


def test_a_load_stretches_the_trace_to_that_mean_rate(tmp_path: Path) -> None:
    """Four requests, three gaps in six seconds: at two a second the gaps take one and a half."""
    text = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{time},1,1\n" for time in (0, 1, 5, 6))
    assert seconds(replayed(tmp_path, text, load=2)) == [0, 0.25, 1.25, 1.5]


def test_requests_at_one_moment_cannot_be_stretched(tmp_path: Path) -> None:
    text = "arrival_s,input_tokens,output_tokens\n1,1,1\n1,1,1\n"
    with pytest.raises(UserError, match="trace: all requests come at the same time"):
        replayed(tmp_path, text, load=2)


def test_a_limit_takes_the_first_requests(tmp_path: Path) -> None:
    assert len(sent(replayed(tmp_path, MOONCAKE, limit=1))) == 1
    assert len(sent(replayed(tmp_path, MOONCAKE, limit=9))) == 2


def test_the_duration_cuts_a_trace(tmp_path: Path) -> None:
    assert len(sent(replayed(tmp_path, CSV, run={"duration": "2s"}))) == 1


def test_a_recorded_benchmark_is_sent_when_it_was_sent(tmp_path: Path) -> None:
    assert seconds(replayed(tmp_path, json.dumps(BENCH))) == [0.5, 1.0, 3.0]


def test_behind_a_cap_the_client_is_replayed_and_not_its_shadow(tmp_path: Path) -> None:
    """Requests come when the recorded client wanted to send them, and wait for this server."""
    requests = sent(replayed(tmp_path, json.dumps(BENCH), max_concurrency=1))
    assert [(request.queued_ns / SECOND, request.sent_ns / SECOND) for request in requests] == [
        (0, 0),
        (0.25, 1),
        (3, 3),
    ]


def test_the_cap_may_be_the_load(tmp_path: Path) -> None:
    search = {"vary": "max_concurrency", "from": 1, "to": 9}
    assert seconds(replayed(tmp_path, json.dumps(BENCH), load=2, search=search)) == [0, 0.25, 3]


def test_warnings_of_the_reader_reach_the_workload(tmp_path: Path) -> None:
    workload = replayed(tmp_path, json.dumps({**BENCH, "errors": ["", "x", ""]}))
    assert [warning.split(": ")[1] for warning in workload.warnings] == [
        "1 failed requests of the recording are left out"
    ]


def test_blocks_of_rows_join_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths, times and hashes are the same when the arrays are read three rows at a time."""
    text = "".join(
        json.dumps({"timestamp": n, "input_length": 600 + n, "output_length": n + 1, "hash_ids": [0, n + 1]}) + "\n"
        for n in range(10)
    )
    whole = sent(replayed(tmp_path, text))
    monkeypatch.setattr(replay, "_BLOCK", 3)
    assert sent(replayed(tmp_path, text)) == whole


def test_a_replay_that_would_last_for_ever_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"would be sent over 2e\+300 s; at most 9e\+09 s: change the rate, time_scale"):
        replayed(tmp_path, CSV, time_scale=1e300)
