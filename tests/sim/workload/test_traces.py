"""Traces are read as they were recorded; whatever is wrong with a file is told in one line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.errors import UserError
from sim.workload import csv_columns
from sim.workload.trace import Trace
from sim.workload.traces import detect_format, read_trace

MOONCAKE = """\
{"timestamp": 0, "input_length": 1030, "output_length": 50, "hash_ids": [0, 1, 2]}
{"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 3]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:17:03.9799600,4808,10\r
2023-11-16 18:17:04.0319601,3180,8"""
CSV = "arrival_s,input_tokens,output_tokens\n0.5,100,10\n2,200,20\n"
BENCH: dict[str, Any] = {
    "start_times": [100.5, 101.0, 103.0],
    "queue_times": [0.5, 0.75, 0.0],
    "input_lens": [10, 20, 30],
    "output_lens": [1, 2, 3],
    "errors": ["", "", ""],
}


def write(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def columns(trace: Trace) -> list[list[int]]:
    return [trace.sent_ns.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist()]


# What is read


def test_a_mooncake_trace(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, MOONCAKE))
    assert columns(trace) == [[0, 1_500_000_000], [1030, 600], [50, 7]]
    assert trace.block_hashes is not None
    assert trace.block_ends is not None
    assert (trace.block_hashes.tolist(), trace.block_ends.tolist()) == ([0, 1, 2, 0, 3], [3, 5])


def test_an_azure_trace_counts_from_its_first_request_in_whole_nanoseconds(tmp_path: Path) -> None:
    assert columns(read_trace(write(tmp_path, AZURE))) == [[0, 52_000_100], [4808, 3180], [10, 8]]


def test_an_azure_trace_of_2024_names_its_time_zone(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01Z,2,6\n"
    )
    assert columns(read_trace(write(tmp_path, text))) == [[0, 990_070_000], [2162, 2], [5, 6]]


def test_a_table(tmp_path: Path) -> None:
    assert columns(read_trace(write(tmp_path, CSV))) == [[500_000_000, 2_000_000_000], [100, 200], [10, 20]]


def test_a_table_with_other_names_classes_users_and_priorities(tmp_path: Path) -> None:
    text = "\ufeffUser,time_s,note,prompt_tokens,output_length,class,priority\n"
    text += "ann,1,x,10.0,1,b,-1\n\nbob,2,,20,2,a,0\nann,2,,3,4,b,5\n"
    trace = read_trace(write(tmp_path, text))
    assert columns(trace) == [[1_000_000_000, 2_000_000_000, 2_000_000_000], [10, 20, 3], [1, 2, 4]]
    assert trace.class_ids is not None
    assert trace.user_ids is not None
    assert trace.priorities is not None
    assert (trace.class_names, trace.class_ids.tolist()) == (("b", "a"), [0, 1, 0])
    assert (trace.user_ids.tolist(), trace.priorities.tolist()) == ([0, 1, 0], [-1, 0, 5])


@pytest.mark.parametrize("indent", [None, 2])
def test_a_result_of_vllm_bench(tmp_path: Path, indent: int | None) -> None:
    """Times count from when the first request was wanted; the semaphore's delay is known apart."""
    trace = read_trace(write(tmp_path, json.dumps(BENCH, indent=indent)))
    assert columns(trace) == [[500_000_000, 1_000_000_000, 3_000_000_000], [10, 20, 30], [1, 2, 3]]
    assert trace.wanted_ns is not None
    assert trace.wanted_ns.tolist() == [0, 250_000_000, 3_000_000_000]
    assert trace.warnings == ()


def test_failed_requests_of_vllm_bench_are_left_out_and_counted(tmp_path: Path) -> None:
    result = {**BENCH, "errors": ["", "timeout", ""], "output_lens": [1, 0, 3]}
    path = write(tmp_path, json.dumps(result))
    trace = read_trace(path)
    assert trace.prompt_tokens.tolist() == [10, 30]
    assert trace.warnings == (f"{path}: 1 failed requests of the recording are left out",)


def test_a_result_without_queue_times_or_errors_is_read_too(tmp_path: Path) -> None:
    result = {key: BENCH[key] for key in ("start_times", "input_lens", "output_lens")}
    assert columns(read_trace(write(tmp_path, json.dumps(result))))[0] == [0, 500_000_000, 2_500_000_000]


def test_a_result_of_vllm_bench_is_in_order_of_sending_whatever_its_order(tmp_path: Path) -> None:
    result = {**BENCH, "start_times": [103.0, 101.0, 100.5], "queue_times": [0.0, 0.0, 0.0]}
    assert columns(read_trace(write(tmp_path, json.dumps(result))))[1] == [30, 20, 10]


@pytest.mark.parametrize("text", [MOONCAKE, AZURE, CSV, json.dumps(BENCH), json.dumps(BENCH, indent=1)])
def test_a_compressed_trace_is_read_like_a_plain_one_whatever_its_name(tmp_path: Path, text: str) -> None:
    plain, packed = write(tmp_path, text), tmp_path / "packed"
    packed.write_bytes(gzip.compress(text.encode()))
    assert detect_format(plain) == detect_format(packed)
    assert columns(read_trace(plain)) == columns(read_trace(packed))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MOONCAKE, "mooncake"), ("\n\n" + MOONCAKE, "mooncake"), (AZURE, "azure"), (CSV, "csv"),
        (json.dumps(BENCH), "vllm_bench"), (json.dumps(BENCH, indent=1), "vllm_bench"), ("x\n", "csv"),
    ],
)  # fmt: skip
def test_the_first_line_tells_the_format(tmp_path: Path, text: str, expected: str) -> None:
    assert detect_format(write(tmp_path, text)) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(rows=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 2000), st.integers(1, 9)), min_size=1, max_size=30))
def test_requests_are_sorted_by_time_and_equal_times_keep_their_order(
    tmp_path: Path, rows: list[tuple[int, int, int]]
) -> None:
    """The same for tables and for lines with hashes, whose blocks move with their requests."""
    lines = [
        json.dumps({"timestamp": ms, "input_length": n, "output_length": out, "hash_ids": list(range(-(-n // 512)))})
        for ms, n, out in rows
    ]
    table = ["arrival_s,input_tokens,output_tokens", *(f"{ms / 1000},{n},{out}" for ms, n, out in rows)]
    expected = sorted(rows, key=lambda row: row[0])
    for name, text in (("a.jsonl", lines), ("a.csv", table)):
        trace = read_trace(write(tmp_path, "\n".join(text), name))
        assert columns(trace) == [
            [row[0] * 1_000_000 for row in expected],
            *map(list, zip(*[r[1:] for r in expected], strict=True)),
        ]
        if trace.block_ends is not None:
            assert np.diff(trace.block_ends, prepend=0).tolist() == [-(-row[1] // 512) for row in expected]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tables are read three rows at a time."""
    monkeypatch.setattr(csv_columns, "_ROWS", 3)
    return iter(())


@pytest.mark.usefixtures("small_blocks")
def test_blocks_of_rows_join_without_a_seam(tmp_path: Path) -> None:
    rows = [f"{number},{number + 1},{number + 2}" for number in range(10)]
    trace = read_trace(write(tmp_path, "arrival_s,input_tokens,output_tokens\n" + "\n".join(rows)))
    assert trace.prompt_tokens.tolist() == list(range(1, 11))


# What is wrong

_BAD_TABLES = [
    ("", "1:1: empty; expected a trace (mooncake, azure, vllm_bench or csv)"),
    ("arrival_s,input_tokens,output_tokens\n", "2:1: no rows after the header"),
    (
        "arrival_s,input_tokens\n1,2\n",
        "1:1: no column 'output_tokens' (or output_length, num_decode_tokens, GeneratedTokens); "
        "got arrival_s, input_tokens",
    ),
    (
        "arival_s,input_tokens,output_tokens\n1,2,3\n",
        "1:1: no column 'arrival_s' (or time_s, arrived_at); got arival_s, input_tokens, output_tokens; "
        "is it 'arival_s'?",
    ),
    (CSV + "-1,5,5\n", "4:1: arrival_s: got '-1'; expected a number of seconds, from 0 to 9e9"),
    (CSV + "3,five,5\n", "4:3: input_tokens: got 'five'; expected a whole number of tokens, at least 1"),
    (CSV + "3,5,\n", "4:5: output_tokens: got ''; expected a whole number of tokens, at least 1"),
    (CSV + "3,0,5\n", "4:3: input_tokens: got '0'; expected a whole number of tokens, at least 1"),
    (CSV + "3,5,0\n", "4:5: output_tokens: got '0'; expected a whole number of tokens, at least 1"),
    (CSV + "3,5.5,5\n", "4:3: input_tokens: got '5.5'; expected a whole number of tokens, at least 1"),
    (CSV + "nan,5,5\n", "4:1: arrival_s: got 'nan'; expected a number of seconds, from 0 to 9e9"),
    (CSV + "1e300,5,5\n", "4:1: arrival_s: got '1e300'; expected a number of seconds, from 0 to 9e9"),
    (CSV + "3,1e300,5\n", "4:3: input_tokens: got '1e300'; expected a whole number of tokens, at least 1"),
    (CSV + "inf,5,5\n", "4:1: arrival_s: got 'inf'; expected a number of seconds, from 0 to 9e9"),
    (CSV + "3,5\n", "4:1: 2 cells, but the header has 3"),
    (CSV + "\n\n3,5\n", "6:1: 2 cells, but the header has 3"),
    (CSV + "3,1e400,5\n", "4:3: input_tokens: got '1e400'; expected a whole number of tokens, at least 1"),
    (
        AZURE + "\nyesterday,1,1\n",
        "4:1: TIMESTAMP: got 'yesterday'; expected a UTC time like 2023-11-16 18:17:03.9799600",
    ),
    (AZURE + "\n,1,1\n", "4:1: TIMESTAMP: got ''; expected a UTC time like 2023-11-16 18:17:03.9799600"),
]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("text", "error"), _BAD_TABLES)
def test_a_bad_table_is_told_in_one_line(tmp_path: Path, text: str, error: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as raised:
        read_trace(path)
    assert str(raised.value) == f"{path}:{error}"


def line(**changes: Any) -> str:
    entry = {"timestamp": 5, "input_length": 600, "output_length": 9, "hash_ids": [0, 1], **changes}
    return json.dumps({key: value for key, value in entry.items() if value is not ...}) + "\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (line() + '{"timestamp": 5, "input_le', "2:18: not JSON: Unterminated string starting at"),
        (line() + "[]\n", "2:1: expected an object with timestamp, input_length, output_length, hash_ids"),
        (line(timestamp=-1), "1:2: timestamp: got -1; expected a number, from 0 to 9e12"),
        (line(timestamp=1e300), "1:2: timestamp: got 1e+300; expected a number, from 0 to 9e12"),
        (
            line(output_length=2**70),
            f"1:39: output_length: got {2**70}; expected a whole number of tokens, at least 1",
        ),
        (line(timestamp="0"), '1:2: timestamp: got "0"; expected a number, from 0 to 9e12'),
        (line(timestamp=float("nan")), "1:2: timestamp: got NaN; expected a number, from 0 to 9e12"),
        (
            line() + line(output_length=...),
            "2:1: output_length: missing; expected a whole number of tokens, at least 1",
        ),
        (line(output_length=0), "1:39: output_length: got 0; expected a whole number of tokens, at least 1"),
        (line(input_length=0), "1:18: input_length: got 0; expected a whole number of tokens, at least 1"),
        (line(input_length=True), "1:18: input_length: got true; expected a whole number of tokens, at least 1"),
        (line(hash_ids=[1, 2, 3]), "1:59: hash_ids: got 3 numbers, but 600 tokens have 2 blocks of 512"),
        (line(hash_ids=[1, -2]), "1:59: hash_ids: expected a list of whole numbers, at least 0"),
        (line(hash_ids="1"), "1:59: hash_ids: expected a list of whole numbers, at least 0"),
    ],
)
def test_a_bad_mooncake_line_is_told_in_one_line(tmp_path: Path, text: str, error: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as raised:
        read_trace(path, "mooncake")
    assert str(raised.value) == f"{path}:{error}"


def test_a_mooncake_trace_of_blank_lines_has_no_requests(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trace:1:1: no requests; expected lines with timestamp"):
        read_trace(write(tmp_path, "\n\n"), "mooncake")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"start_times": None}, "start_times: missing; run `vllm bench serve` with --save-detailed"),
        ({"input_lens": [1, 2]}, "input_lens: 2 entries, but start_times has 3"),
        ({"queue_times": [1.0]}, "queue_times: 1 entries, but start_times has 3"),
        ({"start_times": [1.0, -2.0, 3.0]}, "start_times: got -2.0 at [1]; expected a number, from 0 to 9e9"),
        ({"output_lens": [1, 2, 0]}, "output_lens: got 0 at [2]; expected a whole number of tokens, at least 1"),
        ({"input_lens": [1, 2, "3"]}, 'input_lens: got "3" at [2]; expected a whole number of tokens, at least 1'),
        ({"errors": ["x", "x", "x"]}, "start_times: no successful requests"),
        ({"start_times": [], "errors": [], "queue_times": []}, "start_times: no successful requests"),
    ],
)
def test_a_bad_result_of_vllm_bench_is_told_in_one_line(tmp_path: Path, changes: Any, error: str) -> None:
    """The place is that of the key, in a file of one line as in a file of many."""
    result = {**BENCH, **changes}
    for indent in (None, 2):
        text = json.dumps(result, indent=indent)
        place = text.index(f'"{error.partition(":")[0]}"')
        row, column = text[:place].count("\n") + 1, place - text.rfind("\n", 0, place)
        path = write(tmp_path, text)
        with pytest.raises(UserError) as raised:
            read_trace(path)
        assert str(raised.value) == f"{path}:{row}:{column}: {error}"


@pytest.mark.parametrize("text", ["{\n", '{"start_times": [1, 2', "{]"])
def test_a_result_cut_short_is_told_with_its_place(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=r":\d+:\d+: not JSON: "):
        read_trace(path)


@pytest.mark.parametrize("text", [MOONCAKE * 200, AZURE, CSV, json.dumps(BENCH)])
def test_a_gzip_file_cut_short_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(text.encode())[:-12])
    with pytest.raises(UserError, match=r"trace.gz:\d+:1: the gzip data end too early; is the file complete\?"):
        read_trace(path)


def test_a_damaged_gzip_file_is_told(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(CSV.encode() * 50))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "trace.gz"
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"trace.gz:\d+:1: "):
        read_trace(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: cannot be read: No such file or directory"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"cannot be read: Is a directory"):
        read_trace(tmp_path)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(CSV.encode() + b"\xff\xfe,1,1\n")
    with pytest.raises(UserError, match=r"trace:\d+:1: not UTF-8 text"):
        read_trace(path)
