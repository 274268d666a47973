"""Metrics over time agree with the records, keep to the formats, and play at the speed that was asked for."""

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

from reports.exposition import Exposition
from reports.metrics_server import CONTENT_TYPE, Player, metrics_server
from reports.snapshots import Metrics, parse_metrics
from reports.vllm_metrics import one_two_five, vllm_metrics
from sim.records import Outcome, RunRecord
from tests.reports import sample

# What the panels of vLLM's own Grafana dashboards ask for (examples/online_serving, older and newer).
DASHBOARD = (
    "vllm:e2e_request_latency_seconds_bucket", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
    "vllm:time_per_output_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket",
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_swapped",
    "vllm:time_to_first_token_seconds_bucket", "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc",
    "vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket", "vllm:request_success_total",
    "vllm:request_queue_time_seconds_sum", "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum", "vllm:request_max_num_generation_tokens_sum",
    "vllm:num_preemptions_total", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total",
    "vllm:iteration_tokens_total_bucket", "vllm:cache_config_info",
)  # fmt: skip


@pytest.fixture(scope="module")
def record() -> RunRecord:
    source = sample.source()
    detail = source.detail(source.shown_load)
    assert detail is not None
    return detail.run


@pytest.fixture(scope="module")
def exposition(record: RunRecord) -> Exposition:
    return vllm_metrics(record, sample.source().document)


@pytest.fixture(scope="module")
def end(exposition: Exposition) -> Metrics:
    return parse_metrics(exposition.text(exposition.end_ns))


def test_totals_are_those_of_the_records(end: Metrics, record: RunRecord) -> None:
    answered = [each for each in record.requests if each.first_token_ns >= 0]
    finished = [each for each in record.requests if each.outcome is Outcome.FINISHED]
    assert end.values["vllm:prompt_tokens"] == sum(each.num_prompt_tokens for each in answered)
    assert end.values["vllm:generation_tokens"] == sum(each.num_output_tokens for each in record.requests)
    assert end.values["vllm:num_preemptions"] == sum(each.num_preemptions for each in record.requests)
    assert end.values["vllm:prefix_cache_hits"] == sum(record.steps.prefix_hits)
    assert end.values["vllm:request_success"] == len(record.requests)  # timeouts count as abort
    assert end.count("vllm:e2e_request_latency_seconds") == len(finished)
    assert end.count("vllm:time_to_first_token_seconds") == len(answered)
    assert end.count("vllm:inter_token_latency_seconds") == sum(record.itl.count)
    assert end.count("vllm:iteration_tokens_total") == len(record.steps.end_ns)


def test_a_bucket_counts_what_is_at_most_its_bound(end: Metrics, record: RunRecord) -> None:
    ttft = (
        np.array([each.first_token_ns - each.arrival_ns for each in record.requests if each.first_token_ns >= 0]) / 1e9
    )
    for bound, count in end.buckets["vllm:time_to_first_token_seconds"]:
        assert count == (ttft <= bound).sum()
    assert end.mean("vllm:time_to_first_token_seconds") == pytest.approx(ttft.mean())


def test_parts_of_a_request_add_up(end: Metrics) -> None:
    parts = sum(end.sums[f"vllm:request_{part}_time_seconds"] for part in ("queue", "prefill", "decode"))
    assert parts == pytest.approx(end.sums["vllm:e2e_request_latency_seconds"])
    inference = end.sums["vllm:request_inference_time_seconds"]
    assert inference == pytest.approx(parts - end.sums["vllm:request_queue_time_seconds"])


def test_nothing_ever_falls_but_the_levels(exposition: Exposition) -> None:
    before: Metrics | None = None
    for at_ns in range(0, exposition.end_ns, exposition.end_ns // 7):
        now = parse_metrics(exposition.text(at_ns))
        if before is not None:
            for name, buckets in now.buckets.items():
                counts = [count for _, count in buckets]
                assert counts == sorted(counts)
                assert all(new >= old for (_, new), (_, old) in zip(buckets, before.buckets[name], strict=True))
            assert now.values["vllm:generation_tokens"] >= before.values["vllm:generation_tokens"]
        before = now


def test_levels_are_those_of_the_step_that_executes(exposition: Exposition, record: RunRecord) -> None:
    steps = record.steps
    index = max(range(len(steps.end_ns)), key=lambda n: steps.num_running[n])
    now = parse_metrics(
        exposition.text((max(steps.start_ns[index], steps.end_ns[index - 1]) + steps.end_ns[index]) // 2)
    )
    assert now.values["vllm:num_requests_running"] == steps.num_running[index]
    assert now.values["vllm:num_requests_waiting"] == steps.num_waiting[index]
    assert parse_metrics(exposition.text(record.end_ns)).values["vllm:num_requests_running"] == 0


def test_the_dashboard_finds_every_metric_it_asks_for(exposition: Exposition) -> None:
    text = exposition.text(exposition.end_ns)
    names = set(re.findall(r"^([\w:]+)\{", text, re.MULTILINE))
    assert set(DASHBOARD) <= names
    assert 'model_name="Qwen/Qwen2.5-7B-Instruct"' in text
    assert 'finished_reason="length"' in text


def test_every_line_is_a_comment_or_a_sample(exposition: Exposition) -> None:
    for line in exposition.text(10**9).splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) [\w:]+ .+|[\w:]+\{[^{}]*\} -?[\d.e+-]+", line), line


def test_an_openmetrics_file_is_in_order_and_complete(exposition: Exposition) -> None:
    text = "".join(exposition.openmetrics(interval_s=15, start_unix_s=1000.0))
    assert text.endswith("# EOF\n")
    stamps: dict[str, list[float]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, stamp = line.rsplit(" ", 2)
            stamps.setdefault(name, []).append(float(stamp))
    for times in stamps.values():
        assert times == sorted(set(times))
        assert times[0] == 1000.0
        assert times[-1] == pytest.approx(1000 + exposition.end_ns / 1e9, abs=1e-3)
    assert re.search(r"^# TYPE vllm:prompt_tokens counter$", text, re.MULTILINE)  # the family has no _total
    groups = [re.sub(r',?le="[^"]*"', "", line.split(" ")[0]).replace("_bucket", "") for line in text.splitlines()
              if line.startswith("vllm:time_to_first_token_seconds_bucket")]  # fmt: skip
    assert len(set(groups)) == 1


def test_the_last_sample_is_the_scrape_at_the_end(exposition: Exposition) -> None:
    last = {}
    for line in "".join(exposition.openmetrics()).splitlines():
        if not line.startswith("#"):
            sample_, value, _ = line.rsplit(" ", 2)
            last[sample_] = value
    scraped = dict(line.rsplit(" ", 1) for line in exposition.text(exposition.end_ns).splitlines() if line[0] != "#")
    assert last == scraped


def test_buckets_of_tokens_are_one_two_five() -> None:
    assert one_two_five(100) == (1, 2, 5, 10, 20, 50, 100)
    assert one_two_five(8192)[-1] == 5000


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_run_starts_with_the_first_look_and_ends_with_its_end(exposition: Exposition) -> None:
    clock = Clock()
    player = Player(exposition, 10.0, clock)
    clock.now = 70.0
    assert player.now_ns() == 0
    clock.now = 71.5
    assert player.now_ns() == 15 * 10**9
    clock.now = 1e6
    assert player.now_ns() == exposition.end_ns


@pytest.fixture
def served(exposition: Exposition) -> Iterator[tuple[str, Clock]]:
    clock = Clock()
    with metrics_server(exposition, port=0, speed=60.0, clock=clock) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", clock
        server.shutdown()
        thread.join()


def test_a_scrape_returns_the_moment(served: tuple[str, Clock], exposition: Exposition) -> None:
    address, clock = served
    for seconds in (0.0, 1.0, 1e6):
        clock.now = 50.0 + seconds
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert answer.read().decode() == exposition.text(min(round(seconds * 60e9), exposition.end_ns))


def test_nothing_else_is_served(served: tuple[str, Clock]) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{served[0]}/")
    assert caught.value.code == 404
    caught.value.close()


def test_labels_are_quoted(record: RunRecord) -> None:
    document = json.loads(json.dumps(sample.source().document))
    document["server"]["model"] = 'a"b\\c'
    assert 'model_name="a\\"b\\\\c"' in vllm_metrics(record, document).text(0)
