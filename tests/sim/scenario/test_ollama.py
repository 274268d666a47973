"""The `ollama` and `static` sections: what they take, and one line for each kind of bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cli.checked import load_checked
from sim.deployment import plan_server
from sim.ollama_deployment import OllamaDeployment
from sim.scenario.load import scenario_from_text
from sim.scenario.model import scenario_hash
from sim.scenario.problems import ScenarioError

SCENARIO = """\
name: s
server:
  kind: ollama
  model: qwen2.5:7b
  gpu: rtx-4090
  ollama:
    num_parallel: 4
workload:
  kind: closed_loop
  num_requests: 10
  max_concurrency: 2
  classes:
    - {name: chat, prompt_tokens: 100, output_tokens: 10}
    - {name: code, prompt_tokens: 100, output_tokens: 10}
"""


def checked(tmp_path: Path, old: str, new: str) -> OllamaDeployment:
    assert old in SCENARIO
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace(old, new))
    deployment = plan_server(load_checked(path))
    assert isinstance(deployment, OllamaDeployment)
    return deployment


def problems(tmp_path: Path, old: str, new: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        checked(tmp_path, old, new)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]


PARALLEL = "    num_parallel: 4"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            PARALLEL,
            "    num_parallel: 8\n    num_ctx: 131072",
            "s.yaml:7:19: server.ollama.num_parallel: 8 slots of 131,072 tokens do not fit: qwen2.5:7b takes 4.3 GiB "
            "of weights and 56.0 GiB of context (57,344 bytes a token) of 23.6 GiB of GPU memory and 32.0 GiB of RAM; "
            "lower num_parallel or num_ctx, or set kv_cache_type to q8_0",
        ),
        (
            "model: qwen2.5:7b",
            "model: qwen2.5:8b",
            "s.yaml:4:10: server.model: model 'qwen2.5:8b' not found: the built-in table has none so called; did you "
            "mean qwen2.5-…",
        ),
        (
            PARALLEL,
            "    keep_alive: 5 minutes",
            "s.yaml:7:17: server.ollama.keep_alive: a keep-alive is a time such as 5m, 1h30m or 300 (seconds), 0 to "
            "unload at once, or -1 to keep the model for ever; got '5 minutes'",
        ),
        (
            PARALLEL,
            "    weights: q4_k_x",
            "s.yaml:7:14: server.ollama.weights: unknown weight format; got 'q4_k_x'; did you mean 'q4_k_s'?",
        ),
        (
            PARALLEL,
            "    version: 0.30",
            "s.yaml:7:14: server.ollama.version: a version is text (0.30 is not 0.3); got 0.3; put it in quotes, as in "
            '"0.32"',
        ),
        (
            "  gpu: rtx-4090\n",
            '  gpu: rtx-4090\n  version: "0.9.6"\n',
            "s.yaml:6:12: server.version: is a release of vLLM; that of Ollama is server.ollama.version; got '0.9.6'",
        ),
        (
            PARALLEL,
            "    OLLAMA_NUM_PARALLEL: 4",
            "s.yaml:7:5: server.ollama.OLLAMA_NUM_PARALLEL: unknown key; did you mean 'num_parallel'?",
        ),
        (
            "  gpu: rtx-4090\n",
            "  gpu: rtx-4090\n  num_parallel: 4\n",
            "s.yaml:6:3: server.num_parallel: unknown key; did you mean 'ollama.num_parallel'?",
        ),
        (
            PARALLEL,
            "    models: [{model: qwen2.5:7b}, {model: llama3.1:8b, classes: [chart]}]",
            "s.yaml:7:66: server.ollama.models.1.classes.0: no such request class; got 'chart'; did you mean 'chat'?",
        ),
        (
            PARALLEL,
            "    models: [{model: qwen2.5:7b, classes: [code]}, {model: llama3.1:8b, classes: [code]}]",
            "s.yaml:7:83: server.ollama.models.1.classes.0: a class asks for one model; got 'code' a second time",
        ),
        (
            PARALLEL,
            "    models: [{model: qwen2.5:7b}, {model: llama9:8b, classes: [code]}]",
            "s.yaml:7:43: server.ollama.models.1.model: model 'llama9:8b' not found: the built-in table has none so "
            "called; did you mean llama-3-8b…",
        ),
        (
            PARALLEL,
            "    queue_rule: fifo",
            "s.yaml:7:17: server.ollama.queue_rule: unknown value; got 'fifo'; allowed: faq, source",
        ),
        (
            PARALLEL,
            "    num_parallel: 4\n  static: {batch_size: 0}",
            "s.yaml:8:24: server.static.batch_size: must be above 0; got 0",
        ),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, old: str, new: str, line: str) -> None:
    (found,) = problems(tmp_path, old, new)
    assert found.startswith(line.removesuffix("…")) if line.endswith("…") else found == line


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, PARALLEL, "    profile: ./none.yaml")
    assert line == "s.yaml:7:5: server.ollama: none.yaml: cannot be read: No such file or directory"


def test_each_class_asks_for_its_model(tmp_path: Path) -> None:
    deployment = checked(tmp_path, PARALLEL, "    models: [{model: qwen2.5:7b}, {model: llama3.1:8b, classes: [code]}]")
    assert deployment.model_of_class(("chat", "code")) == (0, 1)


def test_what_a_model_does_not_set_is_that_of_the_section(tmp_path: Path) -> None:
    models = "[{model: qwen2.5:7b}, {model: llama3.1:8b-instruct-q8_0, classes: [code], num_ctx: 2048, keep_alive: -1}]"
    deployment = checked(tmp_path, PARALLEL, f"    num_ctx: 8192\n    keep_alive: 1h\n    models: {models}")
    first, second = deployment.models
    assert (first.placement.num_ctx, second.placement.num_ctx) == (8192, 2048)
    assert (first.keep_alive_ns, second.keep_alive_ns) == (3600 * 10**9, None)
    assert (first.path, second.path) == ("qwen2.5-7b-q4_k_m", "llama-3.1-8b-instruct-q8_0")


def test_a_load_is_the_file_at_the_speed_of_the_disk_and_then_of_the_page_cache(tmp_path: Path) -> None:
    (model,) = checked(tmp_path, PARALLEL, "    file_size: 8GB\n    start_time: 1s").models
    assert (model.load_ns, model.reload_ns) == (5 * 10**9, round(1e9 * (1 + 8 / 6)))
    (model,) = checked(tmp_path, PARALLEL, "    load_time: 42s").models
    assert (model.load_ns, model.reload_ns) == (42 * 10**9, 42 * 10**9)


def test_the_settings_say_which_are_defaults(tmp_path: Path) -> None:
    settings = checked(tmp_path, PARALLEL, "    num_parallel: 2\n    max_queue: 100").settings
    assert settings["OLLAMA_NUM_PARALLEL"] == (2, False)
    assert settings["OLLAMA_MAX_QUEUE"] == (100, False)
    assert settings["OLLAMA_MAX_LOADED_MODELS"] == (3, True)
    assert settings["OLLAMA_KEEP_ALIVE"] == ("5m", True)


def test_a_server_of_another_kind_has_the_hash_it_had() -> None:
    """Sections of kinds that are not simulated decide nothing."""
    vllm = SCENARIO.replace("kind: ollama", "kind: vllm").replace("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct")
    other = vllm.replace("num_parallel: 4", "num_parallel: 8")
    assert scenario_hash(scenario_from_text(vllm)) == scenario_hash(scenario_from_text(other))
    ollama = scenario_from_text(SCENARIO)
    assert scenario_hash(ollama) != scenario_hash(scenario_from_text(SCENARIO.replace("4\n", "8\n", 1)))
