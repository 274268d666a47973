"""The `ollama` section of a scenario's server: its environment variables, its models, and the machine it runs on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, WithJsonSchema, field_validator

from sim.engine.ollama.keep_alive import parse_keep_alive
from sim.engine.ollama.weights import check_weights
from sim.scenario.part import Part
from sim.scenario.units import Bytes, Duration

VERSION_PATTERN = r"^(v?\d+\.\d+(\.\d+)?([^\d.]\S*|\.\D\S*)?|(dev|main|nightly)\S*)$"


def quoted_version(version: Any) -> Any:
    """Refuses a version written as a number.

    Raises:
        ValueError: 0.30 is not 0.3.
    """
    if isinstance(version, int | float) and not isinstance(version, bool):
        raise ValueError(f'a version is text (0.30 is not 0.3); got {version}; put it in quotes, as in "0.32"')
    return version


def _checked_keep_alive(value: Any) -> Any:
    parse_keep_alive(value)
    return value


KeepAlive = Annotated[
    Any,
    BeforeValidator(_checked_keep_alive),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": r"^[+-]?(\d+|(\d+\.?\d*[a-zµ]+)+)$"}, {"type": "number"}]}),
]
"""A time as Ollama writes it: 5m, 1h30m, seconds, 0, -1."""

Weights = Annotated[str, AfterValidator(check_weights)]
"""A GGUF weight format, in any case."""


class ModelOptions(Part):
    """What may be set for one model; at the head of the `ollama` section, for all that do not set it themselves."""

    weights: Weights | None = Field(
        default=None, description="Format of the file: q4_K_M, q8_0, f16, … Default: what the name says, else q4_K_M."
    )
    num_ctx: int | None = Field(
        default=None, ge=4, description="Context of one slot, of the Modelfile or the requests. Default: the server's."
    )
    num_batch: int | None = Field(default=None, gt=0, description="Tokens of one batch. Default: by the release.")
    num_gpu: int | None = Field(
        default=None, ge=-1, description="Layers on the GPU, the output layer included. Default (or -1): all that fit."
    )
    keep_alive: KeepAlive | None = Field(
        default=None, description="How long the model stays loaded without requests: 5m (default), 0, -1 for ever, …"
    )
    file_size: Bytes | None = Field(default=None, description="Measured size of the file. Default: from the shape.")
    load_time: Duration | None = Field(
        default=None, description="Measured load, from the disk or not. Default: file size and disk speed."
    )
    profile: str | None = Field(
        default=None, min_length=1, description="What a batch costs: path of a fitted profile, or analytical."
    )


class OllamaModel(ModelOptions):
    """One of several models that an Ollama server is asked for."""

    model: str = Field(min_length=1, description="Ollama's name (qwen2.5:7b), Hugging Face's, or a config.json.")
    classes: Annotated[tuple[str, ...], Strict(False)] = Field(
        default=(), description="Request classes that ask for it; the first model gets all that no other one names."
    )
    embedding: bool = Field(default=False, description="Whether it makes embeddings: such a model gets one slot.")

    def files(self) -> tuple[str | None, str | None]:
        """Returns the names that may be files."""
        return self.model, self.profile


class Ollama(ModelOptions):
    """An Ollama server; names in capitals are its environment variables."""

    version: str = Field(
        default="0.33", pattern=VERSION_PATTERN, description="The release whose rules and defaults apply, quoted."
    )
    model: str | None = Field(
        default=None, min_length=1, description="Ollama's name of the model (qwen2.5:7b). Default: server.model."
    )
    models: Annotated[tuple[OllamaModel, ...], Strict(False)] = Field(
        default=(), description="Several models, where classes of requests ask for different ones."
    )
    num_parallel: int | None = Field(
        default=None, ge=0, description="OLLAMA_NUM_PARALLEL, slots of each model. Default: 1, automatic before 0.10."
    )
    max_queue: int | None = Field(default=None, ge=0, description="OLLAMA_MAX_QUEUE. Default: 512.")
    max_loaded_models: int | None = Field(
        default=None, ge=0, description="OLLAMA_MAX_LOADED_MODELS. Default (or 0): three for each GPU."
    )
    context_length: int | None = Field(
        default=None, ge=0, description="OLLAMA_CONTEXT_LENGTH. Default (or 0): by the release and the GPUs' memory."
    )
    kv_cache_type: Literal["f16", "q8_0", "q4_0"] = Field(
        default="f16", description="OLLAMA_KV_CACHE_TYPE: q8_0 takes about half of the memory, q4_0 a quarter."
    )
    kv_in_ram: bool = Field(default=False, description="Keep the context of all layers in the host's memory.")
    flash_attention: bool = Field(default=True, description="OLLAMA_FLASH_ATTENTION.")
    multiuser_cache: bool = Field(
        default=False, description="OLLAMA_MULTIUSER_CACHE, before 0.30: a prefix of any slot is copied."
    )
    num_keep: int = Field(default=4, ge=0, description="Tokens that truncation and context shift leave in front.")
    shift: bool = Field(
        default=True, description="Shift a full context; else too long a prompt is answered 400 and answers end there."
    )
    queue_rule: Literal["faq", "source"] | None = Field(
        default=None,
        description="While a model loads, requests for loaded ones wait too (faq: the documentation, and releases "
        "before 0.11.5), or go on (source). Default: by the release.",
    )
    warm: bool = Field(
        default=True, description="The run finds as many models loaded as fit, in their order; else none."
    )
    ram: Bytes = Field(default=32 * 2**30, description="Memory of the host that models may take.")
    ram_bytes_per_s: Bytes = Field(default=60 * 10**9, description="Bandwidth of the host's memory, per second.")
    disk_bytes_per_s: Bytes = Field(default=2 * 10**9, description="Speed of the disk that models are loaded from.")
    page_cache_bytes_per_s: Bytes = Field(
        default=6 * 10**9, description="Speed of loading a file that the host still has in its memory."
    )
    start_time: Duration = Field(default=1.0, description="Part of a load that does not depend on the file's size.")

    @field_validator("version", mode="before")
    @classmethod
    def _quoted(cls, version: Any) -> Any:
        return quoted_version(version)


class StaticBatching(Part):
    """A server that fills a batch, computes it to the end of its longest answer, and then takes the next one."""

    batch_size: int = Field(default=8, gt=0, description="Most requests of a batch.")
    max_wait: Duration = Field(
        default=0.1, description="How long the first request of a batch waits for others, while nothing is computed."
    )
    reservation: Literal["max_length", "pow2", "exact", "blocks"] = Field(
        default="max_length",
        description="KV memory of a request: max_model_len at once (contiguous), its prompt and the next power of two "
        "of its answer, exactly what it will need (an oracle), or blocks as they are filled (paged).",
    )
    padding: bool = Field(default=True, description="Prompts are padded to the longest of their batch.")
    streaming: bool = Field(
        default=True, description="Tokens go out as they are made; else an answer goes out when its batch is done."
    )
