"""vLLM's KV cache groups: which are kept, what a load to a boundary needs of each, and which cannot be served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import iter_layer_specs

from kvoffload.config.schema import OffloadingGroupConfig
from kvoffload.connectors.vllm.layers import layer_facts
from kvoffload.errors import UnsupportedModelError

_FULL = "FullAttentionSpec"
_LATENT = "MLAAttentionSpec"
_WINDOW = "SlidingWindowSpec"
_STATE = "MambaSpec"
_LOCAL = "ChunkedLocalAttentionSpec"
_SCRATCH = "CircularBufferSpec"
"""Never found by prefix, not by the engine either: left out."""
# Subclasses may keep more state elsewhere or drop other blocks, so the names are compared, not the ancestry.
_KEPT_ALONE = {_FULL, _LATENT}
_KEPT_TOGETHER = {_FULL, _WINDOW, _STATE, _LOCAL}


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """A group that is offloaded."""

    group_id: int
    """Its index in vLLM's list."""
    layer_names: Sequence[str]
    spec: Any
    """vLLM's description of the group: of all its layers, or a wrapper around one for each."""

    @property
    def layer_spec(self) -> Any:
        """The description of its first layer; what matters here is equal in all of them (`refuse_groups`)."""
        return next(iter(iter_layer_specs(self.spec)))


def kept_groups(kv_cache_config: Any) -> list[KeptGroup]:
    """The groups that are offloaded, in vLLM's order. Those that cannot be found by prefix are left out."""
    return [
        KeptGroup(index, group.layer_names, group.kv_cache_spec)
        for index, group in enumerate(kv_cache_config.kv_cache_groups)
        if group.kv_cache_spec.prefix_cacheable
    ]


def group_configs(vllm_config: Any, kv_cache_config: Any) -> tuple[OffloadingGroupConfig, ...]:
    """Translate the groups that are kept."""
    kept = kept_groups(kv_cache_config)
    if len(kv_cache_config.kv_cache_groups) == 1:
        # The backing allocation holds the pages of all layers for all blocks: the one figure that workers and
        # scheduler both see, whatever the layers look like.
        sizes = [kv_cache_config.kv_cache_tensors[0].size // kv_cache_config.num_blocks]
    else:
        # The groups lie over each other in the same allocations: each is as large as its own layers.
        sizes = [_bytes_per_block(group) for group in kept]
    return tuple(_group_config(vllm_config, group, size) for group, size in zip(kept, sizes, strict=True))


def token_units(vllm_config: Any, kv_cache_config: Any) -> tuple[int, int]:
    """Tokens per block hash, and the number of tokens that the engine's own hits are multiples of."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) == 1:
        tokens_per_block = next(iter(iter_layer_specs(groups[0].kv_cache_spec))).block_size
        return tokens_per_block, tokens_per_block
    boundary_unit, tokens_per_hash = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    return tokens_per_hash, boundary_unit


def _group_config(vllm_config: Any, group: KeptGroup, bytes_per_block: int) -> OffloadingGroupConfig:
    spec = group.layer_spec
    kind = type(spec).__name__
    return OffloadingGroupConfig(
        group_id=group.group_id,
        tokens_per_block=spec.block_size,
        layer_names=tuple(group.layer_names),
        layers=layer_facts(vllm_config, group.layer_names, group.spec),
        worker_kv_bytes_per_block=bytes_per_block,
        page_signature=_signature(kind, spec),
        reach_tokens=_reach(kind, spec),
        local_tokens=int(spec.attention_chunk_size) if kind == _LOCAL else None,
        is_state=kind == _STATE,
    )


def _reach(kind: str, spec: Any) -> int | None:
    if kind == _WINDOW:
        # The token behind the boundary sees itself and so many before it.
        return int(spec.sliding_window) - 1
    return 1 if kind == _STATE else None


def _bytes_per_block(group: KeptGroup) -> int:
    own = getattr(group.spec, "kv_cache_specs", {})
    return sum(own.get(name, group.spec).real_page_size_bytes for name in group.layer_names)


def _signature(kind: str, spec: Any) -> str:
    if kind == _STATE:
        dtypes = ",".join(map(dtype_name, spec.dtypes))
        return f"{kind} block={spec.block_size} shapes={tuple(map(tuple, spec.shapes))} dtypes={dtypes}"
    window = f" window={spec.sliding_window}" if kind == _WINDOW else ""
    if kind == _LOCAL:
        window = f" local={spec.attention_chunk_size}"
    return (
        f"{kind} block={spec.block_size} heads={spec.num_kv_heads} head_size={spec.head_size} "
        f"dtype={dtype_name(spec.dtype)} page={spec.page_size_bytes}{window}"
    )


def meaning_of(group: KeptGroup) -> str:
    """What the bytes of a group's layers are, apart from where they lie: the same under any parallel layout.

    The canonical layout knows lengths only, and two dtypes may be equally long.
    """
    layers = {_meaning_of_layer(spec) for spec in iter_layer_specs(group.spec)}
    return ", ".join(sorted(layers))


def _meaning_of_layer(spec: Any) -> str:
    kind = type(spec).__name__
    dtypes = spec.dtypes if kind == _STATE else (spec.dtype,)
    return f"{kind} of {'+'.join(map(dtype_name, dtypes))}"


def dtype_name(dtype: Any) -> str:
    """Torch's name of a dtype, without its prefix."""
    return str(dtype).removeprefix("torch.")


# -- refusals ----------------------------------------------------------------------------------------------------


def refuse_groups(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raise UnsupportedModelError unless the model's groups are ones that this version can serve."""
    groups = kv_cache_config.kv_cache_groups
    kinds = {type(spec).__name__ for group in groups for spec in iter_layer_specs(group.kv_cache_spec)}
    if len(groups) == 1:
        served = kinds <= _KEPT_ALONE
    else:
        kept = {
            type(spec).__name__
            for group in kept_groups(kv_cache_config)
            for spec in iter_layer_specs(group.spec)
        }
        served = _FULL in kept and kept <= _KEPT_TOGETHER and kinds - kept <= {_SCRATCH}
    if not served:
        raise UnsupportedModelError(
            f"kvoffload: this version serves models with one KV cache group of full attention ({_FULL} or {_LATENT}), or with "
            f"several of {_FULL}, {_WINDOW}, {_LOCAL} and {_STATE}; this model has {len(groups)} group(s) with "
            f"{', '.join(sorted(kinds))}; start without the connector"
        )
    if kv_cache_config.hisparse_host_num_blocks is not None or not kept_groups(kv_cache_config):
        raise UnsupportedModelError(
            "kvoffload: this model's KV cache cannot be addressed by prefix; start without it"
        )
    if len(groups) > 1:
        _refuse_several(vllm_config, kv_cache_config)


def _refuse_several(vllm_config: Any, kv_cache_config: Any) -> None:
    count = f"this model has {len(kv_cache_config.kv_cache_groups)} KV cache groups"
    if not vllm_config.cache_config.enable_prefix_caching:
        _refuse(count, "without the engine's own prefix cache", "start with --enable-prefix-caching")
    if vllm_config.speculative_config is not None:
        _refuse(count, "with speculative decoding", "start without it")
    if vllm_config.use_v2_model_runner:
        # It clears new blocks before it calls the connector: a store could still be reading them.
        _refuse(count, "under vLLM's second model runner", "start with VLLM_USE_V2_MODEL_RUNNER=0")
    units = token_units(vllm_config, kv_cache_config)
    for group in kept_groups(kv_cache_config):
        specs = list(iter_layer_specs(group.spec))
        if len({_what_must_be_equal(spec) for spec in specs}) != 1:
            _refuse(
                count,
                f"with unlike layers in one group ({group.layer_names[0]} …)",
                "start without the connector",
            )
        _refuse_layer(count, specs[0], units[0])


def _refuse_layer(count: str, spec: Any, tokens_per_hash: int) -> None:
    kind = type(spec).__name__
    if kind == _WINDOW and (spec.sliding_window < 2 or spec.extra_retained_tokens):
        _refuse(
            count, f"with a window of {spec.sliding_window} tokens (and more)", "start without the connector"
        )
    if kind == _STATE and spec.mamba_cache_mode != "align":
        _refuse(
            count, f"with mamba_cache_mode={spec.mamba_cache_mode!r}", "start with --mamba-cache-mode align"
        )
    if kind == _STATE and (spec.num_speculative_blocks or spec.num_prefill_checkpoint_blocks):
        _refuse(count, "with further blocks for recurrent states", "start without the connector")
    if kind == _STATE and spec.block_size != tokens_per_hash:
        _refuse(
            count,
            f"with recurrent states of {spec.block_size} tokens and a hash unit of {tokens_per_hash}",
            "leave --prefix-match-unit out",
        )


def _what_must_be_equal(spec: Any) -> tuple[Any, ...]:
    sees = getattr(spec, "sliding_window", None), getattr(spec, "attention_chunk_size", None)
    return type(spec).__name__, spec.block_size, *sees


def _refuse(count: str, what: str, remedy: str) -> None:
    raise UnsupportedModelError(f"kvoffload: {count}, which this version does not serve {what}; {remedy}")
