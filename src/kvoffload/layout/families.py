"""Which pages a model's layers have, from its Hugging Face configuration: the only place that knows families of models.

A family is listed when its shards were compared on a real engine. Everything else is None: not known, so opaque. Never
guess: two states of equal length may have other segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvoffload.config.pages import (
    Arrangement,
    AttentionPage,
    HeadOrder,
    LatentPage,
    LayerPage,
    Segment,
    StatePage,
    StateTensor,
)

_ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})
_STRANGE = ("mamba", "ssm", "rwkv", "hybrid", "linear_attn", "global_head_dim", "recurrent")
"""Parts of field names of models whose layers are not all alike; without `layer_types` nothing is known of them."""


@dataclass(frozen=True, slots=True)
class EngineHabits:
    """What the engine decides about pages, beside the model."""

    block_tokens: int
    """Tokens of an attention block on one rank."""
    item_bytes: int
    """Of the KV cache."""
    state_item_bytes: int = 2
    """Of convolution states."""
    recurrent_item_bytes: int = 4
    """Of recurrent states beside a convolution."""
    speculative_tokens: int = 0
    """Rows that convolution states have more than without speculation."""
    channels_first: bool = False
    """Whether convolution states are (channels, rows) instead of (rows, channels)."""
    order: HeadOrder = HeadOrder.HND
    arrangement: Arrangement = Arrangement.PACKED


def pages_of_config(config: Mapping[str, Any], habits: EngineHabits) -> tuple[LayerPage | None, ...]:
    """The page of every layer, in the order of the model; None where the kind is not known. Does not mutate.

    Args:
        config: The contents of `config.json` (or the same as a dictionary); a text model inside is looked up.
        habits: The engine's side.

    Raises:
        KeyError, TypeError, ValueError: the configuration lacks a number or has something else in its place.
    """
    text = config.get("text_config", config)
    count = int(text["num_hidden_layers"])
    kinds = text.get("layer_types")
    if kinds is None:
        strange = any(part in key for key, value in text.items() if value for part in _STRANGE)
        kinds = [None if strange else "attention"] * count
    if len(kinds) != count:
        raise ValueError(f"{len(kinds)} layer_types for {count} layers")
    return tuple(_page(str(kind), text, habits) for kind in kinds)


def _page(kind: str, config: Mapping[str, Any], habits: EngineHabits) -> LayerPage | None:
    family = str(config.get("model_type", ""))
    if kind in _ATTENTION:
        return _tokens(config, habits)
    if kind == "linear_attention" and family.startswith("qwen3_next"):
        return _gated_delta_net(config, habits)
    if kind == "conv" and family.startswith("lfm2"):
        channels = int(config.get("conv_dim") or config["hidden_size"])
        rows = int(config.get("conv_L_cache", 3)) - 1
        return StatePage((_convolution(rows, (Segment(channels),), habits),))
    return None


def _tokens(config: Mapping[str, Any], habits: EngineHabits) -> LayerPage:
    if config.get("kv_lora_rank"):
        width = int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"])
        return LatentPage((width * habits.item_bytes,), habits.block_tokens)
    heads = int(config["num_attention_heads"])
    head_bytes = int(config.get("head_dim") or config["hidden_size"] // heads) * habits.item_bytes
    return AttentionPage(
        kv_heads=int(config.get("num_key_value_heads") or heads),
        parts=(head_bytes, head_bytes),
        block_tokens=habits.block_tokens,
        order=habits.order,
        arrangement=habits.arrangement,
    )


def _gated_delta_net(config: Mapping[str, Any], habits: EngineHabits) -> StatePage:
    """Convolution channels are [query | key | value]; the recurrent state is one matrix per value head."""
    keys, values = int(config["linear_num_key_heads"]), int(config["linear_num_value_heads"])
    key_size, value_size = int(config["linear_key_head_dim"]), int(config["linear_value_head_dim"])
    segments = (Segment(keys, key_size), Segment(keys, key_size), Segment(values, value_size))
    convolution = _convolution(int(config["linear_conv_kernel_dim"]) - 1, segments, habits)
    matrices = StateTensor(
        (values, value_size, key_size), habits.recurrent_item_bytes, axis=0, segments=(Segment(values),)
    )
    return StatePage((convolution, matrices))


def _convolution(rows: int, segments: tuple[Segment, ...], habits: EngineHabits) -> StateTensor:
    rows += habits.speculative_tokens
    channels = sum(segment.units * segment.unit_items for segment in segments)
    if habits.channels_first:
        return StateTensor((channels, rows), habits.state_item_bytes, axis=0, segments=segments)
    return StateTensor((rows, channels), habits.state_item_bytes, axis=1, segments=segments)
