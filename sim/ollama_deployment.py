"""From a scenario's `ollama` section to a server that can run: release rules, models, memory, batches, loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from sim.engine.ollama.engine import OllamaEngine
from sim.engine.ollama.gguf import as_read, find_gguf
from sim.engine.ollama.keep_alive import parse_keep_alive
from sim.engine.ollama.offload import OffloadedModel, Split
from sim.engine.ollama.placement import Host, Options, Placement, place
from sim.engine.ollama.profile import OllamaProfile, load_ollama_profile
from sim.engine.ollama.rules import DEFAULT_KEEP_ALIVE_NS, Queue, Rules, rules_for
from sim.engine.ollama.runner import RunnerConfig
from sim.engine.ollama.scheduler import ModelConfig, Scheduler
from sim.engine.ollama.weights import DEFAULT_WEIGHTS
from sim.engine.roofline import Roofline
from sim.engine.step_time import ClientLatency, StepTimeModel
from sim.errors import UserError
from sim.hardware import Gpu, find_gpu
from sim.models import ModelSpec
from sim.scenario.model import Scenario
from sim.scenario.ollama import Ollama, OllamaModel

ANALYTICAL = "analytical"

Setting = tuple[str | int | float | bool | None, bool]
"""A value, and whether it is the default."""


@dataclass(frozen=True, slots=True)
class OllamaDeployment:
    """One Ollama server, ready to be simulated.

    Attributes:
        rules: of its release.
        host: GPUs and memory.
        gpu: one of them.
        models: what requests may ask for; the first is what they get who name none.
        specs: the models' shapes.
        classes: request class -> index of its model.
        settings: environment variables with their values.
        queue_rule: who waits while a model loads.
        max_queue: OLLAMA_MAX_QUEUE.
        max_loaded_models: OLLAMA_MAX_LOADED_MODELS.
        warm: whether the run finds the models loaded.
        profile: the first model's fitted profile, or None for the analytical model.
        calibrated: whether the step times of every model were fitted to a real server.
        warnings: what the reader of any result must know.
    """

    rules: Rules
    host: Host
    gpu: Gpu
    models: tuple[ModelConfig, ...]
    specs: tuple[ModelSpec, ...]
    classes: dict[str, int]
    settings: dict[str, Setting]
    queue_rule: Queue
    max_queue: int
    max_loaded_models: int
    warm: bool
    profile: OllamaProfile | None
    calibrated: bool
    warnings: tuple[str, ...]

    def engine(self) -> OllamaEngine:
        """Returns a fresh server."""
        scheduler = Scheduler(
            self.models,
            self.host,
            queue_rule=self.queue_rule,
            max_queue=self.max_queue,
            max_loaded_models=self.max_loaded_models,
            fit_share=self.rules.fit_share,
        )
        return OllamaEngine(scheduler, warm=self.warm)

    @property
    def latency(self) -> ClientLatency:
        """Time outside the server."""
        return ClientLatency() if self.profile is None else self.profile.latency()

    def model_of_class(self, class_names: tuple[str, ...]) -> tuple[int, ...]:
        """Returns the model that each class asks for."""
        return tuple(self.classes.get(name, 0) for name in class_names)


def plan_ollama(scenario: Scenario) -> OllamaDeployment:
    """Works out a scenario's Ollama server.

    Raises:
        UserError: something is named that is not known, or a model with its context does not fit.
    """
    server, ollama = scenario.server, scenario.server.ollama
    rules, gpu = rules_for(ollama.version), find_gpu(server.gpu)
    host = _host(gpu, server.num_gpus, ollama)
    wanted = ollama.models or (OllamaModel(model=ollama.model or server.model),)
    plans = []
    for index, item in enumerate(wanted):
        try:
            plans.append(_ModelPlan.of(scenario, item, gpu, host, rules))
        except UserError as error:
            raise _at_model(error, ollama, index) from None
    models = tuple(plan.config() for plan in plans)
    return OllamaDeployment(
        rules=rules,
        host=host,
        gpu=gpu,
        models=models,
        specs=tuple(plan.spec for plan in plans),
        classes={name: index for index, item in enumerate(wanted) for name in item.classes},
        settings=_settings(ollama, rules, host, models),
        queue_rule=ollama.queue_rule or rules.queue,
        max_queue=rules.max_queue if ollama.max_queue is None else ollama.max_queue,
        max_loaded_models=ollama.max_loaded_models or host.max_loaded_models,
        warm=ollama.warm,
        profile=plans[0].profile,
        calibrated=all(plan.profile is not None and plan.profile.calibrated is True for plan in plans),
        warnings=tuple(text for plan in plans for text in plan.warnings(server.gpu)),
    )


def _at_model(error: UserError, ollama: Ollama, index: int) -> UserError:
    """Returns the error with the key of the model that it is about."""
    message = str(error)
    if not message.startswith("model "):
        return error
    key = f"ollama.models.{index}.model" if ollama.models else "ollama.model" if ollama.model else "model"
    return UserError(f"{key}: {message}")


def _host(gpu: Gpu, num_gpus: int, ollama: Ollama) -> Host:
    if gpu.is_cpu:
        return Host(0, 0, ollama.ram)
    return Host(gpu.memory_gib * 2**30, num_gpus, ollama.ram)


@dataclass(frozen=True, slots=True)
class _ModelPlan:
    """One model of the server, with all that decides how it runs."""

    item: OllamaModel
    ollama: Ollama
    spec: ModelSpec
    weights: str
    gpu: Gpu
    host: Host
    rules: Rules
    placement: Placement
    profile: OllamaProfile | None

    @classmethod
    def of(cls, scenario: Scenario, item: OllamaModel, gpu: Gpu, host: Host, rules: Rules) -> _ModelPlan:
        ollama = scenario.server.ollama
        spec, stated = find_gguf(scenario.locate(item.model))
        own = "mxfp4" if spec.quantization is not None else DEFAULT_WEIGHTS
        weights = item.weights or stated or ollama.weights or own
        name = item.profile or ollama.profile or ANALYTICAL
        profile = None if name == ANALYTICAL else load_ollama_profile(scenario.resolve(name))
        placement = place(_options(item, ollama, spec, weights), host, rules)
        return cls(item, ollama, spec, weights, gpu, host, rules, placement, profile)

    def config(self) -> ModelConfig:
        ollama = self.ollama
        keep_alive = self.item.keep_alive if self.item.keep_alive is not None else ollama.keep_alive
        load_ns, reload_ns = self.load_ns()
        return ModelConfig(
            name=self.item.model,
            path=f"{self.spec.name}-{self.weights}",
            runner=RunnerConfig(
                placement=self.placement,
                batching=self.rules.batching,
                num_keep=ollama.num_keep,
                shift=ollama.shift,
                multiuser_cache=ollama.multiuser_cache,
            ),
            keep_alive_ns=DEFAULT_KEEP_ALIVE_NS if keep_alive is None else parse_keep_alive(keep_alive),
            load_ns=load_ns,
            reload_ns=reload_ns,
            step_time_model=self.step_time_model(),
        )

    def load_ns(self) -> tuple[int, int]:
        """Returns what the first load takes, and a later one: from the page cache, where the file still is."""
        ollama, size = self.ollama, self.placement.file_bytes
        measured_s = self.item.load_time if self.item.load_time is not None else ollama.load_time
        if measured_s is None and self.profile is not None and self.profile.load is not None:
            measured_s = self.profile.load.load_ms.value / 1000
        if measured_s is not None:
            return round(measured_s * 1e9), round(measured_s * 1e9)
        first = round(1e9 * (ollama.start_time + size / ollama.disk_bytes_per_s))
        again = round(1e9 * (ollama.start_time + size / ollama.page_cache_bytes_per_s))
        return first, min(first, again) if size <= ollama.ram else first

    def step_time_model(self) -> StepTimeModel:
        placement, host, kv_type = self.placement, self.host, self.ollama.kv_cache_type
        if self.profile is not None:
            return self.profile.step_time_model()  # measured as it was loaded, layers in RAM included
        per_gpu = host.gpu_bytes or placement.gpu_bytes or 1
        whole = Roofline(
            as_read(self.spec, placement.file_bytes),
            self.gpu,
            pp=max(1, min(host.num_gpus, ceil(placement.gpu_bytes / per_gpu))),  # layers one after the other
            kv_cache_dtype="auto" if kv_type == "f16" else "fp8",
            async_scheduling=False,
        )
        if host.num_gpus and (placement.num_gpu_layers < placement.num_layers or self.ollama.kv_in_ram):
            return OffloadedModel(whole, self.split())
        return whole

    def split(self) -> Split:
        spec, placement, ollama = self.spec, self.placement, self.ollama
        in_ram = 1 - placement.gpu_share
        experts = sum(spec.layer(index).experts for index in range(spec.num_layers)) / spec.num_params
        return Split(
            gpu_share=placement.gpu_share,
            ram_weight_bytes=placement.file_bytes * in_ram * (1 - experts),
            ram_expert_bytes=placement.file_bytes * in_ram * experts,
            missed=1 - spec.num_experts_per_tok / spec.num_experts if spec.is_moe else 0.0,
            ram_params=spec.num_active_params * in_ram,
            ram_bytes_per_token=placement.bytes_per_token * (1.0 if ollama.kv_in_ram else in_ram),
            ram_bytes_per_s=ollama.ram_bytes_per_s,
            pcie_bytes_per_s=self.gpu.pcie_bytes_per_s,
        )

    def warnings(self, gpu: str) -> Iterator[str]:
        yield from self.placement.notes
        if self.profile is not None and self.profile.server.gpu.casefold() != gpu.casefold():
            yield (
                f"profile {self.profile.name} was measured with gpu {self.profile.server.gpu}; this server has {gpu}: "
                "its step times may differ"
            )


def _options(item: OllamaModel, ollama: Ollama, spec: ModelSpec, weights: str) -> Options:
    return Options(
        name=item.model,
        spec=spec,
        weights=weights,
        file_bytes=item.file_size or ollama.file_size,
        num_parallel=ollama.num_parallel,
        num_ctx=item.num_ctx or ollama.num_ctx or ollama.context_length or None,
        num_batch=item.num_batch or ollama.num_batch,
        num_gpu=item.num_gpu if item.num_gpu is not None else ollama.num_gpu,
        kv_type=ollama.kv_cache_type,
        kv_in_ram=ollama.kv_in_ram,
        flash_attention=ollama.flash_attention,
        embedding=item.embedding,
    )


def _settings(ollama: Ollama, rules: Rules, host: Host, models: tuple[ModelConfig, ...]) -> dict[str, Setting]:
    """Returns the environment as the server sees it."""
    placement = models[0].placement
    keep_alive = ollama.keep_alive
    return {
        "OLLAMA_NUM_PARALLEL": (placement.num_parallel, ollama.num_parallel is None),
        "OLLAMA_CONTEXT_LENGTH": (placement.num_ctx, not (ollama.context_length or ollama.num_ctx)),
        "OLLAMA_MAX_QUEUE": (
            rules.max_queue if ollama.max_queue is None else ollama.max_queue, ollama.max_queue is None,
        ),
        "OLLAMA_MAX_LOADED_MODELS": (
            ollama.max_loaded_models or host.max_loaded_models, not ollama.max_loaded_models,
        ),
        "OLLAMA_KEEP_ALIVE": ("5m" if keep_alive is None else str(keep_alive), keep_alive is None),
        "OLLAMA_KV_CACHE_TYPE": (ollama.kv_cache_type, ollama.kv_cache_type == "f16"),
        "num_batch": (placement.num_batch, ollama.num_batch is None),
        "queue_rule": (ollama.queue_rule or rules.queue, ollama.queue_rule is None),
    }  # fmt: skip
