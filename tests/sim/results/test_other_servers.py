"""T11: what an Ollama server and static batches did in the window, in numbers, on disk and on a terminal."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pyarrow import parquet

from reports.document import Document, build_document
from reports.terminal import render
from sim.capacity import find_capacity
from sim.deployment import plan_server
from sim.results.metrics import summarize
from sim.results.other_servers import OllamaUse, ollama_use
from sim.results.storage import write_run
from sim.results.window import Window
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.cases.build import S
from tests.sim.engine.ollama.build import ask, model, placed, serve

SCHEMA = json.loads(files("sim.results").joinpath("run.schema.json").read_text())


def use_of(run: Any, start_s: float = 0, end_s: float | None = None) -> OllamaUse:
    end_ns = run.end_ns if end_s is None else round(end_s * S)
    use = ollama_use(run, Window(round(start_s * S), end_ns, finite=True))
    assert use is not None
    return use


def test_waits_for_a_load_and_for_a_slot_are_told_apart() -> None:
    """Two at a cold model: both wait 2 s for the load, one of them 0.1 s more for the only slot."""
    use = use_of(serve([ask(0), ask(1)], warm=False))
    assert (use.num_loads, use.load_s, use.num_evictions) == (1, 2.0, 0)
    assert (use.wait_for_load.mean, use.wait_for_load.total_s, use.wait_for_load.share) == (2000, 4.0, 1.0)
    assert (use.wait_for_slot.mean, use.wait_for_slot.total_s, use.wait_for_slot.share) == (50, 0.1, 0.5)
    assert use.num_parallel == 1


def test_only_what_is_in_the_window_counts() -> None:
    run = serve([ask(i, at_ms=400_000 * i) for i in range(3)], warm=False)
    assert (use_of(run).num_loads, use_of(run).num_expired) == (3, 2)
    later = use_of(run, start_s=500)
    assert (later.num_loads, later.num_expired) == (1, 1)


def test_503s_and_when_they_came() -> None:
    use = use_of(serve([ask(i, at_ms=10 * i) for i in range(6)], warm=False, max_queue=2, queue_rule="faq"))
    assert use.num_rejected == 3
    assert use.rejected_s == (0.03, 0.05)


def test_evictions() -> None:
    models = [model(name, placed(gib=20)) for name in "ab"]
    use = use_of(serve([ask(i, i % 2, at_ms=10_000 * i) for i in range(5)], models))
    assert (use.num_loads, use.num_evictions) == (4, 4)


def scenario(kind: str, **workload: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "toy",
            "server": {
                "kind": kind, "model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "rtx-4090",
                "flags": {"max_model_len": 4096},
                "ollama": {"num_ctx": 2048, "num_parallel": 2, "warm": False},
                "static": {"batch_size": 4},
            },
            "workload": {
                "kind": "open_loop", "arrivals": "all_at_once", "num_requests": 30,
                "classes": [{
                    "name": "only", "prompt_tokens": {"uniform": {"low": 50, "high": 3000}}, "output_tokens": 40,
                }],
                **workload,
            },
            "objectives": ["ttft.p95 <= 1s"],
            "run": {"seeds": 1},
        }
    )  # fmt: skip


def document(kind: str) -> Document:
    case = scenario(kind)
    built = build_document(case, plan_server(case), find_capacity(case, simulate))
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(built, allow_nan=False)))
    return built


def test_ollamas_limits_are_in_the_document_and_on_the_terminal() -> None:
    built = document("ollama")
    use = built["points"][0]["ollama"]
    assert use["models"][0]["num_parallel"] == use["effective_parallel"] == 2
    assert use["context_gib"] == pytest.approx(2 * 2048 * 57_344 / 2**30, rel=1e-5)
    assert (use["loads"], use["evictions"], use["rejected_503"]) == (1, 0, 0)
    assert use["truncated_prompts"] > 0
    assert built["binding_resource"] == "model_loads" or built["binding_resource"] == "num_parallel"
    text = render(built)
    for line in (
        "Ollama's own limits (means over the seeds)",
        "2 slots x 2,048 tokens, 0.219 GiB of context; 29 of 29 layers on the GPU, num_batch 512",
        "1 load (",
        "waiting for a slot: mean ",
        "503 (server busy): 0",
        "prompts cut to the context",
        "OLLAMA_NUM_PARALLEL 2, OLLAMA_CONTEXT_LENGTH 2048, ",
        "Memory of all GPUs, with every model loaded",
        "server: ollama 0.33, Qwen/Qwen2.5-7B-Instruct on rtx-4090",
        "Ollama cut out their middle without an error",
    ):
        assert line in text


def test_what_static_batches_waste_is_there_too() -> None:
    built = document("static")
    use = built["points"][0]["static"]
    assert use["num_batches"] == 8
    assert use["reservation"] == "max_length"
    assert 0 < use["padding_share"] < 1
    assert use["idle_seat_share"] == 0  # all answers are of one length
    assert built["binding_resource"] == "static_batches"
    assert "Static batches (means over the seeds)" in render(built)


def test_vllm_has_neither() -> None:
    point = document("vllm")["points"][0]
    assert "ollama" not in point
    assert "static" not in point


def test_the_responses_are_kept(tmp_path: Path) -> None:
    run = simulate(scenario("ollama"), seed=0)
    write_run(tmp_path, run, {})
    table = parquet.read_table(tmp_path / "responses.parquet")
    assert table.num_rows == 30
    assert {"total_duration", "load_duration", "prompt_eval_count", "eval_duration", "model"} <= set(table.column_names)
    assert not (tmp_path / "static.parquet").exists()
    write_run(tmp_path / "vllm", simulate(scenario("vllm"), seed=0), {})
    assert not (tmp_path / "vllm" / "responses.parquet").exists()


def test_the_metrics_of_a_run_hold_them() -> None:
    case = scenario("ollama")
    metrics = summarize(simulate(case, seed=0), case)
    assert metrics.ollama is not None
    assert metrics.static is None
    assert metrics.max_num_seqs == 2
