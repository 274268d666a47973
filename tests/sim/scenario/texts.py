"""Small scenarios as text, and what loading them says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from sim.scenario.load import scenario_from_text
from sim.scenario.model import Scenario
from sim.scenario.problems import ScenarioError

USERS = """\
name: team
server:
  model: Qwen/Qwen2.5-7B-Instruct
  gpu: rtx-4090
  flags:
    max_model_len: 32768
    max_num_seqs: 64
workload:
  kind: users
  classes:
    - name: chat
      share: 0.9
      shared_prefix: {tokens: 800, scope: all}
      first_prompt_tokens: {lognormal: {median: 250, p95: 2000}}
      next_prompt_tokens: 60
      output_tokens: 220
      turns: {geometric: {mean: 8, max: 40}}
      think_time: {lognormal: {median: 45s, p95: 4min}}
  client_timeout: 120s
objectives:
  - ttft.p95 <= 2s
  - errors <= 0.1%
search:
  vary: users
  from: 1
  to: 400
run:
  duration: 30min
  warm_up: 5min
"""

OPEN = """\
name: public
server: {model: Qwen/Qwen3-14B, gpu: h100}
workload:
  kind: open_loop
  request_rate: 5
  arrivals: {gamma: {burstiness: 0.25}}
  classes:
    - {name: all, prompt_tokens: 400, output_tokens: 180}
run: {duration: 10min}
"""

CLOSED = """\
name: bench
server: {model: Qwen/Qwen3-14B, gpu: h100}
workload:
  kind: closed_loop
  num_requests: 100
  max_concurrency: 8
  classes:
    - {name: random, prompt_tokens: {uniform_ratio: {mean: 1024, ratio: 0.5}}, output_tokens: 128}
"""

TRACE = """\
name: replay
server: {model: Qwen/Qwen3-14B, gpu: h100}
workload:
  kind: trace
  path: requests.jsonl
"""


def load(text: str, *overrides: str) -> Scenario:
    return scenario_from_text(text, "s.yaml", overrides)


def edited(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the text"
    return text.replace(old, new)


def lines_for(text: str, overrides: Iterable[str] = ()) -> list[str]:
    """Returns the error lines of a text; none when it loads."""
    try:
        scenario_from_text(text, "s.yaml", overrides)
    except ScenarioError as error:
        return str(error).splitlines()
    return []


def case(name: str, old: str, new: str, line: str, text: str = USERS) -> Any:
    """Returns the parameters (text, line) of a scenario with one thing wrong and the line that says so."""
    return pytest.param(edited(text, old, new), line, id=name)
