"""Every shape of the table has the published number of parameters and the published KV bytes per token."""

from __future__ import annotations

import pytest

from sim.models import find_model, model_names
from sim.models.table import MODELS

# Totals of the safetensors metadata on Hugging Face, a tied embedding counted once; Gemma 4: 30.7 and 25.2 billion (and
# a vision tower of 0.55) from the model cards.
PUBLISHED = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-72b": 73_410_777_344,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "codellama-7b": 6_738_546_688,
    "tinyllama-1.1b": 1_100_048_384,
    "yi-34b": 34_388_917_248,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.2": 7_241_732_096,
    "mistral-7b": 7_248_023_552,
    "mistral-nemo": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mistral-small-3.1-24b": 24_011_361_280,
    "mistral-large-2407": 122_610_069_504,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-3-mini-128k": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 4_300_079_472,
    "gemma-3-12b": 12_187_325_040,
    "gemma-3-27b": 27_432_406_640,
    "gemma-4-31b": 31_250_000_000,
    "gemma-4-26b-a4b": 25_750_000_000,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_has_the_published_number_of_parameters(name: str) -> None:
    assert find_model(name).num_params == pytest.approx(PUBLISHED[name], rel=0.01)


def test_every_row_of_the_table_is_among_them() -> None:
    assert set(MODELS) <= set(PUBLISHED)


def test_every_name_of_the_table_is_found() -> None:
    for name in model_names():
        model = find_model(name)
        assert model.name == name
        assert len(model.kinds) == model.num_layers
        assert model.num_full_layers + model.num_sliding_layers + model.num_state_layers == model.num_layers
        assert model.num_attention_heads % model.num_kv_heads == 0


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22),
        ("mixtral-8x7b", 12.9),
        ("deepseek-v3", 37),
        ("gemma-4-26b-a4b", 3.8),
        ("qwen3-next-80b-a3b", 3.9),
        ("qwen1.5-moe-a2.7b", 2.7),
    ],
)
def test_active_parameters_are_those_of_the_model_card(name: str, billions: float) -> None:
    assert find_model(name).num_active_params / 1e9 == pytest.approx(billions, rel=0.02)


def test_all_parameters_of_a_dense_model_are_active() -> None:
    model = find_model("qwen2.5-7b")
    assert model.num_active_params == model.num_params


def test_gpt_oss_has_a_window_of_128_in_every_other_layer() -> None:
    model = find_model("gpt-oss-120b")
    assert model.sliding_window == 128
    assert model.kinds[:4] == ("sliding", "full", "sliding", "full")
    assert (model.num_full_layers, model.num_sliding_layers) == (18, 18)


def test_gemma_3_has_five_sliding_layers_for_each_full_one() -> None:
    model = find_model("gemma-3-27b")
    assert (model.num_full_layers, model.num_sliding_layers) == (10, 52)
    assert model.kinds[5] == "full"
