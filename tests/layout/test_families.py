"""Pages from a model's configuration: as they were measured on a real engine, and nothing that was not."""

from __future__ import annotations

from typing import Any

import pytest

from kvoffload.config.pages import (
    Arrangement,
    AttentionPage,
    HeadOrder,
    LatentPage,
    Segment,
    StatePage,
    StateTensor,
)
from kvoffload.layout.families import EngineHabits, pages_of_config
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.layout.mapping import map_page

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 512,
}
QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
BF16 = EngineHabits(block_tokens=128, item_bytes=2)


def test_llama_has_keys_and_values_of_its_kv_heads_in_every_layer() -> None:
    habits = EngineHabits(128, 4, order=HeadOrder.NHD, arrangement=Arrangement.SPLIT)
    page = AttentionPage(4, (256, 256), 128, HeadOrder.NHD, Arrangement.SPLIT)
    assert pages_of_config(LLAMA, habits) == (page, page)


def test_a_model_that_names_no_kv_heads_has_one_per_attention_head() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    (page, _) = pages_of_config(config, BF16)
    assert page == AttentionPage(8, (128, 128), 128)


def test_deepseek_has_latent_pages() -> None:
    config = {**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert pages_of_config(config, EngineHabits(16, 2)) == (LatentPage((1152,), 16),) * 2


def test_gemma_has_attention_pages_with_and_without_a_window() -> None:
    config = {"text_config": {**LLAMA, "layer_types": ["sliding_attention", "full_attention"]}}
    assert pages_of_config(config, BF16) == (AttentionPage(4, (128, 128), 128),) * 2


def test_qwen3_next_keeps_query_key_and_value_channels_apart() -> None:
    """Measured: TP 2 rank r holds (3, 256) and (2, 64, 64); channels are split as [64 | 64 | 128] per rank."""
    state, attention = pages_of_config(QWEN3_NEXT, BF16)
    assert attention == AttentionPage(2, (128, 128), 128)
    assert state == StatePage(
        (
            StateTensor((3, 512), 2, 1, (Segment(2, 64), Segment(2, 64), Segment(4, 64))),
            StateTensor((4, 64, 64), 4, 0, (Segment(4),)),
        )
    )
    assert map_page(state, ParallelSizes(), 0).page_bytes == 68_608
    query, key, value, _ = map_page(state, ParallelSizes(tp=2), 1).runs
    assert [run.canonical_offset for run in (query, key, value)] == [2 * 64, 2 * (128 + 64), 2 * (256 + 128)]


def test_lfm2_has_one_stretch_of_channels() -> None:
    config = {**LLAMA, "model_type": "lfm2", "hidden_size": 256, "layer_types": ["conv", "full_attention"]}
    state, _ = pages_of_config(config, BF16)
    assert state == StatePage((StateTensor((2, 256), 2, 1, (Segment(256),)),))
    assert map_page(state, ParallelSizes(tp=2), 1).page_bytes == 2 * 128 * 2


def test_the_engines_habits_change_the_shape_of_a_convolution_state() -> None:
    habits = EngineHabits(128, 2, speculative_tokens=2, channels_first=True)
    state, _ = pages_of_config(QWEN3_NEXT, habits)
    assert isinstance(state, StatePage)
    assert (state.tensors[0].shape, state.tensors[0].axis) == ((512, 5), 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"mamba_d_state": 16},
        {"ssm_cfg": {"layer": "Mamba2"}},
        {"hybrid_override_pattern": "M-M*"},
        {"global_head_dim": 512},
        {"layer_types": ["mamba", "mamba"]},
        {"layer_types": ["linear_attention", "linear_attention"], "model_type": "another"},
        {"layer_types": ["conv", "conv"], "model_type": "another"},
    ],
)
def test_what_was_not_measured_is_not_known(changes: dict[str, Any]) -> None:
    assert pages_of_config({**LLAMA, **changes}, BF16) == (None, None)


def test_layer_types_that_do_not_fit_the_number_of_layers_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 layer_types for 2 layers"):
        pages_of_config({**LLAMA, "layer_types": ["full_attention"] * 3}, BF16)
