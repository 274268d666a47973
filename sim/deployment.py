"""From a scenario's server to an engine that can run: memory, flags, KV blocks, step times, admission limits."""

from __future__ import annotations

from dataclasses import dataclass

from sim.api_server import AdmissionLimits
from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.kv_cache_interface import SlidingWindowSpec
from sim.engine.conditions import fitted_at_clock, gpu_at_clock
from sim.engine.profile import Profile, for_server, load_profile, profile_mismatches
from sim.engine.roofline import Roofline
from sim.engine.step_time import ClientLatency, StepTimeModel
from sim.errors import UserError
from sim.hardware import Gpu, find_gpu
from sim.memory import (
    MemoryBudget,
    ResolvedFlags,
    memory_budget,
    request_never_fits,
)
from sim.memory.version import parse_version
from sim.models import ModelSpec, find_model
from sim.ollama_deployment import OllamaDeployment, plan_ollama
from sim.records import RunRecord
from sim.scenario.model import Scenario, Server
from sim.server_spec import server_spec
from sim.workload.client import Workload

MAX_TOKENS_CUT = (0, 32, 0)
"""max_tokens is cut to what the context leaves: 0.20 still answers 400 (issue 42474), 0.32 cuts (its source)."""

SPARSE_RETENTION = (0, 32, 0)
"""Sliding-window groups cache only the tails that hits can end at (0.32's source); before, every block."""

STAGGERED_PIPELINES = (0, 32, 0)
"""Asynchronous pipelines of n stages: a request gets a token in every n-th step (0.32's source)."""

ANALYTICAL = "analytical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One server, ready to be simulated.

    Attributes:
        model: what is served.
        gpu: on what.
        flags: every flag with its value.
        memory: the budget that decides the number of KV blocks.
        scheduler_config: the scheduler's flags.
        cache_config: the KV blocks.
        limits: what the API refuses.
        latency: time outside the engine.
        profile: the fitted profile, or None for the analytical model.
        warnings: what the reader of any result must know.
    """

    model: ModelSpec
    gpu: Gpu
    flags: ResolvedFlags
    memory: MemoryBudget
    scheduler_config: SchedulerConfig
    cache_config: CacheConfig
    limits: AdmissionLimits
    latency: ClientLatency
    profile: Profile | None
    warnings: tuple[str, ...]
    server: Server

    def step_time_model(self) -> StepTimeModel:
        """Returns a fresh model of what steps cost: it remembers how far out of range it was asked."""
        clock_factor = self.server.clock_factor
        if self.profile is not None:
            model = self.profile.step_time_model(self.flags.async_scheduling)
            return model if clock_factor == 1 else fitted_at_clock(model, clock_factor)
        return Roofline(
            self.model,
            gpu_at_clock(self.gpu, clock_factor),
            tp=self.server.tensor_parallel_size,
            pp=self.server.pipeline_parallel_size,
            expert_ranks=self.server.data_parallel_size if self.flags.enable_expert_parallel else 1,
            dtype=self.flags.dtype,
            kv_cache_dtype=self.flags.kv_cache_dtype,
            quantization=self.flags.quantization,
            interconnect=self.server.interconnect,
            enforce_eager=self.flags.enforce_eager,
            async_scheduling=self.flags.async_scheduling,
        )


AnyDeployment = Deployment | OllamaDeployment


def plan(scenario: Scenario, profile: Profile | None = None) -> Deployment:
    """Works out a scenario's server.

    Args:
        scenario: the server is in it.
        profile: its step times in place of those that the scenario names.

    Raises:
        UserError: vLLM would refuse to start it, or something is named that is not known.
    """
    server = scenario.server
    model, gpu = find_model(_model_path(scenario)), find_gpu(server.gpu)
    if in_lockstep(server, model) and not server.flags.enable_expert_parallel:
        raise UserError(
            "server.data_parallel_size: of a mixture of experts it is simulated with expert parallelism alone; set "
            "enable_expert_parallel, or server.replicas for independent servers"
        )
    memory = memory_budget(model, gpu, server_spec(server))
    if memory.refusal is not None:
        raise UserError(f"server: vLLM would not start: {memory.refusal}")
    if profile is None and server.profile != ANALYTICAL:
        profile = load_profile(_profile_path(scenario))
    warnings = list(memory.warnings)
    block_sizes = sorted({group.block_size for group in memory.kv_groups if group.kind != "state"})
    if len(block_sizes) > 1:
        warnings.append(
            f"KV cache groups of {' and '.join(map(str, block_sizes))} tokens a block are simulated with "
            f"{memory.block_size}: KV use is overstated"
        )
    if profile is not None:
        warnings += profile_mismatches(profile, server)
        profile = for_server(profile, server)
    warnings += _conditions(server, model)
    scheduler_config = _scheduler_config(memory, server, _num_stages(server, model))
    cache_config = _cache_config(memory, server)
    return Deployment(
        model=model,
        gpu=gpu,
        flags=memory.flags,
        memory=memory,
        scheduler_config=scheduler_config,
        cache_config=cache_config,
        limits=_limits(memory, server, scheduler_config, cache_config),
        latency=ClientLatency() if profile is None else profile.latency(),
        profile=profile,
        warnings=tuple(warnings),
        server=server,
    )


def _conditions(server: Server, model: ModelSpec) -> list[str]:
    """Says where the step times are those of GPUs that nobody has measured, or not all is simulated."""
    said = []
    if _num_stages(server, model) < server.pipeline_parallel_size:
        said.append(
            "pipeline_parallel_size: stages of ranks that step together are simulated with one batch at a time: "
            "throughput is understated"
        )
    if server.clock_factor < 1:
        said.append(
            f"clock_factor {server.clock_factor:g}: the step times' terms of computing are divided by it, those of "
            "reading memory are not; a scaling, not a measurement"
        )
    if server.slow_gpus:
        said.append(
            "slow_gpus: what the slow GPU computes and reads is multiplied by its factor, and the others wait for it; "
            "a scaling, not a measurement"
        )
    return said


def plan_server(scenario: Scenario) -> AnyDeployment:
    """Works out a scenario's server of any kind; one with static batches has vLLM's memory.

    Raises:
        UserError: it would not start, or something is named that is not known.
    """
    return plan_ollama(scenario) if scenario.server.kind == "ollama" else plan(scenario)


def new_run(
    workload: Workload, scheduler_config: SchedulerConfig, cache_config: CacheConfig, *, calibrated: bool
) -> RunRecord:
    """Returns the empty record of a run on one engine."""
    return RunRecord(
        class_names=workload.class_names,
        num_gpu_blocks=cache_config.num_gpu_blocks,
        block_size=cache_config.block_size,
        max_num_seqs=scheduler_config.num_seats,
        max_num_batched_tokens=scheduler_config.max_num_batched_tokens,
        num_replicas=1,
        calibrated=calibrated,
    )


def _model_path(scenario: Scenario) -> str:
    """Returns the model's name, or the path of its config.json seen from the scenario's folder."""
    name = scenario.server.model
    return str(scenario.resolve(name)) if name.endswith(".json") or name.startswith((".", "/")) else name


def _profile_path(scenario: Scenario) -> str:
    name = scenario.server.profile
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    return str(scenario.resolve(name)) if is_path else name


def in_lockstep(server: Server, model: ModelSpec) -> bool:
    """Returns whether the engines of a server share every forward pass: data-parallel ranks of a mixture of experts."""
    return server.data_parallel_size > 1 and model.is_moe


def _num_stages(server: Server, model: ModelSpec) -> int:
    """Returns the stages that work on a batch each; ranks that step together are simulated with one batch at a time."""
    return 1 if in_lockstep(server, model) else server.pipeline_parallel_size


def _scheduler_config(memory: MemoryBudget, server: Server, num_stages: int) -> SchedulerConfig:
    flags = memory.flags
    # Before, a request was in one batch at a time, asynchronous or not (PR 32359): the rule of synchronous pipelines.
    looks_ahead = num_stages == 1 or parse_version(server.version) >= STAGGERED_PIPELINES
    return SchedulerConfig(
        max_num_seqs=memory.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_model_len=flags.max_model_len,
        enable_chunked_prefill=flags.enable_chunked_prefill,
        long_prefill_token_threshold=flags.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=flags.long_prefill_token_threshold_adaptive,
        policy=flags.scheduling_policy,
        async_scheduling=flags.async_scheduling and looks_ahead,
        pipeline_parallel_size=num_stages,
        max_num_active_seqs=flags.max_num_active_seqs,
        watermark=flags.watermark,
        scheduler_reserve_full_isl=flags.scheduler_reserve_full_isl,
    )


def _cache_config(memory: MemoryBudget, server: Server) -> CacheConfig:
    sparse = parse_version(server.version) >= SPARSE_RETENTION
    return CacheConfig(
        num_gpu_blocks=memory.num_gpu_blocks,
        block_size=memory.block_size,
        enable_prefix_caching=memory.flags.enable_prefix_caching,
        kv_cache_groups=memory.kv_cache_groups,
        prefix_cache_retention_interval=0 if sparse else None,
    )


def _limits(
    memory: MemoryBudget, server: Server, scheduler_config: SchedulerConfig, cache_config: CacheConfig
) -> AdmissionLimits:
    flags = memory.flags
    return AdmissionLimits(
        max_model_len=flags.max_model_len,
        refuse_sum=parse_version(server.version) < MAX_TOKENS_CUT,
        max_num_queued_reqs=flags.max_num_queued_reqs,
        max_num_queued_tokens=flags.max_num_queued_tokens,
        max_request_tokens=_longest_request(memory, scheduler_config, cache_config),
    )


def _longest_request(memory: MemoryBudget, scheduler_config: SchedulerConfig, cache_config: CacheConfig) -> int | None:
    """Returns the most tokens of a request that the scheduler can ever admit; None: all up to max_model_len.

    The check at the start is another one: gemma-4-31B on 0.19.1 starts with 1.53 x 262,144 tokens, and its scheduler
    holds a prompt of 60,000 for ever, since admission counted the whole prompt in every group. Where blocks of several
    sizes are simulated as one, the simulated pool may hold less than the real one, and that counts too.
    """
    block_size, most = cache_config.block_size, scheduler_config.max_in_flight_tokens
    max_model_len = scheduler_config.max_model_len
    windows = [spec for spec in cache_config.kv_cache_groups if isinstance(spec, SlidingWindowSpec)]
    caps = [spec.max_admission_blocks_per_request(most, max_model_len, block_size) for spec in windows]

    def never_fits(num_tokens: int) -> bool:
        num_places = -(-num_tokens // block_size)
        num_full = num_places * (len(cache_config.kv_cache_groups) - len(windows))
        num_blocks = num_full + sum(min(num_places, cap) for cap in caps)
        return request_never_fits(num_tokens, memory) or num_blocks > cache_config.num_gpu_blocks - 1

    admitted, refused = 0, memory.flags.max_model_len
    if not never_fits(refused):
        return None
    while refused - admitted > 1:
        middle = (admitted + refused) // 2
        if never_fits(middle):
            refused = middle
        else:
            admitted = middle
    return admitted
