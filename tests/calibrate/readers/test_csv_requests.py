"""A table of requests becomes a run, or one line that says where it is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from calibrate.readers import detect_run_format, read_runs
from calibrate.readers.csv_requests import read_request_csv
from sim.errors import UserError

HEADER = "arrival_s,send_s,input_tokens,output_tokens,ttft_s,e2el_s"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_come_in_the_order_of_sending_with_their_latencies(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", HEADER, "2,2.5,30,3,0.3,0.5", "1,1,10,2,0.1,0.2")
    run = read_request_csv(path)
    assert run.requests.prompt_tokens.tolist() == [10, 30]
    assert run.sent_s.tolist() == [1.0, 2.5]
    assert run.requests.wanted_ns is not None
    assert run.requests.wanted_ns.tolist() == [1_000_000_000, 2_000_000_000]
    assert run.ttft_s is not None
    assert run.ttft_s.tolist() == [0.1, 0.3]
    assert run.tpot_s is not None
    np.testing.assert_allclose(run.tpot_s, [0.1, 0.1])


def test_gzip_milliseconds_and_unknown_latencies_are_read(tmp_path: Path) -> None:
    path = tmp_path / "b.csv.gz"
    path.write_bytes(gzip.compress(b"arrival_s,input_tokens,output_tokens,ttft_ms,e2el_ms\n0,5,2,100,300\n1,5,2,,\n"))
    run = read_runs(path)[0]
    assert run.name == "b"
    assert run.ttft_s is not None
    assert run.ttft_s[0] == pytest.approx(0.1)
    assert np.isnan(run.ttft_s[1])


def test_a_table_without_latencies_has_none(tmp_path: Path) -> None:
    run = read_request_csv(write(tmp_path / "c.csv", "arrival_s,input_tokens,output_tokens", "0,5,2"))
    assert (run.ttft_s, run.e2el_s, run.tpot_s) == (None, None, None)


def test_the_first_requests_keep_their_latencies(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", HEADER, "0,0,10,2,0.1,0.2", "1,1,30,3,0.3,0.5")
    run = read_request_csv(path).first(1)
    assert len(run) == 1
    assert run.e2el_s is not None
    assert run.e2el_s.tolist() == [0.2]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([HEADER, "0,0,10,2,64.9,1.6"], "request 1: ttft of 64.9 s is longer than e2el of 1.6 s; mixed units?"),
        ([HEADER, "0,0,10,2,64.9,1624"], "s a token (median) cannot be; mixed units? columns in milliseconds are"),
        (
            ["arrival_s,input_tokens,output_tokens,ttft_s,ttft_ms", "0,1,1,1,1"],
            "a.csv:1:1: both ttft_s and ttft_ms are given; keep one",
        ),
        (["arrival,input_tokens,output_tokens", "0,1,1"], "a.csv:1:1: no column 'arrival_s'"),
        (
            [HEADER, "0,0,10,2,x,1.6"],
            "a.csv:2:10: ttft_s: got 'x'; expected a number of seconds, from 0 to 9e9, or nothing",
        ),
        (
            [HEADER, "1e300,0,10,2,1,1.6"],
            "a.csv:2:1: arrival_s: got '1e300'; expected a number of seconds, from 0 to 9e9",
        ),
        ([HEADER, "0,0,1e300,2,1,1.6"], "a.csv:2:5: input_tokens: got '1e300'"),
        ([HEADER, "0,0,0,2,1,1.6"], "a.csv:2:5: input_tokens: got '0'"),
        ([HEADER, "0,0,10,2,1"], "a.csv:2:1: 5 cells, but the header has 6"),
        ([HEADER], "a.csv:2:1: no rows after the header"),
    ],
)
def test_a_bad_table_is_one_clear_line(tmp_path: Path, lines: list[str], message: str) -> None:
    path = write(tmp_path / "a.csv", *lines)
    with pytest.raises(UserError) as error:
        read_request_csv(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_file_and_a_missing_one_are_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="empty; expected a table of requests"):
        detect_run_format(write(tmp_path / "e.csv", ""))
    with pytest.raises(UserError, match="cannot be read"):
        detect_run_format(tmp_path / "none.csv")


def test_a_cut_gzip_is_said(tmp_path: Path) -> None:
    whole = gzip.compress(b"arrival_s,input_tokens,output_tokens\n" + b"0,5,2\n" * 5000, mtime=0)
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="is the file complete"):
        read_runs(tmp_path / "cut.csv.gz")
