"""A real server's snapshots are read as PromQL would read them, and set beside the simulated run."""

from pathlib import Path

import pytest

from reports.content import Chart
from reports.model import Beside, build_report
from reports.snapshots import Metrics, parse_metrics, read_snapshots
from reports.vllm_metrics import vllm_metrics
from reports.words import Words
from sim.errors import UserError
from tests.reports import sample

FIRST = """
# HELP vllm:time_to_first_token_seconds Histogram
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="m"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 10.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.5
vllm:time_to_first_token_seconds_created{engine="0",model_name="m"} 1.7e9
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
process_cpu_seconds_total 17.2
"""
LAST = FIRST.replace('le="0.1",model_name="m"} 10.0', 'le="0.1",model_name="m"} 30.0').replace(
    'le="0.5",model_name="m"} 10.0', 'le="0.5",model_name="m"} 110.0').replace(
    'le="+Inf",model_name="m"} 10.0', 'le="+Inf",model_name="m"} 110.0').replace(
    'seconds_sum{engine="0",model_name="m"} 0.5', 'seconds_sum{engine="0",model_name="m"} 30.5').replace(
    "1000.0", "5000.0")  # fmt: skip


def written(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"{number}.prom" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def test_what_happened_lies_between_the_first_and_the_last(tmp_path: Path) -> None:
    found = read_snapshots(written(tmp_path, FIRST, FIRST, LAST))
    assert found.values["vllm:prompt_tokens"] == 4000
    assert found.count("vllm:time_to_first_token_seconds") == 100
    assert found.mean("vllm:time_to_first_token_seconds") == pytest.approx(0.3)


def test_one_snapshot_counts_in_full(tmp_path: Path) -> None:
    assert read_snapshots(written(tmp_path, LAST)).values["vllm:prompt_tokens"] == 5000


def test_quantiles_are_interpolated_as_promql_does(tmp_path: Path) -> None:
    found = read_snapshots(written(tmp_path, FIRST, LAST))
    ttft = "vllm:time_to_first_token_seconds"
    assert found.quantile(ttft, 0.1) == pytest.approx(0.05)  # 10 of the 20 in the first bucket
    assert found.quantile(ttft, 0.6) == pytest.approx(0.1 + 0.4 * 40 / 80)
    assert found.quantile(ttft, 1.0) == pytest.approx(0.5)
    assert found.quantile("vllm:unknown", 0.5) is None


def test_beyond_the_last_bound_a_quantile_is_that_bound() -> None:
    metrics = Metrics({}, {"h": ((1.0, 5.0), (float("inf"), 10.0))}, {"h": 20.0})
    assert metrics.quantile("h", 0.99) == 1.0


def test_engines_are_summed() -> None:
    two = FIRST + FIRST.replace('engine="0"', 'engine="1"')
    assert parse_metrics(two).values["vllm:prompt_tokens"] == 2000
    assert parse_metrics(two).count("vllm:time_to_first_token_seconds") == 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html>", r"0\.prom:1:1: not a line of Prometheus' text format: '<html>'"),
        ("up 1\n", "no vllm: metric in it"),
        ("vllm:x abc\n", "not a line of Prometheus' text format"),
    ],
)
def test_what_is_no_snapshot_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_snapshots(written(tmp_path, text))


def test_snapshots_out_of_order_are_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a counter is lower"):
        read_snapshots(written(tmp_path, LAST, FIRST))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.prom: cannot be read"):
        read_snapshots([tmp_path / "none.prom"])


def test_a_server_that_did_exactly_what_was_simulated_shows_no_error() -> None:
    source = sample.source()
    detail = source.detail(source.shown_load)
    assert detail is not None
    measured = parse_metrics(vllm_metrics(detail.run, source.document).text(detail.run.end_ns))
    report = build_report([source], Words.of("en"), None, Beside(measured))
    table = next(table for table in report.tables() if table.key == "measured")
    assert len(table.rows) > 15
    assert {row[3] for row in table.rows} <= {"±0\u00a0%", None}
    charts = [figure for figure in report.figures() if isinstance(figure, Chart) and figure.code == "F8"]
    assert len(charts) == 3
    assert all(chart.series[0].y == chart.series[1].y for chart in charts)


def test_an_older_name_is_understood() -> None:
    source = sample.source()
    detail = source.detail(source.shown_load)
    assert detail is not None
    text = vllm_metrics(detail.run, source.document).text(detail.run.end_ns)
    older = "\n".join(line for line in text.splitlines() if "inter_token_latency" not in line)
    report = build_report([source], Words.of("en"), None, Beside(parse_metrics(older)))
    table = next(table for table in report.tables() if table.key == "measured")
    row = next(row for row in table.rows if row[0] == "ITL p95 (ms)")
    assert row[1] == row[2]
