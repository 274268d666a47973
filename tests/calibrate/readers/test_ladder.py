"""A ladder of closed loops: totals per concurrency, requests drawn about the mean lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.readers.ladder import is_ladder, read_ladder
from sim.errors import UserError

HEADER = "run,max_concurrency,num_prompts,input_len,output_len,ttft_mean_ms,itl_median_ms,output_tok_throughput"


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "ladder.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rungs_hold_what_is_stated(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, "c1,1,10,7200.5,900,340,4.3,", "c4,4,40,7200,900,,6.2,519")
    assert is_ladder(path)
    first, second = read_ladder(path)
    assert (first.name, first.max_concurrency, first.num_requests) == ("c1", 1, 10)
    assert first.measured == {("ttft_ms", "mean"): 340.0, ("itl_ms", "p50"): 4.3}
    assert second.measured == {("itl_ms", "p50"): 6.2, ("output_throughput_per_s", None): 519.0}


def test_drawn_requests_have_the_stated_mean_and_spread(tmp_path: Path) -> None:
    (rung,) = read_ladder(write(tmp_path, HEADER, "c4,4,400,7200,900,1,1,1"))
    requests = rung.requests(spread=1 / 9)
    assert requests.prompt_tokens.mean() == pytest.approx(7200, abs=0.5)
    assert requests.output_tokens.mean() == pytest.approx(900, abs=0.5)
    assert 6380 < requests.prompt_tokens.min() < 6500
    assert 7900 < requests.prompt_tokens.max() < 8020
    assert (rung.requests(1 / 9).prompt_tokens == requests.prompt_tokens).all()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["max_concurrency,num_prompts,input_len,output_len", "1,1,1,1"], "no latencies; expected columns such as"),
        ([HEADER, "c1,0,10,7200,900,1,1,1"], "ladder.csv:2:4: max_concurrency: got '0'"),
        ([HEADER, "c1,1,10,7200,900,-1,1,1"], "ttft_mean_ms: got '-1'"),
    ],
)
def test_a_bad_ladder_is_one_clear_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        read_ladder(write(tmp_path, *lines))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
