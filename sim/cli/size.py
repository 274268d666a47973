"""`headcount size`: what fits on the GPU, without simulating anything."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.options import AsJson
from sim.cli.size_tables import print_tables

if TYPE_CHECKING:
    from sim.memory import ServerSpec
    from sim.scenario.model import Scenario

_Int = int | None
_Float = float | None
_Text = str | None
_Switch = bool | None


def size(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help="Size the server of this scenario.", show_default=False)
    ] = None,
    *,
    model: Annotated[
        _Text, typer.Option("--model", "-m", help="A Hugging Face name, or a path to config.json.")
    ] = None,
    gpu: Annotated[
        _Text, typer.Option("--gpu", "-g", help="A GPU of the built-in table, or what it is called.")
    ] = None,
    tp: Annotated[_Int, typer.Option("--tp", "--tensor-parallel-size", min=1, help="GPUs that share a layer.")] = None,
    pp: Annotated[_Int, typer.Option("--pp", "--pipeline-parallel-size", min=1, help="Pipeline stages.")] = None,
    dp: Annotated[_Int, typer.Option("--dp", "--data-parallel-size", min=1, help="Replicas.")] = None,
    version: Annotated[_Text, typer.Option("--version", help="The vLLM release. [default: 0.32]")] = None,
    gpu_memory_gib: Annotated[_Float, typer.Option(min=0, help="The GPU's memory, as the log shows it.")] = None,
    max_model_len: Annotated[_Int, typer.Option(min=-1, help="Longest request; -1: the longest that fits.")] = None,
    max_num_seqs: Annotated[_Int, typer.Option(min=1, help="Requests in one step, at most.")] = None,
    max_num_batched_tokens: Annotated[_Int, typer.Option(min=1, help="Tokens in one step, at most.")] = None,
    gpu_memory_utilization: Annotated[_Float, typer.Option(help="Share of the GPU that vLLM may use.")] = None,
    block_size: Annotated[_Int, typer.Option(min=1, help="Tokens in a KV block.")] = None,
    kv_cache_dtype: Annotated[_Text, typer.Option(help="auto, bfloat16, float16, float32, fp8, …")] = None,
    kv_cache_memory_bytes: Annotated[_Int, typer.Option(min=1, help="The KV cache, set outright.")] = None,
    num_gpu_blocks_override: Annotated[_Int, typer.Option(min=1, help="KV blocks, set outright.")] = None,
    dtype: Annotated[_Text, typer.Option(help="Type of weights and activations.")] = None,
    quantization: Annotated[_Text, typer.Option("--quantization", "-q", help="fp8, awq, gptq, w4a16, none, …")] = None,
    enforce_eager: Annotated[_Switch, typer.Option(help="No CUDA graphs.")] = None,
    enable_prefix_caching: Annotated[_Switch, typer.Option(help="State blocks, in hybrid models.")] = None,
    enable_chunked_prefill: Annotated[_Switch, typer.Option(help="Without it, prompts are read in one step.")] = None,
    async_scheduling: Annotated[_Switch, typer.Option(help="State blocks, in hybrid models.")] = None,
    enable_expert_parallel: Annotated[_Switch, typer.Option(help="Whole experts on each GPU.")] = None,
    estimate_cudagraphs: Annotated[
        _Switch, typer.Option(help="VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS. [default: from 0.21]")
    ] = None,
    weights_gib: Annotated[_Float, typer.Option(min=0, help="Measured: 'Model loading took'.")] = None,
    activation_gib: Annotated[_Float, typer.Option(min=0, help="Measured: 'peak activation'.")] = None,
    non_torch_gib: Annotated[_Float, typer.Option(min=0, help="Measured: 'non-torch memory'.")] = None,
    graphs_gib: Annotated[_Float, typer.Option(min=0, help="Measured: 'Estimated CUDA graph memory'.")] = None,
    kv_cache_gib: Annotated[_Float, typer.Option(help="Measured: 'Available KV cache memory'.")] = None,
    kv_bytes_per_token: Annotated[_Float, typer.Option(min=0, help="Per GPU; then no model is needed.")] = None,
    sliding_window: Annotated[_Int, typer.Option(min=1, help="Of all layers, where there is no model.")] = None,
    num_state_blocks: Annotated[_Int, typer.Option(min=1, help="Measured: Mamba cache blocks.")] = None,
    free_gib: Annotated[_Float, typer.Option(min=0, help="Free memory before the start.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the scenario.")] = None,
    variant: Annotated[_Text, typer.Option(metavar="NAME", help="Take this variant of the scenario.")] = None,
    as_json: AsJson = False,
    list_models: Annotated[bool, typer.Option("--list-models", help="Print the built-in models.")] = False,
    list_gpus: Annotated[bool, typer.Option("--list-gpus", help="Print the built-in GPUs.")] = False,
) -> None:
    """Size the memory of a server: weights, activations, CUDA graphs, KV cache, and what that holds.

    Options not given take the default of the release and the GPU. They are vLLM's; a scenario of kind ollama is sized
    as it stands (change it with --set server.ollama.KEY=VALUE). Exits with 0 if the server would start, 1 if it does
    not fit and vLLM would refuse to, 2 on bad input, which is also what vLLM rejects before it looks at the memory:
    flags that contradict each other, or a model that cannot be spread over so many GPUs.
    """
    given = locals()  # by the names of the flags, which are those of the fields they go to
    _check_finite(given)
    if list_models or list_gpus:
        print_tables(models=list_models, gpus=list_gpus, as_json=as_json)
        return
    loaded = _load(scenario, set_ or [], variant)
    if loaded is not None and loaded.server.kind == "ollama":
        report = _sized_ollama(loaded, given)
    else:
        request = _from_scenario(loaded) if loaded is not None else _Request()
        report = _sized(request.changed_by(given), gpu_memory_gib, sliding_window)
    typer.echo(json.dumps(report.as_json(), ensure_ascii=False, indent=2) if as_json else report.as_text())
    if report.refusal is not None:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Request:
    """What is to be sized."""

    server: ServerSpec | None = None
    model: str | None = None
    gpu: str | None = None

    def changed_by(self, given: dict[str, Any]) -> _Request:
        """Returns the request with every option that was given in place of what it had."""
        from sim.memory import ServerSpec

        server = self.server or ServerSpec()
        names = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp"}
        options = {
            field: given[names.get(field, field)]
            for field in (*names, "version", "estimate_cudagraphs")
            if given[names.get(field, field)] is not None
        }
        server = replace(
            server,
            flags=_changed(server.flags, given),
            memory=_changed(server.memory, given),
            **options,
        )
        return _Request(server, given["model"] or self.model, given["gpu"] or self.gpu)


def _changed(part: Any, given: dict[str, Any]) -> Any:
    """Returns a dataclass with the fields that an option of the same name gives."""
    return replace(part, **{name: given[name] for name in part.__slots__ if given.get(name) is not None})


def _check_finite(given: dict[str, Any]) -> None:
    """Refuses `nan` and `inf`, which are numbers to Python, and more memory than any GPU has."""
    from sim.errors import UserError
    from sim.hardware import MOST_GIB

    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"--{name.replace('_', '-')}: expected a finite number; got {value}")
    if given["gpu_memory_gib"] is not None and given["gpu_memory_gib"] > MOST_GIB:
        raise UserError(f"--gpu-memory-gib: must be at most {MOST_GIB}; got {given['gpu_memory_gib']:g}")


def _load(path: Path | None, overrides: list[str], variant: str | None) -> Scenario | None:
    from sim.errors import UserError
    from sim.scenario.load import load_scenario

    if path is not None:
        return load_scenario(path, overrides, variant)
    if overrides or variant is not None:
        option = f"--set {overrides[0]}" if overrides else f"--variant {variant}"
        raise UserError(f"{option}: changes a scenario, and none is given; give one, or the options of the server")
    return None


def _sized_ollama(scenario: Scenario, given: dict[str, Any]) -> Any:
    """Returns the report of an Ollama server, which has none of vLLM's flags."""
    from sim.cli.size_ollama import OllamaReport
    from sim.errors import UserError
    from sim.ollama_deployment import plan_ollama

    own = ("scenario", "set_", "variant", "as_json", "list_models", "list_gpus")
    foreign = next((name for name, value in given.items() if name not in own and value is not None), None)
    if foreign is not None:
        option = "--" + foreign.replace("_", "-")
        raise UserError(
            f"{option}: sizes a vLLM server; {scenario.name} is of kind ollama: change it with --set "
            "server.ollama.KEY=VALUE"
        )
    return OllamaReport(scenario.server.gpu, scenario.server.ollama.version, plan_ollama(scenario))


def _from_scenario(scenario: Scenario) -> _Request:
    from sim.server_spec import server_spec

    server = scenario.server
    return _Request(server_spec(server), scenario.locate(server.model), server.gpu)


def _sized(request: _Request, gpu_memory_gib: float | None, sliding_window: int | None) -> Any:
    """Returns the report of a model on a GPU, or of a bare pool when no model is named."""
    from sim.cli.size_report import BudgetReport, PoolReport
    from sim.errors import UserError
    from sim.hardware import find_gpu
    from sim.memory import flat_pool, memory_budget
    from sim.models import find_model

    server = request.server
    assert server is not None
    device = find_gpu(request.gpu) if request.gpu else None
    if device is not None and gpu_memory_gib is not None:
        device = replace(device, memory_gib=gpu_memory_gib)
    if request.model is None:
        if server.memory.kv_bytes_per_token is None:
            raise UserError("model: give --model (see --list-models) or a scenario; or --kv-bytes-per-token")
        total = device.memory_gib if device is not None else gpu_memory_gib
        return PoolReport(server, *flat_pool(server, total, sliding_window=sliding_window))
    model = find_model(request.model)
    if device is None:
        raise UserError("gpu: give --gpu; --list-gpus lists the table, --gpu-memory-gib replaces a GPU's memory")
    return BudgetReport(model.name, device.name, server, memory_budget(model, device, server))
