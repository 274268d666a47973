"""`headcount size` prints the budget; its exit says whether the server would start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sim.cli.size import size
from sim.errors import UserError
from sim.hardware import GPUS
from sim.models import model_names

APP = typer.Typer()
APP.command()(size)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(APP, arguments)
    if isinstance(result.exception, UserError):
        raise result.exception
    return result.exit_code, result.stdout


def as_json(*arguments: str) -> dict[str, Any]:
    code, text = run(*arguments, "--json")
    budget: dict[str, Any] = json.loads(text)
    assert code == (0 if budget["starts"] else 1)
    return budget


QWEN = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "rtx-4090")


def test_a_table_with_every_part_and_whether_it_is_an_estimate() -> None:
    code, text = run(*QWEN, "--weights-gib", "14.25")
    assert code == 0
    assert text.splitlines()[0] == "Qwen/Qwen2.5-7B-Instruct on rtx-4090, vLLM 0.32"
    parts = {line[:20].strip(): line.split()[-1] for line in text.splitlines() if " GiB" in line}
    assert parts == {
        "GPU memory": "GiB",
        "x utilization 0.92": "default",
        "- weights": "given",
        "- activation peak": "estimate",
        "- non-torch": "estimate",
        "- CUDA graphs": "estimate",
        "KV cache": "estimate",
    }
    assert "KV bytes per token      57,344" in text
    assert "max_num_seqs            256 default" in text
    assert "Maximum concurrency for 32,768 tokens per request:" in text
    assert text.splitlines()[-1] == "starts"


def test_the_parts_of_the_object_add_up() -> None:
    budget = as_json(*QWEN)
    used = sum(budget[part] for part in ("weights_gib", "activation_gib", "non_torch_gib", "graphs_gib"))
    assert budget["total_gib"] * budget["utilization"] - used == pytest.approx(budget["kv_cache_gib"], abs=0.001)
    assert budget["num_gpu_blocks"] * budget["block_size"] == budget["kv_tokens"]
    assert budget["estimated"] == ["weights_gib", "activation_gib", "non_torch_gib", "graphs_gib", "kv_cache_gib"]
    assert budget["flags"]["gpu_memory_utilization"] == 0.92
    assert "gpu_memory_utilization" in budget["defaulted_flags"]
    assert budget["kv_groups"] == [
        {"kind": "full", "window": None, "num_layers": 28, "block_size": 16, "max_blocks": None}
    ]


def test_a_refusal_is_exit_1_and_in_the_words_of_vllm() -> None:
    code, text = run("--model", "Llama-3.1-8B-Instruct", "--gpu", "rtx-4090")
    assert code == 1
    assert "does not start: To serve at least one request with the model's max seq len (131072)" in text
    assert as_json("--model", "Llama-3.1-8B-Instruct", "--gpu", "rtx-4090", "--max-model-len", "-1")["starts"]


def test_every_memory_flag_is_taken() -> None:
    budget = as_json(
        *QWEN, "--version", "0.19.1", "--tp", "2", "--pp", "2", "--max-model-len", "8192", "--max-num-seqs", "64",
        "--max-num-batched-tokens", "4096", "--gpu-memory-utilization", "0.8", "--block-size", "32",
        "--kv-cache-dtype", "fp8", "--dtype", "float16", "--quantization", "fp8", "--enforce-eager",
        "--no-enable-prefix-caching", "--no-async-scheduling",
    )  # fmt: skip
    flags = budget["flags"]
    assert budget["vllm_version"] == "0.19.1"
    assert (budget["tensor_parallel_size"], budget["pipeline_parallel_size"]) == (2, 2)
    assert (flags["max_model_len"], flags["max_num_seqs"], flags["max_num_batched_tokens"]) == (8192, 64, 4096)
    assert (flags["gpu_memory_utilization"], flags["block_size"], flags["kv_cache_dtype"]) == (0.8, 32, "fp8")
    assert (flags["dtype"], flags["quantization"], flags["enforce_eager"]) == ("float16", "fp8", True)
    assert (flags["enable_prefix_caching"], flags["async_scheduling"]) == (False, False)
    assert budget["kv_bytes_per_token"] == 57_344 // 2 // 2 // 2


def test_measured_values_replace_estimates() -> None:
    """Case: 15.99 GiB x 0.9 - 5.29 - 1.04 - 0.06 = 8.00 GiB, 149,712 tokens, 4.57x."""
    measured = ("--weights-gib", "5.29", "--activation-gib", "1.04", "--non-torch-gib", "0.06", "--graphs-gib", "0")
    budget = as_json(
        "--model", "Qwen2.5-7B-Instruct-AWQ", "--gpu", "RTX 4080", "--version", "0.26.0", "--gpu-memory-utilization",
        "0.9", *measured,
    )  # fmt: skip
    assert budget["estimated"] == []
    assert budget["kv_cache_gib"] == pytest.approx(8.0, abs=0.005)
    assert budget["kv_tokens"] == pytest.approx(149_712, rel=0.005)
    assert budget["max_concurrency"] == pytest.approx(4.57, abs=0.01)


def test_the_gpus_memory_and_the_pool_can_be_given() -> None:
    assert as_json(*QWEN, "--gpu-memory-gib", "23.65")["total_gib"] == 23.65
    pool = as_json(*QWEN, "--kv-cache-gib", "5.0")
    assert pool["num_gpu_blocks"] == 5 * 2**30 // (57_344 * 16)
    code, text = run(*QWEN, "--kv-cache-gib", "5.0")
    assert code == 0
    assert "KV cache                   5.00 GiB  given" in text
    assert "- weights" not in text  # nothing was deducted


def test_a_pool_without_a_model() -> None:
    flat = ("--kv-bytes-per-token", "163840", "--block-size", "128", "--max-model-len", "16000", "--version", "0.11.0")
    budget = as_json(*flat, "--kv-cache-gib", "28.2")
    assert budget["kv_tokens"] == pytest.approx(184_832, rel=0.005)
    assert budget["max_concurrency"] == pytest.approx(11.55, abs=0.01)
    parts = ("--gpu", "h100", "--gpu-memory-utilization", "0.95", "--weights-gib", "44.76", "--activation-gib", "2.12")
    computed = as_json(*flat, *parts, "--non-torch-gib", "0.14")
    assert computed["kv_cache_gib"] == pytest.approx(28.2, abs=0.035)
    code, text = run(*flat, "--kv-cache-gib", "1")
    assert code == 1
    assert "does not start: the pool holds requests of 6528 tokens, --max-model-len is 16000" in text


def test_windows_of_all_layers_add_a_block() -> None:
    """Phi-3-mini: 35,648 tokens and 8.67x at 4,096."""
    flat = ("--kv-bytes-per-token", "393216", "--kv-cache-gib", "13.06", "--version", "0.19.1")
    budget = as_json(*flat, "--max-model-len", "4096", "--sliding-window", "2047")
    assert budget["kv_tokens"] == 35_648
    assert round(budget["max_concurrency"], 2) == 8.67


def test_a_config_json_is_a_model(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 32768,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    read, named = as_json("--model", str(tmp_path), "--gpu", "rtx-4090"), as_json(*QWEN)
    assert read["kv_tokens"] == named["kv_tokens"]


SCENARIO = """\
name: team
server:
  model: Qwen/Qwen2.5-7B-Instruct
  gpu: rtx-4090
  flags: {max_num_seqs: 64}
  memory: {weights_gib: 14.25}
workload:
  kind: open_loop
  request_rate: 1
  classes:
    - {name: all, prompt_tokens: 400, output_tokens: 180}
run: {duration: 10min}
"""


def test_the_server_of_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    path.write_text(SCENARIO)
    budget = as_json(str(path))
    assert (budget["model"], budget["gpu"]) == ("Qwen/Qwen2.5-7B-Instruct", "rtx-4090")
    assert (budget["flags"]["max_num_seqs"], budget["weights_gib"]) == (64, 14.25)
    assert as_json(str(path), "--set", "server.flags.max_num_seqs=32")["flags"]["max_num_seqs"] == 32
    changed = as_json(str(path), "--max-num-seqs", "16", "--gpu", "l4")  # an option comes before the file
    assert (changed["gpu"], changed["flags"]["max_num_seqs"], changed["weights_gib"]) == ("l4", 16, 14.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "model: give --model"),
        (("--model", "Qwen2.5-7B"), "gpu: give --gpu"),
        (("--model", "Qwen2.5-9B", "--gpu", "h100"), r"model: unknown model 'Qwen2\.5-9B'; did you mean"),
        (("--model", "Qwen2.5-7B", "--gpu", "h1000"), "gpu: unknown GPU 'h1000'; did you mean 'h100-80gb'"),
        ((*QWEN, "--kv-cache-gib", "nan"), "--kv-cache-gib: expected a finite number; got nan"),
        ((*QWEN, "--gpu-memory-gib", "inf"), "--gpu-memory-gib: expected a finite number; got inf"),
        ((*QWEN, "--version", "new"), r"version: must look like 0\.32"),
        ((*QWEN, "--tp", "3"), r"attention heads \(28\) must be divisible by tensor parallel size \(3\)"),
        ((*QWEN, "--max-num-seqs", "4096"), r"max_num_batched_tokens \(2048\) must be greater than or equal to"),
        ((*QWEN, "--gpu-memory-utilization", "90"), "gpu_memory_utilization: must be above 0 and at most 1, not 90"),
        ((*QWEN, "--kv-cache-gib", "1e300"), r"kv_cache_gib: must be at most 1000000; got 1e\+300"),
        ((*QWEN, "--kv-bytes-per-token", "0"), "kv_bytes_per_token: must be at least 1; got 0"),
        ((*QWEN, "--gpu-memory-gib", "1e300"), r"--gpu-memory-gib: must be at most 1000000; got 1e\+300"),
        ((*QWEN, "--num-gpu-blocks-override", "9" * 20), "num_gpu_blocks_override: must be at most 1000000000; got 9"),
        ((*QWEN, "--kv-cache-memory-bytes", "9" * 30), "kv_cache_memory_bytes: must be at most 1000000 GiB; got 9"),
        (("--kv-bytes-per-token", "100"), "max_model_len: needed when there is no model"),
        ((*QWEN, "--set", "server.gpu=l4"), "--set server.gpu=l4: changes a scenario, and none is given"),
        ((*QWEN, "--variant", "wide"), "--variant wide: changes a scenario, and none is given"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)


def test_the_tables_can_be_listed() -> None:
    models, gpus = run("--list-models")[1], run("--list-gpus")[1]
    assert [line.split()[0] for line in models.splitlines()] == list(model_names())
    assert [line.split()[0] for line in gpus.splitlines()] == [gpu.name for gpu in GPUS]
    tables = json.loads(run("--list-models", "--list-gpus", "--json")[1])
    assert [model["name"] for model in tables["models"]] == list(model_names())
    assert [gpu["memory_gib"] for gpu in tables["gpus"]] == [gpu.memory_gib for gpu in GPUS]


def test_the_same_input_prints_the_same_bytes() -> None:
    arguments = ("--model", "gpt-oss-120b", "--gpu", "h200", "--json")
    assert run(*arguments) == run(*arguments)


def test_sizing_needs_no_heavy_library() -> None:
    """A table is printed in a blink: numpy, pydantic and their like are not loaded for it."""
    code = (
        "import sys, sim.memory, sim.models, sim.hardware, sim.cli.size;"
        "print(sorted({'numpy', 'pandas', 'scipy', 'pydantic', 'simpy'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


OLLAMA = """
name: desk
server: {kind: ollama, model: qwen2.5:7b, gpu: rtx-3060, ollama: {num_ctx: 8192, num_parallel: 2}}
workload: {kind: users, users: 2, classes: [{name: chat, first_prompt_tokens: 100, next_prompt_tokens: 50,
  output_tokens: 50, turns: 3, think_time: 5s}]}
objectives: []
run: {duration: 1min}
"""


@pytest.fixture
def ollama(tmp_path: Path) -> str:
    path = tmp_path / "desk.yaml"
    path.write_text(OLLAMA)
    return str(path)


def test_an_ollama_server_is_sized_by_its_context_product(ollama: str) -> None:
    found = as_json(ollama)
    (model,) = found["models"]
    assert (model["num_parallel"], model["num_ctx"]) == (2, 8192)
    assert model["context_gib"] == pytest.approx(2 * 8192 * 2 * 28 * 4 * 128 * 2 / 2**30, abs=1e-3)
    assert model["gpu_gib"] == pytest.approx(model["weights_gib"] + model["context_gib"] + 0.6, abs=1e-3)
    code, text = run(ollama)
    assert code == 0
    assert "2 x 8,192 = 16,384 tokens of 57,344 bytes" in text
    assert "vLLM" not in text


def test_two_models_that_take_turns_are_said(ollama: str) -> None:
    two = "server.ollama.models=[{model: 'qwen2.5:7b'}, {model: 'qwen2.5:14b', classes: [chat]}]"
    assert as_json(ollama, "--set", two)["fit_together"] is False
    assert "all models at once: they do not fit, and take turns" in run(ollama, "--set", two)[1]
    small = "server.ollama.models=[{model: 'qwen2.5:0.5b'}, {model: 'qwen2.5:1.5b', classes: [chat]}]"
    assert as_json(ollama, "--set", small)["fit_together"] is True


def test_vllms_flags_size_no_ollama_server(ollama: str) -> None:
    with pytest.raises(UserError, match=r"--max-num-seqs: sizes a vLLM server; desk is of kind ollama"):
        run(ollama, "--max-num-seqs", "4")


def test_slots_that_do_not_fit_are_one_line(ollama: str) -> None:
    with pytest.raises(UserError, match=r"ollama.num_parallel: 200 slots of 8,192 tokens do not fit") as caught:
        run(ollama, "--set", "server.ollama.num_parallel=200")
    assert "\n" not in str(caught.value)


def test_a_reader_that_has_read_enough_is_no_verdict() -> None:
    """As in `headcount size --list-models | head -1`: 1 would say that the server does not start."""
    command = [sys.executable, "-c", "from sim.cli import main; main()", "size", "--list-models"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (141, b"")
    process.stderr.close()
