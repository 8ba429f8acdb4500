"""What vLLM's own descriptions say about every layer's page, as facts that the layouts can judge. Unknown stays unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvoffload.config.pages import AttentionPage, LatentPage, LayerFacts, LayerPage, StatePage
from kvoffload.layout.certify import SeenTensor
from kvoffload.layout.families import EngineHabits, pages_of_config

_AXES = "BHNC"
"""vLLM's order of a logical page: blocks, heads, tokens, content (K and V of one token and head side by side)."""
_STATE_AXES = "BXXY"
"""Of a recurrent state it shows the bytes of a page, and nothing else."""
_NUMBER = re.compile(r"\.layers\.(\d+)\.")


def layer_facts(vllm_config: Any, layer_names: Sequence[str], group_spec: Any) -> tuple[LayerFacts, ...]:
    """The facts of a group's layers, in the order of `layer_names`.

    Args:
        vllm_config: vLLM's `VllmConfig`.
        layer_names: As vLLM names them.
        group_spec: The group's `kv_cache_spec`: one for all layers, or a wrapper with one for each.
    """
    own: Mapping[str, Any] = getattr(group_spec, "kv_cache_specs", {})
    return tuple(_facts(vllm_config, name, own.get(name, group_spec)) for name in layer_names)


def seen_tensors(
    kv_caches: Mapping[str, Any], layer_names: Sequence[str], *, is_state: bool
) -> dict[str, SeenTensor]:
    """How the registered tensors of these layers look; those with other dimensions than expected as plain bytes."""
    axes = _STATE_AXES if is_state else _AXES
    return {name: _seen(kv_caches[name], axes) for name in layer_names if name in kv_caches}


def _seen(tensor: Any, axes: str) -> SeenTensor:
    if tensor.dim() != len(axes):
        axes = "?" * tensor.dim()
    return SeenTensor(tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size(), axes)


def _facts(vllm_config: Any, name: str, spec: Any) -> LayerFacts:
    page = (
        _state_page(vllm_config, name, spec)
        if type(spec).__name__ == "MambaSpec"
        else _page(vllm_config, spec)
    )
    return LayerFacts(name, page, rank_page_bytes=spec.real_page_size_bytes)


def _page(vllm_config: Any, spec: Any) -> LayerPage | None:
    kind = type(spec).__name__
    if (
        kind
        not in ("FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec")
        or spec.kv_quant_mode.name != "NONE"
    ):
        return None
    # Whatever packs other things into a page than K and V of its tokens is not known here.
    if spec.num_head_slots is not None or spec.state_content_bytes is not None or spec.tokens_per_state != 1:
        return None
    item = spec.dtype.itemsize
    if kind == "MLAAttentionSpec":
        return _latent_page(spec, spec.head_size * item)
    parts = (spec.head_size * item, spec.head_size_v * item)
    heads = int(vllm_config.model_config.get_total_num_kv_heads())
    tp = vllm_config.parallel_config.tensor_parallel_size
    if spec.num_kv_heads != max(1, heads // tp) or max(heads, tp) % min(heads, tp):
        return None
    if spec.page_size_bytes != spec.num_kv_heads * spec.block_size * sum(parts):
        return None
    return AttentionPage(heads, parts, spec.block_size)


def _latent_page(spec: Any, width: int) -> LatentPage | None:
    # All ranks hold the same bytes only where vLLM says so itself: indexers of other kinds are described as MLA, too.
    is_replicated = spec.max_tp_shards == 1
    is_plain = spec.page_size_bytes == width * spec.block_size
    return LatentPage((width,), spec.block_size) if is_replicated and is_plain else None


def _state_page(vllm_config: Any, name: str, spec: Any) -> LayerPage | None:
    """As the family of models says, if the engine has allocated just that."""
    number = _NUMBER.search(name)
    if number is None or spec.tp_replicated:
        return None
    config = vllm_config.model_config.hf_text_config.to_dict()
    tp = vllm_config.parallel_config.tensor_parallel_size
    items = [dtype.itemsize for dtype in spec.dtypes]
    for channels_first in (False, True):
        habits = EngineHabits(spec.block_size, items[0], items[0], items[-1], channels_first=channels_first)
        try:
            page = pages_of_config(config, habits)[int(number[1])]
        except (KeyError, TypeError, ValueError, IndexError):
            return None
        if isinstance(page, StatePage) and _rank_shapes(page, tp) == [tuple(shape) for shape in spec.shapes]:
            return page
    return None


def _rank_shapes(page: StatePage, tp: int) -> list[tuple[int, ...]]:
    """The shapes on one rank; of units that do not divide, none that an engine could have."""
    shapes = []
    for tensor in page.tensors:
        shape = list(tensor.shape)
        if any(segment.units % tp for segment in tensor.segments):
            shape[tensor.axis] = -1
        elif tensor.segments:
            shape[tensor.axis] //= tp
        shapes.append(tuple(shape))
    return shapes
