"""The trade-offs that the articles on vLLM describe, each told from chance by paired seeds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sim.scenario.load import scenario_from_text
from sim.search import parse_measure
from sim.simulate import simulate
from sim.what_if import Effect, WhatIf, parse_changes

MIXED = """
name: mixed
server: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100, flags: {max_model_len: 16384, max_num_batched_tokens: 512}}
workload:
  kind: open_loop
  arrivals: poisson
  request_rate: 4
  num_requests: 160
  classes:
    - {name: chat, share: 0.5, prompt_tokens: {uniform: {low: 100, high: 500}}, output_tokens: 120}
    - {name: document, share: 0.5, prompt_tokens: {uniform: {low: 5000, high: 9000}}, output_tokens: 60}
run: {seeds: 6}
"""
LONG = """
name: long
server: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100, flags: {max_model_len: 131072}}
workload:
  kind: open_loop
  arrivals: poisson
  request_rate: 1
  num_requests: 60
  classes:
    - {name: chat, share: 0.9, prompt_tokens: 200, output_tokens: 300}
    - {name: book, share: 0.1, prompt_tokens: 128000, output_tokens: 10}
run: {seeds: 6}
"""
LITTLE_KV = """
name: little-kv
server:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100
  flags: {max_model_len: 4096, max_num_seqs: 8, num_gpu_blocks_override: 700}
workload:
  kind: closed_loop
  max_concurrency: 48
  num_requests: 60
  classes:
    - {name: writer, prompt_tokens: {uniform: {low: 100, high: 300}}, output_tokens: {uniform: {low: 600, high: 1000}}}
run: {seeds: 3}
"""
SHARED = """
name: shared
server: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100, flags: {max_model_len: 8192}}
workload:
  kind: open_loop
  arrivals: poisson
  request_rate: 3
  num_requests: 50
  classes:
    - name: chat
      shared_prefix: {tokens: SHARED, scope: all}
      prompt_tokens: {uniform: {low: LOW, high: HIGH}}
      output_tokens: 40
run: {seeds: 3}
"""


def effects(text: str, vary: str, metrics: str) -> Mapping[str, Effect]:
    """Returns what one change does at the workload's own load."""
    base = scenario_from_text(text)
    measures = [parse_measure(name, base) for name in metrics.split(",")]
    (change,) = parse_changes([vary], base)
    (result,) = WhatIf(base, None, [change], measures, simulate).run().changes
    assert result.status in ("simulated", "same"), result.cause
    return result.effects


def rises(effect: Effect) -> bool:
    return effect.low is not None and effect.low > 0


def falls(effect: Effect) -> bool:
    return effect.high is not None and effect.high < 0


def test_a_bigger_budget_lowers_ttft_and_raises_itl_under_mixed_load() -> None:
    found = effects(MIXED, "max_num_batched_tokens=8192", "ttft.mean,ttft.p95,itl.p99")
    assert falls(found["ttft.mean"])
    assert falls(found["ttft.p95"])
    assert rises(found["itl.p99"])


def test_chunked_prefill_protects_itl_from_prompts_of_128_thousand_tokens() -> None:
    found = effects(LONG, "enable_chunked_prefill=false", "itl.max[chat],itl.p99[chat]")
    assert rises(found["itl.max[chat]"])
    before, after = found["itl.max[chat]"].before, found["itl.max[chat]"].after
    assert before is not None
    assert after is not None
    assert after > 4 * before  # a chunk takes part of a second; the whole prompt at once stops everybody for seconds


def test_more_seats_without_kv_cache_give_preemptions() -> None:
    found = effects(LITTLE_KV, "max_num_seqs=48", "preemptions,queue.mean")
    assert found["preemptions"].before == 0
    assert rises(found["preemptions"])
    assert falls(found["queue.mean"])


@pytest.mark.parametrize("text", [MIXED, SHARED.replace("SHARED", "500").replace("LOW", "100").replace("HIGH", "900")])
def test_a_longer_max_model_len_alone_changes_nothing(text: str) -> None:
    found = effects(text, "max_model_len=32768", "ttft.p95,ttft.max,itl.p99,e2el.mean,throughput,preemptions")
    assert len(found) == 6
    assert all(effect.is_none for effect in found.values())


def test_the_prefix_hit_rate_moves_ttft_and_leaves_itl_alone_where_little_is_read() -> None:
    shares = {"much": ("3000", "100", "300"), "none": ("1", "3099", "3299")}  # as many tokens in both
    without = {}
    for name, (shared, low, high) in shares.items():
        text = SHARED.replace("SHARED", shared).replace("LOW", low).replace("HIGH", high)
        without[name] = effects(text, "enable_prefix_caching=false", "ttft.mean,ttft.p95")
    assert rises(without["much"]["ttft.mean"])
    assert rises(without["much"]["ttft.p95"])
    assert without["none"]["ttft.mean"].is_none
    before = {name: found["ttft.mean"].before for name, found in without.items()}
    assert before["much"] is not None
    assert before["none"] is not None
    assert before["much"] < before["none"] / 2
