"""What a /metrics page counts, summed over engines; other lines are passed over."""

from __future__ import annotations

from calibrate.metrics_scrape import parse_metrics

PAGE = """\
# HELP vllm:num_preemptions_total Cumulative number of preemptions.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="tiny"} 3.0
vllm:num_preemptions_total{engine="1",model_name="tiny"} 4.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.7e+09
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
vllm:num_requests_running{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:prefix_cache_queries_total{engine="0"} 100.0
vllm:prefix_cache_hits_total{engine="0"} 25.0
vllm:request_success_total{engine="0",finished_reason="length"} 6.0
vllm:request_success_total{engine="0",finished_reason="stop"} 1.0
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0",num_gpu_blocks="2048"} 1.0
process_open_fds 32.0
nonsense
"""


def test_counters_are_summed_over_engines_and_reasons() -> None:
    metrics = parse_metrics(PAGE)
    assert metrics.counters == {
        "num_preemptions": 7.0,
        "prefix_queries": 100.0,
        "prefix_hits": 25.0,
        "num_finished": 7.0,
    }
    assert (metrics.num_running, metrics.num_waiting, metrics.is_idle) == (1, 2, False)
    assert (metrics.num_gpu_blocks, metrics.block_size, metrics.enable_prefix_caching) == (2048, 32, True)
    assert metrics.num_engines == 2


def test_growth_is_of_the_counters_that_both_readings_have() -> None:
    before = parse_metrics(PAGE)
    after = parse_metrics(PAGE.replace("} 4.0", "} 9.0") + "vllm:prompt_tokens_total 5\n")
    assert after.since(before) == {
        "num_preemptions": 5.0,
        "prefix_queries": 0.0,
        "prefix_hits": 0.0,
        "num_finished": 0.0,
    }


def test_the_names_of_older_releases_are_known() -> None:
    metrics = parse_metrics("vllm:gpu_prefix_cache_queries_total 8\nvllm:gpu_prefix_cache_hits_total 2\n")
    assert metrics.counters == {"prefix_queries": 8.0, "prefix_hits": 2.0}


def test_a_page_of_another_server_has_no_counters() -> None:
    metrics = parse_metrics("<html>not found</html>")
    assert metrics.counters == {}
    assert metrics.is_idle is None
