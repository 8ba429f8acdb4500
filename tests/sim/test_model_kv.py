"""Bytes of KV from configurations, as they are computed by hand from the models' published shapes."""

from __future__ import annotations

from typing import Any

import pytest

from kvoffload.errors import ConfigError, UnsupportedModelError
from kvoffload.sim.planning.budget import parse_budget, places_of, traffic_of
from kvoffload.sim.planning.model import ModelKv, kv_of_config
from kvoffload.sim.traces.base import TraceRequest
from kvoffload.testing.policy_tests import key

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}
QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "dtype": "bfloat16",
}


def windowed(**fields: object) -> dict[str, Any]:
    return {**LLAMA_8B, "sliding_window": 1024, **fields}


def shape_of(model: ModelKv) -> list[tuple[int, int, int | None]]:
    return [(group.layers, group.bytes_per_token, group.window_tokens) for group in model.groups]


def test_grouped_queries() -> None:
    model = kv_of_config(LLAMA_8B)
    assert shape_of(model) == [(32, 2 * 8 * 128 * 2, None)]
    assert model.bytes_per_token == 131_072
    assert model.sequence_bytes(1000) == 131_072_000


def test_latent_attention_holds_one_vector_a_layer() -> None:
    assert kv_of_config(DEEPSEEK_V3).bytes_per_token == 61 * (512 + 64) * 2


def test_windows_bound_what_a_sequence_needs_but_not_what_a_token_takes() -> None:
    model = kv_of_config(windowed(layer_types=["sliding_attention", "full_attention"] * 16))
    assert shape_of(model) == [(16, 4096, 1024), (16, 4096, None)]
    assert model.bytes_per_token == 131_072
    assert model.sequence_bytes(4096) == 16 * 4096 * (1024 + 4096)


@pytest.mark.parametrize(
    ("fields", "layers_with_window"),
    [
        ({}, 32),
        ({"use_sliding_window": False}, 0),
        ({"use_sliding_window": True, "max_window_layers": 28}, 4),
        ({"sliding_window_pattern": 4}, 24),
        ({"model_type": "gemma2"}, 16),
        ({"sliding_window": None}, 0),
    ],
)
def test_windows_of_configurations_that_do_not_list_their_layers(
    fields: dict[str, object], layers_with_window: int
) -> None:
    groups = kv_of_config(windowed(**fields)).groups
    assert sum(group.layers for group in groups if group.window_tokens) == layers_with_window


def test_recurrent_layers_have_a_state_and_no_tokens() -> None:
    model = kv_of_config(QWEN3_NEXT)
    assert model.bytes_per_token == 2 * 2 * 256 * 2
    convolution, matrices = 3 * (2 * 16 * 128 + 32 * 128) * 2, 32 * 128 * 128 * 4
    assert model.bytes_per_state == 3 * (convolution + matrices)
    assert model.sequence_bytes(10) == 10 * 2048 + model.bytes_per_state


def test_states_have_the_type_of_the_model_and_not_that_of_the_cache() -> None:
    plain, quantised, wide = (
        kv_of_config({**QWEN3_NEXT, "dtype": dtype}, kv_dtype)
        for dtype, kv_dtype in (("bfloat16", "auto"), ("bfloat16", "fp8"), ("float32", "auto"))
    )
    assert quantised.bytes_per_token * 2 == plain.bytes_per_token
    assert quantised.bytes_per_state == plain.bytes_per_state
    matrices = 3 * 32 * 128 * 128 * 4
    assert wide.bytes_per_state - matrices == 2 * (plain.bytes_per_state - matrices)


@pytest.mark.parametrize(
    ("config", "kv_dtype", "item_bytes"),
    [
        (LLAMA_8B, "auto", 2),
        (LLAMA_8B, "fp8", 1),
        (LLAMA_8B, "fp8_e4m3", 1),
        ({**LLAMA_8B, "torch_dtype": "float32"}, "auto", 4),
        ({**LLAMA_8B, "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "auto", 1),
        ({**LLAMA_8B, "quantization_config": {"kv_cache_quant_algo": "FP8"}}, "auto", 1),
        ({**LLAMA_8B, "quantization_config": {"kv_cache_scheme": None}}, "auto", 2),
        ({"text_config": LLAMA_8B, "dtype": "bfloat16"}, "auto", 2),
    ],
)
def test_the_type_of_the_cache(config: dict[str, Any], kv_dtype: str, item_bytes: int) -> None:
    assert kv_of_config(config, kv_dtype).item_bytes == item_bytes


@pytest.mark.parametrize(
    "config",
    [
        {**LLAMA_8B, "layer_types": ["mamba"] * 32},
        {**LLAMA_8B, "hybrid_override_pattern": "M-M*"},
        {**DEEPSEEK_V3, "index_head_dim": 128},
        {**LLAMA_8B, "num_kv_shared_layers": 10},
        {**LLAMA_8B, "is_encoder_decoder": True},
    ],
)
def test_what_is_not_known_is_refused_and_not_guessed(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError):
        kv_of_config(config)


@pytest.mark.parametrize("config", [{}, {"num_hidden_layers": "x"}, {"num_hidden_layers": 2}])
def test_what_is_no_configuration_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        kv_of_config(config)
    with pytest.raises(ConfigError):
        kv_of_config(LLAMA_8B, "int3")


class Cycle:
    """Ten prompts of one block, in turn: LRU hits all or nothing."""

    block_tokens = 512
    knows_blocks = True

    def __iter__(self):
        return iter([TraceRequest(float(turn), 512, 1, (key(turn % 10),)) for turn in range(50)])


def test_the_next_gib_is_worth_what_it_adds_to_the_hits() -> None:
    model, trace = kv_of_config(LLAMA_8B), Cycle()
    # A chunk is 64 MiB: ten of them are 640 MiB.
    budget = parse_budget("small=512MiB,enough=1GiB")
    small, enough = places_of(model, budget, trace, traffic_of(trace))  # type: ignore[arg-type]
    assert (small.tokens, small.prompts) == (4096, 8.0)
    assert (small.hit_ratio, enough.hit_ratio) == (0.0, 0.8)
    assert (small.next_gib_tokens, enough.next_gib_tokens) == (pytest.approx(0.8 * 50 * 512), 0.0)


@pytest.mark.parametrize("text", ["", "host", "host=", "=1GiB", "a=1GiB,a=2GiB"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_budget(text)
