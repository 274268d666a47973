"""How `headcount size` shows an Ollama server: each model as it would be loaded alone on the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sim.engine.ollama.placement import Placement
from sim.ollama_deployment import OllamaDeployment

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class OllamaReport:
    """An Ollama server: what its models take, and how many stay loaded."""

    gpu: str
    version: str
    deployment: OllamaDeployment

    @property
    def refusal(self) -> str | None:
        """None: what does not fit in GPU and host memory together is an error of its own."""
        return None

    def as_text(self) -> str:
        """Returns a table a model, what stays loaded together, and the verdict."""
        host = self.deployment.host
        gpus = f"{host.num_gpus} x {self.gpu}" if host.num_gpus != 1 else self.gpu
        lines = [f"Ollama {self.version} on {gpus}: {host.total_bytes / _GIB:.2f} GiB of GPU memory", ""]
        for model in self.deployment.models:
            lines += [model.name, *(f"  {label:<26}{value}" for label, value in _rows(model.placement)), ""]
        lines += [f"note: {text}" for text in self.deployment.warnings]
        if len(self.deployment.models) > 1:
            together = "they fit" if self._fit_together else "they do not fit, and take turns"
            lines.append(f"all models at once: {together}")
        return "\n".join([*lines, "starts"])

    def as_json(self) -> dict[str, Any]:
        """Returns every number under its own name; sizes in GiB."""
        host = self.deployment.host
        return {
            "kind": "ollama",
            "gpu": self.gpu,
            "num_gpus": host.num_gpus,
            "version": self.version,
            "starts": True,
            "refusal": None,
            "total_gib": round(host.total_bytes / _GIB, 4),
            "models": [{"name": model.name, **_numbers(model.placement)} for model in self.deployment.models],
            "fit_together": self._fit_together,
            "settings": {name: value for name, (value, _) in self.deployment.settings.items()},
            "warnings": list(self.deployment.warnings),
        }

    @property
    def _fit_together(self) -> bool:
        """Whether a warm server holds all of them."""
        warm = replace(self.deployment, warm=True).engine().scheduler.loaded
        return len(warm) == len({model.path for model in self.deployment.models})


def _numbers(placement: Placement) -> dict[str, Any]:
    return {
        "weights_gib": round(placement.file_bytes / _GIB, 4),
        "context_gib": round(placement.context_bytes / _GIB, 4),
        "gpu_gib": round(placement.gpu_bytes / _GIB, 4),
        "ram_gib": round(placement.ram_bytes / _GIB, 4),
        "predicted_gib": round(placement.predicted_bytes / _GIB, 4),
        "context_bytes_per_token": round(placement.bytes_per_token),
        "num_parallel": placement.num_parallel,
        "num_ctx": placement.num_ctx,
        "num_batch": placement.num_batch,
        "num_gpu_layers": placement.num_gpu_layers,
        "num_layers": placement.num_layers,
    }


def _rows(placement: Placement) -> list[tuple[str, str]]:
    slots = f"{placement.num_parallel} x {placement.num_ctx:,} = {placement.num_parallel * placement.num_ctx:,} tokens"
    return [
        ("weights", f"{placement.file_bytes / _GIB:>9.2f} GiB"),
        (
            "context product",
            f"{placement.context_bytes / _GIB:>9.2f} GiB  {slots} of {placement.bytes_per_token:,.0f} bytes",
        ),
        ("on the GPUs", f"{placement.gpu_bytes / _GIB:>9.2f} GiB  with buffers"),
        ("in RAM", f"{placement.ram_bytes / _GIB:>9.2f} GiB"),
        ("layers on the GPUs", f"{placement.num_gpu_layers:>9} of {placement.num_layers}"),
        ("num_batch", f"{placement.num_batch:>9}"),
    ]
