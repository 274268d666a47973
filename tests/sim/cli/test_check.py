"""`headcount check` says ok once a sound file, or one line a problem on stderr and exit 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from sim.cli.check import check

SCENARIOS = Path(__file__).parents[3] / "scenarios"
APP = typer.Typer()
APP.command()(check)

SOUND = """\
name: team
server:
  model: Qwen/Qwen2.5-7B-Instruct
  gpu: rtx-4090
  flags:
    max_model_len: 32768
workload:
  kind: open_loop
  request_rate: 1
  classes:
    - {name: all, prompt_tokens: 400, output_tokens: 180}
run: {duration: 10min}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(APP, list(arguments))


def _says(text: str, old: str, new: str) -> list[str]:
    assert text.count(old) == 1
    Path("s.yaml").write_text(text.replace(old, new))
    result = _run("s.yaml")
    assert result.exit_code == 2
    assert result.stdout == ""
    return result.stderr.splitlines()


def test_every_shipped_scenario_is_sound() -> None:
    files = [str(path) for path in sorted(SCENARIOS.glob("*.yaml"))]
    result = _run(*files)
    assert result.stderr == ""
    assert result.exit_code == 0
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == [f"ok {file}" for file in files]


def test_a_sound_file_is_one_line(folder: Path) -> None:
    Path("s.yaml").write_text(SOUND)
    result = _run("s.yaml", "--set", "server.gpu=h100", "--set", "server.tensor_parallel_size=2")
    assert (result.exit_code, result.stdout) == (0, "ok s.yaml: Qwen/Qwen2.5-7B-Instruct on 2x h100\n")


def test_an_unsound_file_is_one_line_a_problem(folder: Path) -> None:
    Path("sound.yaml").write_text(SOUND)
    Path("s.yaml").write_text(SOUND.replace("gpu:", "gpus:").replace("10min", "10"))
    result = _run("sound.yaml", "s.yaml")
    assert result.exit_code == 2
    assert result.stdout == "ok sound.yaml: Qwen/Qwen2.5-7B-Instruct on rtx-4090\n"
    assert result.stderr.splitlines() == [
        "s.yaml:2:1: server.gpu: missing key (a GPU of the built-in table: rtx-4090, h100, …)",
        "s.yaml:4:3: server.gpus: unknown key; did you mean 'gpu'?",
        "s.yaml:12:17: run.duration: a duration needs a unit; got 10; units: us, ms, s, min, h, d (for example 45s)",
    ]


def test_an_unknown_model_or_gpu_is_said_with_the_nearest(folder: Path) -> None:
    (line,) = _says(SOUND, "rtx-4090", "rtx-4091")
    assert line.startswith("s.yaml:4:8: server.gpu: unknown GPU 'rtx-4091'; did you mean 'rtx-4090'")
    (line,) = _says(SOUND, "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-77B")
    assert line.startswith("s.yaml:3:10: server.model: unknown model 'Qwen/Qwen2.5-77B'; did you mean ")
    assert len(_says(SOUND, "  model: Qwen/Qwen2.5-7B-Instruct\n  gpu: rtx-4090", "  model: x\n  gpu: y")) == 2


def test_a_model_that_does_not_fit_its_gpu_is_said_with_the_cure(folder: Path) -> None:
    (line,) = _says(SOUND, "rtx-4090", "t4")
    assert line.startswith("s.yaml:3:3: server: vLLM would not start: No available memory for the cache blocks.")
    (line,) = _says(SOUND, "Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-70B-Instruct")
    assert "server: vLLM would not start: CUDA out of memory while the weights are loaded" in line
    assert "--tensor-parallel-size" in line


def test_a_context_beyond_the_model_is_said(folder: Path) -> None:
    (line,) = _says(SOUND, "32768", "65536")
    assert line.startswith("s.yaml:6:20: server.flags.max_model_len: ")
    assert "65536" in line
    assert "32768" in line


def test_gpus_that_cannot_share_the_model_are_said(folder: Path) -> None:
    (line,) = _says(SOUND, "  gpu: rtx-4090", "  gpu: rtx-4090\n  tensor_parallel_size: 3")
    assert line.startswith("s.yaml:5:25: server.tensor_parallel_size: ")
    assert "28" in line


def test_a_flag_below_a_default_of_this_gpu_is_said(folder: Path) -> None:
    (line,) = _says(SOUND, "max_model_len: 32768", "enable_chunked_prefill: false\n    max_num_batched_tokens: 4096")
    assert line.startswith("s.yaml:7:29: server.flags.max_num_batched_tokens: ")


def test_requests_that_never_fit_the_model_are_said(folder: Path) -> None:
    text = SOUND.replace("    max_model_len: 32768\n", "    max_num_seqs: 8\n")
    (line,) = _says(text, "prompt_tokens: 400", "prompt_tokens: 40000")
    assert line == (
        "s.yaml:11:7: workload.classes.0: no request of class 'all' can ever fit: its shortest prompt has 40000 tokens "
        "and needs room for one more; max_model_len is 32768"
    )


def test_an_unknown_profile_is_said(folder: Path) -> None:
    (line,) = _says(SOUND, "  gpu: rtx-4090", "  gpu: rtx-4090\n  profile: no-such-profile")
    assert line.startswith("s.yaml:5:12: server.profile: ")
    assert "no-such-profile" in line


TRACE = """\
name: replay
server: {model: Qwen/Qwen3-14B, gpu: h100}
workload: {kind: trace, path: trace.jsonl, format: mooncake}
objectives: ['ttft.p95[trace] <= 2s']
"""


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("", "s.yaml:3:31: workload.path: the file is empty; got 'trace.jsonl'"),
        ('{"timestamp": -5, "input_length": 3, "output_length": 2, "hash_ids": [0]}\n', "trace.jsonl:1:"),
        ('{"timestamp": 5, "input_length": 3}\n', "trace.jsonl:1:"),
        ("not json\n", "trace.jsonl:1:"),
    ],
)
def test_a_broken_trace_is_said_with_its_own_line(folder: Path, trace: str, said: str) -> None:
    Path("trace.jsonl").write_text(trace)
    (line,) = _says(TRACE, "name: replay", "name: replay")
    assert said in line


def test_an_objective_about_a_class_that_the_trace_has_not_is_said(folder: Path) -> None:
    Path("trace.jsonl").write_text('{"timestamp": 5, "input_length": 3, "output_length": 2, "hash_ids": [0]}\n')
    (line,) = _says(TRACE, "[trace]", "[trance]")
    assert line == (
        "s.yaml:4:14: objectives.0: no class of this name in the workload; got 'trance'; did you mean 'trace'?"
    )


VARIANTS = SOUND + "variants:\n  small: {server.gpu: t4}\n  big: {server.gpu: h100}\n"


def test_the_variants_are_checked_too(folder: Path) -> None:
    Path("s.yaml").write_text(VARIANTS)
    result = _run("s.yaml")
    assert result.exit_code == 2
    assert "server: vLLM would not start" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert _run("s.yaml", "--variant", "big").exit_code == 0
    assert _run("s.yaml", "--variant", "bigger").stderr == (
        "s.yaml: variants: unknown variant 'bigger'; did you mean 'big'?\n"
    )


def test_a_change_that_does_not_fit_is_named(folder: Path) -> None:
    Path("s.yaml").write_text(SOUND)
    result = _run("s.yaml", "--set", "server.gpu=rtx-4091")
    assert result.stderr.startswith("--set server.gpu=rtx-4091: server.gpu: unknown GPU 'rtx-4091'; did you mean")


def test_json_is_one_object_a_file(folder: Path) -> None:
    Path("s.yaml").write_text(SOUND)
    Path("t.yaml").write_text(SOUND.replace("gpu:", "gpus:"))
    result = _run("s.yaml", "t.yaml", "--json")
    sound, unsound = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 2
    assert (sound["file"], sound["ok"], sound["name"], sound["problems"]) == ("s.yaml", True, "team", [])
    assert len(sound["hash"]) == 64
    assert (unsound["ok"], unsound["hash"]) == (False, None)
    assert unsound["problems"][1] == {
        "where": "t.yaml:4:3",
        "key": "server.gpus",
        "message": "unknown key; did you mean 'gpu'?",
    }


def test_a_scenario_without_files_is_checked_without_numpy() -> None:
    code = (
        "import sys; from pathlib import Path; from sim.cli.checked import load_checked; "
        f"load_checked(Path({str(SCENARIOS / 'office-team.yaml')!r})); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
