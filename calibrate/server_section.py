"""A scenario's server section from what is known of a real server: its log, or the first line of a step record."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from calibrate.server_log import ServerFacts
from sim.scenario.server import Flags

UNKNOWN_GPU = "FILL-IN"
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_HARMLESS = {
    "model", "model_tag", "host", "port", "served_model_name", "load_format", "scheduler_cls", "api_key", "seed",
    "enable_logging_iteration_details", "disable_log_requests", "enable_log_requests", "disable_log_stats",
    "tokenizer", "trust_remote_code", "download_dir", "uvicorn_log_level", "revision", "chat_template", *_PARALLEL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerSection:
    """The server section of a scenario.

    Attributes:
        values: version, model, gpu, parallel sizes, flags and memory, as a scenario has them.
        comments: what the reader should know, one line each.
    """

    values: dict[str, Any]
    comments: tuple[str, ...] = ()
    ignored: tuple[str, ...] = field(default=())

    def to_yaml(self) -> str:
        """Returns the section as YAML, comments first."""
        lines = [f"# {comment}" for comment in self.comments]
        if self.ignored:
            lines.append(f"# Given to the server and not simulated: {', '.join(self.ignored)}")
        lines.append("server:")
        for key, value in self.values.items():
            if isinstance(value, dict):
                if value:
                    lines += [f"  {key}:", *(f"    {name}: {_scalar(item)}" for name, item in value.items())]
            else:
                lines.append(f"  {key}: {_scalar(value)}")
        return "\n".join(lines) + "\n"


def section_from_log(facts: ServerFacts, source: str, gpu: str | None = None) -> ServerSection:
    """Returns the server section that a log describes.

    Args:
        facts: what the log says.
        source: names the log in the comment.
        gpu: the GPU; no log names it. None: `cpu` for a CPU server, else a placeholder to fill in.
    """
    flags, ignored = _flags(facts)
    memory = {"weights_gib": facts.weights_gib, "kv_cache_gib": facts.kv_cache_gib}
    values: dict[str, Any] = {
        "version": _release(facts.version),
        "model": facts.args.get("model") or facts.config.get("model") or UNKNOWN_GPU,
        "gpu": gpu or ("cpu" if facts.device == "cpu" else UNKNOWN_GPU),
        **{name: int(facts.config[name]) for name in _PARALLEL if facts.config.get(name, "1") != "1"},
        "flags": flags,
        "memory": {key: round(value, 4) for key, value in memory.items() if value is not None},
    }
    return ServerSection(values, tuple(_comments(facts, source, values)), tuple(ignored))


def _flags(facts: ServerFacts) -> tuple[dict[str, Any], list[str]]:
    """Returns the flags that the simulation knows, resolved where the log says how, and the names of the others."""
    flags = {name: value for name, value in facts.args.items() if name in Flags.model_fields and value is not None}
    config = facts.config
    if "max_seq_len" in config:
        flags["max_model_len"] = int(config["max_seq_len"])
    if facts.max_num_batched_tokens is not None:
        flags.setdefault("max_num_batched_tokens", facts.max_num_batched_tokens)
    if facts.args.get("kv_cache_dtype") is None and config.get("kv_cache_dtype", "auto") != "auto":
        flags["kv_cache_dtype"] = config["kv_cache_dtype"]
    if config.get("quantization", "None") != "None":
        flags.setdefault("quantization", config["quantization"])
    if config.get("enforce_eager") == "True":
        flags["enforce_eager"] = True
    if config.get("enable_prefix_caching") in ("True", "False"):
        flags["enable_prefix_caching"] = config["enable_prefix_caching"] == "True"
    if facts.device == "cpu":
        flags["async_scheduling"] = False  # the CPU platform turns it off without a word in the log
    dtype = config.get("dtype", "").removeprefix("torch.")
    if dtype in ("float16", "bfloat16", "float32"):
        flags["dtype"] = dtype
    ignored = sorted(name for name in facts.args if name not in Flags.model_fields and name not in _HARMLESS)
    return {name: flags[name] for name in Flags.model_fields if name in flags}, ignored


def _comments(facts: ServerFacts, source: str, values: dict[str, Any]) -> list[str]:
    comments = [f"From {source}."]
    if facts.kv_tokens is not None:
        comments.append(f"The log says: KV cache size {facts.kv_tokens:,} tokens.")
    if facts.concurrency is not None:
        length, times = facts.concurrency
        comments.append(f"The log says: maximum concurrency for {length:,} tokens per request {times:.2f}x.")
    if facts.num_gpu_blocks is not None:
        comments.append(f"The log says: {facts.num_gpu_blocks:,} KV blocks.")
    if facts.graphs_taken_gib is not None:
        comments.append(f"The log says: CUDA graphs took {facts.graphs_taken_gib:g} GiB.")
    if values["gpu"] == UNKNOWN_GPU:
        comments.append("A log does not name the GPU: fill it in (headcount size lists the known ones).")
    return comments


def _release(version: str | None) -> str:
    """Returns the release's number without a build's suffix: 0.32.0+cpu is 0.32.0."""
    return "0.32" if version is None else version.removeprefix("v").split("+")[0]


def _scalar(value: Any) -> str:
    """Returns a scalar as YAML 1.2, which reads JSON."""
    if isinstance(value, str) and value.replace("-", "").replace("_", "").isalnum() and not value[0].isdigit():
        return value if value not in ("true", "false", "null") else json.dumps(value)
    return json.dumps(value)
