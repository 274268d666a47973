"""The built-in tables, as `headcount size --list-models` and `--list-gpus` print them."""

from __future__ import annotations

import json

import typer


def print_tables(*, models: bool, gpus: bool, as_json: bool) -> None:
    """Prints the models and the GPUs that are asked for, a line each or in one JSON object."""
    from sim.hardware import GPUS
    from sim.models import find_model, model_names

    known = {name: find_model(name) for name in model_names()} if models else {}
    devices = GPUS if gpus else ()
    if as_json:
        tables: dict[str, list[dict[str, object]]] = {}
        if models:
            tables["models"] = [
                {"name": name, "num_params": model.num_params, "max_position_embeddings": model.max_position_embeddings}
                for name, model in known.items()
            ]
        if gpus:
            tables["gpus"] = [
                {"name": gpu.name, "memory_gib": gpu.memory_gib, "bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s}
                for gpu in devices
            ]
        typer.echo(json.dumps(tables, ensure_ascii=False, indent=2))
        return
    for name, model in known.items():
        typer.echo(f"{name:<32}{model.num_params / 1e9:>8.2f} B  {model.max_position_embeddings:>8,} tokens")
    for gpu in devices:
        typer.echo(f"{gpu.name:<20}{gpu.memory_gib:>8.2f} GiB  {gpu.bandwidth_bytes_per_s / 1e9:>8,.0f} GB/s")
