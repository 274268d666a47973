"""An objective that makes no sense is one exact line."""

from __future__ import annotations

import pytest

from .texts import USERS, edited, lines_for

UNITS = "units: us, ms, s, min, h, d (for example 45s)"


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("p95 <= 2s", "p95 of what? got 'p95 <= 2s'; write ttft.p95, itl.p95, … (ttft, tpot, itl, e2el, queue)"),
        ("ttft <= 2s", "ttft needs a statistic; got 'ttft'; write ttft.p95 (mean, max, p50, p90, p95, p99, p99.9, …)"),
        ("ttft.p95 <= 2", f"a duration needs a unit; got '2'; {UNITS}"),
        ("tftt.p95 <= 2s", "unknown metric 'tftt'; did you mean 'ttft'?"),
        ("ttft.p95 < 2s", "an objective compares with <= or >=; got '<'"),
        ("ttft.p95 >= 2s", "ttft is bounded from above; got '>='; write <= 2s"),
        ("goodput(ttft <= 2s) <= 95%", "goodput is bounded from below; got '<='; write >= 95%"),
        ("ttft.best <= 2s", "unknown statistic 'best' of ttft; statistics: mean, max, p50, p90, p95, p99, p99.9, …"),
        ("ttft.p100 <= 2s", "a percentile lies between 0 and 100; got 'p100'; the greatest value is ttft.max"),
        ("errors <= 0.1", "a share needs a unit; got '0.1'; units: % (for example 0.1%)"),
        ("errors <= 101%", "a share lies between 0% and 100%; got '101%'"),
        ("errors.p95 <= 1%", "errors takes no statistic; got 'errors.p95'"),
        (
            "goodput >= 95%",
            "goodput needs the bounds that a good request meets; "
            "write goodput(ttft <= 2s, tpot <= 100ms) >= 95% (bounds on ttft, tpot, e2el)",
        ),
        (
            "goodput(itl <= 2s) >= 95%",
            "not a bound of goodput; got 'itl <= 2s'; "
            "write goodput(ttft <= 2s, tpot <= 100ms) >= 95% (bounds on ttft, tpot, e2el)",
        ),
        ("ttft.p95(ttft <= 1s) <= 2s", "only goodput takes bounds in parentheses; got 'ttft.p95(ttft <= 1s) <= 2s'"),
        ("output_throughput >= fast", "the bound of output_throughput is a number, in tok/s; got 'fast'"),
        ("quick", "not an objective; got 'quick'; for example 'ttft.p95 <= 2s' or 'errors <= 0.1%'"),
        ("ttft.p95[chta] <= 2s", "no class of this name in the workload; got 'chta'; did you mean 'chat'?"),
        ("ttft.p95[x] <= 2s", "no class of this name in the workload; got 'x'; classes: chat"),
    ],
)
def test_one_line_says_what_is_wrong_with_an_objective(objective: str, message: str) -> None:
    assert lines_for(edited(USERS, "ttft.p95 <= 2s", objective)) == [f"s.yaml:21:5: objectives.0: {message}"]
