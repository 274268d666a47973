"""What fits: the context product, automatic contexts and batches, layers in the host's memory."""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine.ollama.gguf import as_read, file_bytes, find_gguf
from sim.engine.ollama.keep_alive import parse_keep_alive
from sim.engine.ollama.offload import OffloadedModel, Split
from sim.engine.ollama.placement import Host, Options, Placement, place
from sim.engine.ollama.rules import Rules, rules_for
from sim.engine.recorded import LinearCost
from sim.engine.roofline import Roofline
from sim.engine.step_time import Batch
from sim.errors import UserError
from sim.hardware import find_gpu

GIB = 2**30
LATEST = rules_for("0.33")


def card(gib: float, num_gpus: int = 1, ram: float = 64) -> Host:
    return Host(gib * GIB, num_gpus, ram * GIB)


def placed(
    name: str = "llama3.1:8b", host: Host | None = None, rules: Rules = LATEST, weights: str = "q4_k_m", **options: Any
) -> Placement:
    return place(Options(name=name, spec=find_gguf(name)[0], weights=weights, **options), host or card(24), rules)


# ---- the context product ----


def test_the_context_is_num_ctx_times_num_parallel() -> None:
    """The documentation's example: 2K of context with 4 parallel requests is an 8K context."""
    placement = placed(num_ctx=2048, num_parallel=4)
    assert placement.num_ctx * placement.num_parallel == 8192
    # Llama-3.1-8B: 32 layers x 2 x 8 heads x 128 x 2 bytes.
    assert placement.bytes_per_token == 131_072
    assert placement.context_bytes == 8192 * 131_072 == 1 * GIB


@pytest.mark.parametrize(("kv_type", "part"), [("f16", 1.0), ("q8_0", 0.53), ("q4_0", 0.28)])
def test_a_quantized_context_takes_a_half_or_a_quarter(kv_type: str, part: float) -> None:
    assert placed(num_ctx=8192, kv_type=kv_type).context_bytes == pytest.approx(part * GIB, rel=0.01)


@pytest.mark.parametrize(
    ("version", "gib", "num_ctx"),
    [
        ("0.5.13", 24, 2048), ("0.6", 24, 4096), ("0.15.4", 80, 4096),
        ("0.15.5", 22.9, 4096), ("0.15.5", 23, 32_768), ("0.33", 46.9, 32_768), ("0.33", 47, 131_072),
    ],
)  # fmt: skip
def test_the_automatic_context_is_that_of_the_release_and_the_memory(version: str, gib: float, num_ctx: int) -> None:
    """47 GiB and more give 262,144, of which Llama-3.1 knows 131,072."""
    assert placed(host=card(gib), rules=rules_for(version)).num_ctx == num_ctx


def test_an_automatic_context_that_does_not_fit_is_reduced_by_a_tier() -> None:
    """23 GiB with 8 slots of 32,768: 32 GiB of context."""
    placement = placed(host=card(24), num_parallel=8)
    assert placement.num_ctx == 4096
    assert placement.notes == ("llama3.1:8b: the automatic context of 32,768 tokens does not fit; 4,096 instead",)


@pytest.mark.parametrize(
    ("version", "gib", "num_parallel"),
    [("0.33", 24, 1), ("0.10.0", 24, 1), ("0.9.7-rc0", 24, 1), ("0.9.6", 24, 2), ("0.5.0", 24, 4), ("0.5.0", 5.5, 1)],
)
def test_num_parallel_where_it_is_not_set(version: str, gib: float, num_parallel: int) -> None:
    """1 since 0.9.7; before, several where they fit (here 8,192 tokens: 1 GiB, into 5.5 with 4.6 of weights)."""
    assert placed(host=card(gib), rules=rules_for(version)).num_parallel == num_parallel


def test_embedding_models_and_some_families_get_one_slot() -> None:
    assert placed(num_parallel=4, embedding=True).num_parallel == 1
    placement = placed("qwen3-next-80b-a3b", card(80), num_parallel=4)
    assert placement.num_parallel == 1
    assert placement.notes == (
        "qwen3-next-80b-a3b: a model of its family always gets one slot; num_parallel 4 has no effect",
    )


def test_zero_slots_are_one_since_there_is_no_automatic_number() -> None:
    assert placed(num_parallel=0).num_parallel == 1
    assert placed(num_parallel=0, rules=rules_for("0.9.6")).num_parallel == 2


# ---- num_batch ----


@pytest.mark.parametrize(
    ("num_ctx", "gib", "num_batch"),
    [
        (4096, 24, 512), (4097, 24, 1024), (32_768, 24, 1024), (32_769, 24, 2048),
        (32_769, 14, 1024),  # 8.6 GiB predicted: more than 60 % of 14
        (16_384, 8, 512),  # 6.6 GiB predicted: more than 75 % of 8
    ],
)  # fmt: skip
def test_the_automatic_batch_grows_with_the_context_where_memory_allows(
    num_ctx: int, gib: float, num_batch: int
) -> None:
    assert placed(host=card(gib), num_ctx=num_ctx).num_batch == num_batch


def test_small_cards_without_flash_attention_and_older_releases() -> None:
    assert placed(host=card(8), num_ctx=4096, flash_attention=False).num_batch == 256
    assert placed(rules=rules_for("0.20"), num_ctx=65_536).num_batch == 512
    assert placed(rules=rules_for("0.20"), num_ctx=256).num_batch == 256


# ---- GPU and RAM ----


def test_what_does_not_fit_on_the_gpu_goes_to_ram_layer_by_layer_with_its_context() -> None:
    whole, half = placed(host=card(24), num_ctx=8192), placed(host=card(4), num_ctx=8192)
    assert (whole.num_gpu_layers, whole.ram_bytes) == (33, 0)
    assert 0 < half.num_gpu_layers < 33
    assert half.gpu_bytes <= 4 * GIB
    assert half.gpu_bytes + half.ram_bytes == pytest.approx(whole.gpu_bytes)
    assert "layers on the GPU, the rest in the host's memory" in half.notes[0]


def test_more_slots_push_layers_off_the_gpu() -> None:
    layers = [placed(host=card(8), num_ctx=8192, num_parallel=n).num_gpu_layers for n in (1, 2, 4, 8)]
    assert layers == sorted(layers, reverse=True)
    assert layers[0] == 33
    assert layers[-1] < 20


def test_layers_may_be_set() -> None:
    assert placed(num_gpu=10).num_gpu_layers == 10
    assert placed(num_gpu=0).ram_bytes > 4 * GIB
    assert placed(num_gpu=-1).num_gpu_layers == 33


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        placed(host=card(8, ram=16), num_ctx=131_072, num_parallel=8)
    assert str(caught.value) == (
        "ollama.num_parallel: 8 slots of 131,072 tokens do not fit: llama3.1:8b takes 4.6 GiB of weights and 128.0 GiB "
        "of context (131,072 bytes a token) of 8.0 GiB of GPU memory and 16.0 GiB of RAM; lower num_parallel or "
        "num_ctx, or set kv_cache_type to q8_0"
    )
    with pytest.raises(UserError, match=r"of 4\.0 GiB of GPU memory, with 33 layers there \(num_gpu\)"):
        placed(host=card(4), num_ctx=8192, num_gpu=33)


def test_throughput_collapses_with_the_share_in_ram() -> None:
    """A desktop's memory is 15 times slower than the card's: five percent in RAM cost a third of the speed."""
    spec, size = find_gguf("qwen2.5:14b")[0], file_bytes(find_gguf("qwen2.5:14b")[0], "q4_k_m")
    whole = Roofline(as_read(spec, size), find_gpu("rtx-3090"), async_scheduling=False)

    def speed(in_ram: float) -> float:
        split = Split(1 - in_ram, size * in_ram, 0, 0, spec.num_params * in_ram, 0, pcie_bytes_per_s=31.5e9)
        return 1e9 / OffloadedModel(whole, split).step_time(Batch.of([1000]))

    speeds = [speed(share) for share in (0.0, 0.05, 0.1, 0.5, 1.0)]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[1] < 0.75 * speeds[0]
    assert speeds[2] < 0.6 * speeds[0]
    assert speeds[4] == pytest.approx(60e9 / size, rel=0.05)


def test_a_context_in_ram_is_read_from_there() -> None:
    split = Split(1.0, 0, 0, 0, 0, ram_bytes_per_token=131_072)
    price = OffloadedModel(LinearCost(10_000), split).step_time
    assert price(Batch.of([0])) == 10_000_000
    assert price(Batch.of([100_000])) - 10_000_000 == pytest.approx(100_000 * 131_072 / 60)


def test_large_batches_are_computed_on_the_gpu() -> None:
    """A prompt of 512 tokens copies the weights over PCIe rather than compute on the CPU."""
    split = Split(0.0, 4e9, 0, 0, 8e9, 0, pcie_bytes_per_s=32e9)
    price = OffloadedModel(LinearCost(10_000), split).step_time
    assert price(Batch.of(chunks=[(512, 0)])) == pytest.approx(4e9 / 32 + 10e6)
    assert price(Batch.of(chunks=[(16, 0)])) == pytest.approx(2 * 8e9 * 16 / 1e12 * 1e9)


# ---- names and files ----


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("qwen2.5:7b", 4.7), ("qwen2.5:14b", 9.0), ("llama3.1:8b", 4.9), ("llama3.2:3b", 2.0), ("llama3.1:70b", 43),
        ("llama3.2:1b-instruct-q8_0", 1.3), ("llama3.1:8b-instruct-fp16", 16), ("mistral:7b", 4.4), ("phi4", 9.1),
        ("gpt-oss:20b", 14), ("gpt-oss:120b", 65), ("qwen3:30b", 19), ("deepseek-r1:14b", 9.0),
    ],
)  # fmt: skip
def test_files_are_as_large_as_in_the_library(name: str, gigabytes: float) -> None:
    spec, stated = find_gguf(name)
    weights = stated or ("mxfp4" if spec.quantization is not None else "q4_k_m")
    assert file_bytes(spec, weights) / 1e9 == pytest.approx(gigabytes, rel=0.05)


def test_names_of_hugging_face_are_understood_too() -> None:
    assert find_gguf("Qwen/Qwen2.5-7B-Instruct-AWQ")[0].quantization is None
    assert find_gguf("llama3.2:latest".replace("latest", "3b-instruct-q4_K_M"))[1] == "q4_k_m"


def test_an_unknown_model_names_its_neighbours() -> None:
    with pytest.raises(UserError, match=r"^model 'qwen2\.5:8b' not found: .*did you mean"):
        find_gguf("qwen2.5:8b")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("1h30m", 5400), ("24h", 86_400), (300, 300), ("300", 300), (0, 0), ("0", 0), ("1.5h", 5400)],
)
def test_keep_alives_are_gos_durations_or_seconds(text: str | int, seconds: int) -> None:
    assert parse_keep_alive(text) == seconds * 10**9


@pytest.mark.parametrize("text", [-1, "-1", "-1m", "-5s"])
def test_negative_is_for_ever(text: str | int) -> None:
    assert parse_keep_alive(text) is None


@pytest.mark.parametrize("text", ["", "5 minutes", "forever", "5m30", "m", True, None, [5]])
def test_a_keep_alive_that_cannot_be_parsed(text: Any) -> None:
    with pytest.raises(ValueError, match="a keep-alive is a time such as 5m"):
        parse_keep_alive(text)


def test_what_each_release_does() -> None:
    assert (rules_for("0.11.4").queue, rules_for("v0.11.5-rc2").queue) == ("faq", "source")
    assert (rules_for("0.24.3").batching, rules_for("0.30.0").batching) == ("round_robin", "decode_first")
    assert (rules_for("0.33.2").tells_cached, rules_for("0.33.3").tells_cached) == (False, True)
    assert (rules_for("0.1.33").max_queue, rules_for("0.1.34").max_queue) == (10, 512)
    assert (rules_for("0.24").fit_share, rules_for("dev").fit_share) == (1.0, 0.8)
    assert Host(0, 0, 0).max_loaded_models == Host(GIB, 1, 0).max_loaded_models == 3
    assert Host(GIB, 2, 0).max_loaded_models == 6
