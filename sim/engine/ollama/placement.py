"""Where a model goes when it is loaded: its context, its batch, its layers on the GPU and those in the host's memory.

    file (weights)            context product               buffers
    ├── layers on the GPU ──┤ num_ctx x num_parallel x      CUDA context, compute buffers
    └── layers in RAM ──────┘ bytes a token, with its layer

A model that is loaded beside others has to fit whole; only one that is loaded alone may leave layers in RAM. Ollama
hands the split itself to llama-server since 0.30, which puts on the GPU as many layers as fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.engine.ollama.gguf import context_bytes_per_token, file_bytes, predicted_bytes_per_token
from sim.engine.ollama.rules import DEFAULT_NUM_BATCH, GIB, MODELS_PER_GPU, ONE_SLOT_FAMILIES, Rules
from sim.errors import UserError
from sim.models import ModelSpec

BUFFER_BYTES = 0.6 * GIB
"""CUDA context and compute buffers of one runner on one GPU. An assumption; logs show 0.4 to 1 GiB."""

_BATCHES: tuple[tuple[int, int, float, float], ...] = ((32_768, 2048, 0.60, 2 * GIB), (4_096, 1024, 0.75, 0.75 * GIB))
"""Automatic num_batch (sched.go): context above, batch, share of the free memory it may predict, bytes to spare."""

_SMALL_CARD_BYTES = 8 * GIB
_SMALL_CARD_BATCH = 256


@dataclass(frozen=True, slots=True)
class Host:
    """The machine.

    Attributes:
        gpu_bytes: memory of one GPU; 0: no GPU.
        num_gpus: how many.
        ram_bytes: memory of the host that models may take.
    """

    gpu_bytes: float
    num_gpus: int
    ram_bytes: float

    @property
    def total_bytes(self) -> float:
        """Memory of all GPUs together."""
        return self.gpu_bytes * self.num_gpus

    @property
    def max_loaded_models(self) -> int:
        """OLLAMA_MAX_LOADED_MODELS where it is not set."""
        return MODELS_PER_GPU * max(self.num_gpus, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked of a model: by the environment, its Modelfile or the request. None: automatic.

    Attributes:
        name: what requests call it.
        spec: its shape.
        weights: format of the file.
        file_bytes: measured size of the file; None: from the shape.
        num_parallel: OLLAMA_NUM_PARALLEL.
        num_ctx: context of one slot.
        num_batch: tokens of one batch.
        num_gpu: layers on the GPU.
        kv_type: OLLAMA_KV_CACHE_TYPE.
        kv_in_ram: the context of all layers stays in RAM (`--no-kv-offload`).
        flash_attention: whether it is on.
        embedding: the model makes embeddings.
    """

    name: str
    spec: ModelSpec
    weights: str
    file_bytes: float | None = None
    num_parallel: int | None = None
    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    kv_type: str = "f16"
    kv_in_ram: bool = False
    flash_attention: bool = True
    embedding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A model as it is loaded, alone on the machine.

    Attributes:
        num_parallel: slots.
        num_ctx: context of one slot.
        num_batch: tokens of one batch.
        file_bytes: weights.
        context_bytes: the context product: num_parallel x num_ctx x bytes a token.
        bytes_per_token: of that.
        predicted_bytes: what Ollama's fit test takes the model for.
        gpu_bytes: what it takes of the GPUs.
        ram_bytes: what it takes of the host's memory.
        num_layers: all layers, the output layer included.
        num_gpu_layers: those on the GPU.
        notes: what the reader of a result should know.
    """

    num_parallel: int
    num_ctx: int
    num_batch: int
    file_bytes: float
    context_bytes: float
    bytes_per_token: float
    predicted_bytes: float
    gpu_bytes: float
    ram_bytes: float
    num_layers: int
    num_gpu_layers: int
    notes: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[int, int, int, int]:
        """What requests may ask for differently: another value needs another load (sched.go: needsReload)."""
        return self.num_parallel, self.num_ctx, self.num_batch, self.num_gpu_layers

    @property
    def gpu_share(self) -> float:
        """Share of the layers on the GPU."""
        return self.num_gpu_layers / self.num_layers


def place(options: Options, host: Host, rules: Rules) -> Placement:
    """Returns how a model is loaded when nothing else is.

    Raises:
        UserError: it does not fit in GPU and host memory together, or the layers asked for do not fit on the GPU.
    """
    parallel, num_ctx, notes = _context(options, host, rules)
    size = _Size.of(options, parallel, num_ctx)
    layers = _layers_on_gpu(options, host, size)
    on_gpu = layers / size.num_layers
    kv_on_gpu = 0.0 if options.kv_in_ram else on_gpu
    gpu_bytes = size.file * on_gpu + size.context * kv_on_gpu + (BUFFER_BYTES if layers else 0)
    ram_bytes = size.file * (1 - on_gpu) + size.context * (1 - kv_on_gpu)
    if ram_bytes > host.ram_bytes or gpu_bytes > host.total_bytes:
        raise _does_not_fit(options, host, size, asked=f"{parallel} slots of {num_ctx:,} tokens")
    if host.num_gpus and layers < size.num_layers:
        notes += (
            f"{options.name}: {layers} of {size.num_layers} layers on the GPU, the rest in the host's memory: "
            f"{ram_bytes / GIB:.1f} GiB of weights and context are read at its speed, and throughput collapses",
        )
    elif options.kv_in_ram:
        notes += (f"{options.name}: its context of {size.context / GIB:.1f} GiB is in the host's memory",)
    return Placement(
        num_parallel=parallel,
        num_ctx=num_ctx,
        num_batch=_num_batch(options, host, rules, size, parallel * num_ctx),
        file_bytes=size.file,
        context_bytes=size.context,
        bytes_per_token=size.per_token,
        predicted_bytes=size.predicted,
        gpu_bytes=gpu_bytes,
        ram_bytes=ram_bytes,
        num_layers=size.num_layers,
        num_gpu_layers=layers,
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class _Size:
    """The bytes of a model with its context."""

    file: float
    context: float
    per_token: float
    predicted: float
    num_layers: int

    @classmethod
    def of(cls, options: Options, parallel: int, num_ctx: int) -> _Size:
        spec = options.spec
        file = options.file_bytes if options.file_bytes is not None else file_bytes(spec, options.weights)
        per_token = context_bytes_per_token(spec, options.kv_type)
        trained = min(num_ctx, spec.max_position_embeddings)
        predicted = file + predicted_bytes_per_token(spec) * trained * parallel
        return cls(file, per_token * num_ctx * parallel, per_token, predicted, spec.num_layers + 1)

    @property
    def whole(self) -> float:
        """All of it on a GPU."""
        return self.file + self.context + BUFFER_BYTES


def _context(options: Options, host: Host, rules: Rules) -> tuple[int, int, tuple[str, ...]]:
    """Returns slots and context of a slot, and what was cut to make them fit."""
    parallel = rules.num_parallel if options.num_parallel is None else options.num_parallel
    notes: tuple[str, ...] = ()
    if options.embedding or ONE_SLOT_FAMILIES.search(options.spec.name.lower()):
        if parallel > 1:
            why = "an embedding model" if options.embedding else "a model of its family"
            notes = (f"{options.name}: {why} always gets one slot; num_parallel {parallel} has no effect",)
        parallel = 1
    num_ctx = options.num_ctx or min(
        rules.automatic_context(host.total_bytes), options.spec.max_position_embeddings
    )  # fmt: skip
    if parallel == 0 and rules.num_parallel:
        parallel = 1  # since 0.10 there is no automatic number
    if parallel == 0:  # automatic: several slots where they fit, else one
        parallel = rules.automatic_parallel
        if _Size.of(options, parallel, num_ctx).whole > host.total_bytes:
            parallel = 1
    while options.num_ctx is None and _Size.of(options, parallel, num_ctx).whole > host.total_bytes:
        smaller = rules.smaller_context(num_ctx)
        if smaller is None:
            break
        notes = (f"{options.name}: the automatic context of {num_ctx:,} tokens does not fit; {smaller:,} instead",)
        num_ctx = smaller
    return parallel, num_ctx, notes


def _layers_on_gpu(options: Options, host: Host, size: _Size) -> int:
    if not host.num_gpus:
        return 0
    if options.num_gpu is not None and options.num_gpu >= 0:
        return min(options.num_gpu, size.num_layers)
    context = 0.0 if options.kv_in_ram else size.context
    free = host.total_bytes - BUFFER_BYTES * _gpus_needed(size, host)
    return max(0, min(size.num_layers, int(free / ((size.file + context) / size.num_layers))))


def _gpus_needed(size: _Size, host: Host) -> int:
    return 1 if size.whole <= host.gpu_bytes else host.num_gpus


def _does_not_fit(options: Options, host: Host, size: _Size, asked: str) -> UserError:
    where = f"{host.total_bytes / GIB:.1f} GiB of GPU memory"
    if options.num_gpu is None or options.num_gpu < 0:
        where += f" and {host.ram_bytes / GIB:.1f} GiB of RAM"
    else:
        where += f", with {options.num_gpu} layers there (num_gpu)"
    return UserError(
        f"ollama.num_parallel: {asked} do not fit: {options.name} takes {size.file / GIB:.1f} GiB of weights and "
        f"{size.context / GIB:.1f} GiB of context ({size.per_token:,.0f} bytes a token) of {where}; lower num_parallel "
        "or num_ctx, or set kv_cache_type to q8_0"
    )


def _num_batch(options: Options, host: Host, rules: Rules, size: _Size, num_context: int) -> int:
    """Returns the tokens of one batch; it never exceeds the context of all slots."""
    if options.num_batch is not None:
        return min(options.num_batch, num_context)
    batch = DEFAULT_NUM_BATCH
    if rules.automatic_batch:
        free = host.total_bytes
        if 0 < host.gpu_bytes <= _SMALL_CARD_BYTES and not options.flash_attention:
            batch = _SMALL_CARD_BATCH
        else:
            for context, larger, share, spare in _BATCHES:
                if num_context > context and size.predicted <= share * free and free - size.predicted >= spare:
                    batch = larger
                    break
    return min(batch, num_context)
