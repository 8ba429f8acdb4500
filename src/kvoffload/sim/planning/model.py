"""Bytes of KV per token, by group of layers, from a Hugging Face config.json. What `layout.families` does not know is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from kvoffload.config.pages import AttentionPage, LatentPage, LayerPage, OpaquePage, StatePage
from kvoffload.errors import ConfigError, UnsupportedModelError
from kvoffload.layout.families import EngineHabits, pages_of_config

_ITEM_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "int8": 1}
_WINDOWED = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}


_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}
"""Every so many layers have no window, in configurations that do not say it."""
_NOT_KNOWN_HERE = {
    "index_head_dim": "an indexer beside the attention",
    "global_head_dim": "heads of other sizes in some layers",
    "num_global_key_value_heads": "other numbers of heads in some layers",
    "num_kv_shared_layers": "layers that share their KV",
    "is_encoder_decoder": "an encoder with KV of its own",
}
"""Fields that change the KV in a way that `layout.families` does not know."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers whose KV is alike."""

    kind: str
    layers: int
    bytes_per_token: int
    """Of one layer. 0: a state, which has no tokens."""
    bytes_per_state: int = 0
    """Of one layer, for each sequence, and for each place at which a prefix may be taken up again."""
    window_tokens: int | None = None
    """Only the last so many tokens are needed to go on."""


@dataclass(frozen=True, slots=True)
class ModelKv:
    """The KV of a whole model, all ranks together, nothing held twice."""

    groups: tuple[KvGroup, ...]
    item_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """What a stored token takes, of all layers with tokens."""
        return sum(group.layers * group.bytes_per_token for group in self.groups)

    @property
    def bytes_per_state(self) -> int:
        """What a stored state takes."""
        return sum(group.layers * group.bytes_per_state for group in self.groups)

    def sequence_bytes(self, tokens: int) -> int:
        """What a sequence of this length needs on the device: of windows only their width."""
        held = (
            min(tokens, group.window_tokens or tokens) * group.bytes_per_token * group.layers
            for group in self.groups
        )
        return sum(held) + self.bytes_per_state


def kv_of_config(config: Mapping[str, Any], kv_dtype: str = "auto") -> ModelKv:
    """The KV of a model.

    Args:
        config: The contents of config.json.
        kv_dtype: "auto" (what the checkpoint says: its KV quantisation, else its own type), or a type.

    Raises:
        UnsupportedModelError: layers whose KV is not known; guessing would be off by any factor.
        ConfigError: not such a configuration.
    """
    text = config.get("text_config", config)
    item_bytes = _item_bytes(config, text, kv_dtype)
    # States are kept in the model's own type, whatever that of the KV.
    habits = EngineHabits(
        block_tokens=1, item_bytes=item_bytes, state_item_bytes=_own_item_bytes(config, text)
    )
    try:
        pages = pages_of_config(config, habits)
        windows = _windows(text, len(pages))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"not a model's config.json: {type(error).__name__}: {error}") from error
    unknown = pages.count(None)
    if unknown:
        raise UnsupportedModelError(
            f"{unknown} of {len(pages)} layers of a {text.get('model_type', 'nameless')!r} model are of a kind whose KV is not known here"
        )
    for field, what in _NOT_KNOWN_HERE.items():
        if text.get(field):
            raise UnsupportedModelError(f"{what} ({field}): their KV is not known here")
    groups = Counter(_group(page, window) for page, window in zip(pages, windows, strict=True))
    return ModelKv(
        tuple(
            KvGroup(kind, layers, per_token, per_state, window)
            for (kind, per_token, per_state, window), layers in groups.items()
        ),
        item_bytes,
    )


def _group(page: LayerPage | None, window: int | None) -> tuple[str, int, int, int | None]:
    match page:
        case AttentionPage():
            kind = "attention" if window is None else f"window of {window}"
            return kind, page.kv_heads * sum(page.parts) + sum(page.extras), 0, window
        case LatentPage():
            return "latent (MLA)", sum(page.parts) + sum(page.extras), 0, window
        case StatePage():
            return "state", 0, sum(prod(t.shape) * t.item_bytes for t in page.tensors), None
        case OpaquePage() | None:
            raise AssertionError(page)


def _windows(text: Mapping[str, Any], count: int) -> Sequence[int | None]:
    """The window of each layer."""
    width = text.get("sliding_window")
    kinds = text.get("layer_types")
    if kinds is not None:
        fields = [_WINDOWED.get(str(kind)) for kind in kinds]
        return [int(text[field]) if field else None for field in fields]
    if not width or text.get("use_sliding_window") is False:
        return [None] * count
    every = text.get("sliding_window_pattern") or _PATTERNS.get(str(text.get("model_type")))
    if every is None:
        first = int(text.get("max_window_layers") or 0)
        return [None if layer < first else int(width) for layer in range(count)]
    return [None if (layer + 1) % int(every) == 0 else int(width) for layer in range(count)]


def _item_bytes(config: Mapping[str, Any], text: Mapping[str, Any], kv_dtype: str) -> int:
    name = kv_dtype
    if name == "auto":
        quantised = config.get("quantization_config") or {}
        scheme = quantised.get("kv_cache_scheme") or {}
        if scheme.get("num_bits") == 8 or str(quantised.get("kv_cache_quant_algo", "")).upper() == "FP8":
            return 1
        return _own_item_bytes(config, text)
    return _bytes_of_type(name)


def _own_item_bytes(config: Mapping[str, Any], text: Mapping[str, Any]) -> int:
    own = text.get("dtype") or text.get("torch_dtype")
    return _bytes_of_type(str(own or config.get("dtype") or config.get("torch_dtype") or "bfloat16"))


def _bytes_of_type(name: str) -> int:
    plain = "fp8" if name.startswith(("fp8", "float8")) else name.removeprefix("torch.")
    if plain not in _ITEM_BYTES:
        raise ConfigError(f"KV type {name!r} is not known; valid: auto, {', '.join(_ITEM_BYTES)}")
    return _ITEM_BYTES[plain]
