"""Reports of Ollama and of static batches: their own limits (T11), their own symptoms, and no talk of vLLM's."""

from functools import cache

import pytest

from reports.content import Finding, Findings, Report
from reports.html import render_html
from reports.model import build_report
from reports.source import RunKey, Source
from reports.terminal import render
from reports.what_if import estimate_steps, simulate_what_if
from reports.words import LANGUAGES, Words
from sim.capacity import find_capacity
from sim.records import RunRecord
from sim.scenario.load import scenario_from_text
from sim.simulate import simulate

_WORLD = """
name: other
server:
  kind: ollama
  model: Qwen/Qwen2.5-7B-Instruct
  gpu: rtx-4090
  flags: {max_model_len: 8192}
  ollama: {model: "qwen2.5:7b", num_ctx: 8192, num_parallel: 1}
  static: {batch_size: 8, max_wait: 100ms}
workload:
  kind: open_loop
  request_rate: 0.2
  classes:
    - {name: first, share: 1, prompt_tokens: 300, output_tokens: {lognormal: {median: 60, p95: 300, max: 600}}}
    - {name: second, share: 0, prompt_tokens: 300, output_tokens: 60}
objectives: ['ttft.p95 <= 2s']
run: {duration: 2min, warm_up: 10s, seeds: 1}
"""
BUSY = "workload.request_rate=2"
TWO_MODELS = (
    'server.ollama.models=[{model: "qwen2.5:7b"}, {model: "qwen2.5-coder:14b", classes: [second]}]',
    "server.gpu=rtx-3060",
    "workload.classes.1.share=1",
)


@cache
def source(changes: tuple[str, ...] = ()) -> Source:
    scenario = scenario_from_text(_WORLD, overrides=changes)
    runs: dict[RunKey, RunRecord] = {}

    def keep(run: RunRecord, load: float | None, seed: int) -> None:
        runs[load, seed] = run

    return Source.of_result(scenario, find_capacity(scenario, simulate, store=keep), runs)


def report(*changes: str, lang: str = "en") -> Report:
    return build_report([source(changes)], Words.of(lang))


def findings(*changes: str) -> dict[str, Finding]:
    blocks = [block for section in report(*changes).sections for block in section.blocks]
    return {each.key: each for block in blocks if isinstance(block, Findings) for each in block.items}


@pytest.mark.parametrize(
    ("key", "changes", "near"),
    [
        ("ollama_slots", (BUSY,), ()),
        ("ollama_loads", TWO_MODELS, (TWO_MODELS[0], TWO_MODELS[2], "server.gpu=h100", "server.ollama.keep_alive=-1")),
        ("ollama_busy", (BUSY, *TWO_MODELS, "server.ollama.max_queue=1"), (BUSY,)),
        (
            "static_waste",
            ("server.kind=static", BUSY),
            ("server.kind=static", BUSY, "workload.classes.0.output_tokens=60"),
        ),
    ],
)
def test_a_symptom_is_found_where_it_is_and_not_where_it_nearly_is(
    key: str, changes: tuple[str, ...], near: tuple[str, ...]
) -> None:
    assert key in findings(*changes)
    assert key not in findings(*near)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("changes", [(), (BUSY,), TWO_MODELS, ("server.kind=static", BUSY)])
def test_a_report_is_whole_in_both_languages(changes: tuple[str, ...], lang: str) -> None:
    made = report(*changes, lang=lang)
    page = render_html(made, Words.of(lang))
    assert "None" not in page
    assert "{" not in "".join(figure.alt for figure in made.figures())


def test_ollamas_own_limits_are_those_of_the_document() -> None:
    made = report(BUSY)
    own = [table for table in made.tables() if table.code == "T11"]
    assert [table.key for table in own] == ["ollama_models", "ollama_limits"]
    point = source((BUSY,)).document["points"][0]["ollama"]
    values = {row[0]: row[1].value for row in own[1].rows}  # type: ignore[union-attr]
    assert values["effective parallel slots"] == point["effective_parallel"] == 1
    assert values["waiting for a slot, share of the answers"] == point["wait_for_slot"]["share"]


def test_static_batches_say_what_they_waste() -> None:
    own = [table for table in report("server.kind=static", BUSY).tables() if table.code == "T11"]
    assert [table.key for table in own] == ["static_limits"]


def num_steps(source: Source) -> int:
    detail = source.detail(source.shown_load)
    assert detail is not None
    return len(detail.run.steps.end_ns)


def test_ollamas_settings_are_proposed_and_not_vllms_flags() -> None:
    ollama = source((BUSY,))
    found = simulate_what_if(ollama, simulate)
    keys = {key for change in found["changes"] for key in change["changes"]}
    assert "server.ollama.num_parallel" in keys
    assert not any(key.startswith("server.flags") for key in keys)
    met = {change["key"]: change["met"] for change in found["changes"]}
    assert (met["use_vllm"], met["keep_for_ever"]) == (True, False)  # a slot is what they wait for, not a load
    assert estimate_steps(ollama) == 5 * len(ollama.document["seeds"]) * num_steps(ollama)


def test_vllm_has_no_such_table() -> None:
    made = report("server.kind=vllm")
    assert not any(table.code == "T11" for table in made.tables())


def test_two_gpus_of_ollama_are_no_tensor_parallelism() -> None:
    two = source(("server.tensor_parallel_size=2",))
    assert "qwen2.5:7b on 2 x rtx-4090\n" in render(two.document)
    settings = next(table for table in report("server.tensor_parallel_size=2").tables() if table.code == "T2")
    values = {row[0]: getattr(row[1], "value", row[1]) for row in settings.rows}
    assert values["GPUs"] == 2
    assert "tensor_parallel_size" not in values
