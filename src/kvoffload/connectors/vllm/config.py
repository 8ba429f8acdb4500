"""vLLM's configuration becomes an `OffloadingConfig`; what this version cannot serve safely is refused here.

Every process of an engine must come to the same result: the workers' and the scheduler's `kv_cache_config` show
the same thing in different forms, so only what both have is used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvoffload.config.options import OffloadingOptions
from kvoffload.config.pages import AttentionPage, HeadOrder
from kvoffload.config.parse import WHERE
from kvoffload.config.schema import (
    LayoutIdentity,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from kvoffload.config.validate import check_divides_hash, resolve_blocks_per_chunk, resolve_hash_seed
from kvoffload.connectors.vllm.groups import (
    dtype_name,
    group_configs,
    kept_groups,
    meaning_of,
    refuse_groups,
    token_units,
)
from kvoffload.connectors.vllm.identity import is_certain, model_revision
from kvoffload.errors import ConfigError, UnsupportedModelError
from kvoffload.layout import canonical, direct
from kvoffload.layout.layouts import canonical_identity, sizes_of
from kvoffload.layout.replicated import HostMemory, replicated_fault
from kvoffload.spec.factory import OffloadingSpecFactory

_LOCAL_FORMATS = frozenset(
    (
        "auto",
        "hf",
        "safetensors",
        "fastsafetensors",
        "pt",
        "npcache",
        "mistral",
        "gguf",
        "bitsandbytes",
        "sharded_state",
        "dummy",
    )
)
"""Formats whose weights are the files of the model; others are streamed from a place that says nothing of its contents."""


def build_offloading_config(vllm_config: Any, kv_cache_config: Any) -> OffloadingConfig:
    """Translate vLLM's configuration.

    Args:
        vllm_config: vLLM's `VllmConfig`.
        kv_cache_config: vLLM's `KVCacheConfig`, the worker's or the scheduler's form of it.

    Raises:
        ConfigError: options that are not valid.
        UnsupportedModelError: a model or a parallel layout that this version cannot serve safely.
    """
    transfer = vllm_config.kv_transfer_config
    options, spec_options = OffloadingSpecFactory.parse_options(transfer.kv_connector_extra_config)
    _refuse_unsupported(vllm_config, kv_cache_config)
    groups = group_configs(vllm_config, kv_cache_config)
    cache = _cache(vllm_config, kv_cache_config, options, groups)
    replicated = _draft_model(vllm_config) is None and _is_replicated(
        groups, options, vllm_config.parallel_config
    )
    # One copy of bytes that all ranks hold is the canonical layout of such a model: it costs nothing more.
    is_canonical = options.canonical_layout or replicated
    portable = False
    if options.canonical_layout:
        _refuse_canonical_drafts(vllm_config)
    if is_canonical:
        groups = _with_canonical_order(groups, HeadOrder[options.canonical_order])
        meanings = [meaning_of(group) for group in kept_groups(kv_cache_config)]
        groups, portable = _as_canonical(
            groups, meanings, cache.blocks_per_chunk, vllm_config.parallel_config
        )
    events = vllm_config.kv_events_config
    return OffloadingConfig(
        groups=groups,
        model=_model(vllm_config, kv_cache_config, options),
        cache=cache,
        parallel=_parallel(vllm_config.parallel_config, portable=portable),
        layout=_layout(vllm_config, kv_cache_config, is_canonical=is_canonical, portable=portable),
        engine_id=transfer.engine_id,
        enable_kv_cache_events=events is not None and events.enable_kv_cache_events,
        replicated_layout=replicated,
        canonical_layout=is_canonical,
        options=options,
        spec_options=spec_options,
    )


def _parallel(parallel: Any, *, portable: bool) -> OffloadingParallelConfig:
    return OffloadingParallelConfig(
        rank=parallel.rank,
        world_size=parallel.world_size,
        tp_size=parallel.tensor_parallel_size,
        pp_size=parallel.pipeline_parallel_size,
        pcp_size=parallel.prefill_context_parallel_size,
        dcp_size=parallel.decode_context_parallel_size,
        data_parallel_index=parallel.data_parallel_index,
        data_parallel_size=parallel.data_parallel_size,
        is_parallelism_agnostic=portable,
    )


def _layout(vllm_config: Any, kv_cache_config: Any, *, is_canonical: bool, portable: bool) -> LayoutIdentity:
    family = canonical if is_canonical else direct
    # In certified layers the order in the device's memory leaves no trace in the bytes.
    in_memory = str(kv_cache_config.kv_cache_layout or vllm_config.cache_config.kv_cache_layout)
    return LayoutIdentity(
        family=family.FAMILY,
        format_version=family.FORMAT_VERSION,
        engine_layout="any" if portable else in_memory,
        engine_family="vllm/runner-v2" if vllm_config.use_v2_model_runner else "vllm/runner-v1",
    )


def _is_replicated(
    groups: tuple[OffloadingGroupConfig, ...], options: OffloadingOptions, parallel: Any
) -> bool:
    """Whether all ranks hold the same bytes (a latent model), so that one copy serves all of them, with TP 1 as with TP 8."""
    pages = [layer.page for group in groups for layer in group.layers]
    memory = HostMemory(
        # The workers of a node map one region on every platform.
        platform_shares=True,
        has_secondary_tiers=bool(options.secondary_tiers),
        nodes=parallel.nnodes,
    )
    known = [page for page in pages if page is not None]
    sizes = sizes_of(_parallel(parallel, portable=False))
    return len(known) == len(pages) and replicated_fault(known, sizes, memory) is None


def _with_canonical_order(
    groups: tuple[OffloadingGroupConfig, ...], order: HeadOrder
) -> tuple[OffloadingGroupConfig, ...]:
    """The same groups, to be kept with heads or with tokens outside."""
    return tuple(
        dataclasses.replace(
            group,
            layers=tuple(
                dataclasses.replace(layer, page=dataclasses.replace(layer.page, canonical_order=order))
                if isinstance(layer.page, AttentionPage)
                else layer
                for layer in group.layers
            ),
        )
        for group in groups
    )


def _refuse_canonical_drafts(vllm_config: Any) -> None:
    """How a draft model's heads are shared out (it may run unsharded beside a sharded target) its layers do not say."""
    if _draft_model(vllm_config) is not None:
        raise ConfigError(
            f"{WHERE}: canonical_layout is not available with a draft model in this version; leave it out (chunks are then "
            "read under the same parallel layout only)"
        )


def _as_canonical(
    groups: tuple[OffloadingGroupConfig, ...], meanings: Sequence[str], blocks_per_chunk: int, parallel: Any
) -> tuple[tuple[OffloadingGroupConfig, ...], bool]:
    """The groups with what their canonical bytes mean, and whether all of them are readable under any parallel layout."""
    sizes = sizes_of(_parallel(parallel, portable=False))
    found = [canonical_identity(group.layers, blocks_per_chunk, sizes) for group in groups]
    described = (
        dataclasses.replace(group, page_signature=f"{meaning}; {identity.signature}")
        for group, meaning, identity in zip(groups, meanings, found, strict=True)
    )
    return tuple(described), all(identity.portable for identity in found)


def _model(vllm_config: Any, kv_cache_config: Any, options: OffloadingOptions) -> OffloadingModelConfig:
    model = vllm_config.model_config
    # Of several groups one at least is full attention. What states are made of stands in their signatures.
    specs = [group.layer_spec for group in kept_groups(kv_cache_config)]
    spec = next(spec for spec in specs if hasattr(spec, "kv_quant_mode"))
    weights = _weights(vllm_config, model, options)
    draft = _draft_model(vllm_config)
    if draft is not None:
        # Its keys and values lie in the same chunks.
        weights = f"{weights} draft=({_weights(vllm_config, draft, options)})"
    return OffloadingModelConfig(
        # A local directory is known by its contents (see the revision), not by where it lies on this host.
        name=Path(model.model).name if os.path.exists(model.model) else model.model,  # noqa: PTH110
        revision=weights,
        # What the engine allocated, not what was asked for: "auto" means different things for different checkpoints.
        dtype=f"{dtype_name(spec.dtype)} ({vllm_config.cache_config.cache_dtype})",
        quantisation=str(getattr(spec.kv_quant_mode, "name", spec.kv_quant_mode)).lower(),
    )


def _draft_model(vllm_config: Any) -> Any:
    """VLLM's `ModelConfig` of the model that drafts tokens; None if there is none."""
    speculative = vllm_config.speculative_config
    return (
        speculative.draft_model_config if speculative is not None and speculative.uses_draft_model() else None
    )


def _weights(vllm_config: Any, model: Any, options: OffloadingOptions) -> str:
    return f"{_revision(vllm_config, model, options)} {_weights_identity(vllm_config, model)}"


def _revision(vllm_config: Any, model: Any, options: OffloadingOptions) -> str:
    """Which weights these are. Raises UnsupportedModelError if that is uncertain and KV shall outlive the engine."""
    if options.model_identity is not None:
        return f"declared:{options.model_identity}"
    revision = model_revision(model.model, model.revision, vllm_config.load_config.download_dir)
    load_format = str(
        getattr(vllm_config.load_config.load_format, "value", vllm_config.load_config.load_format)
    )
    if options.secondary_tiers and not (is_certain(revision) and load_format in _LOCAL_FORMATS):
        raise UnsupportedModelError(
            f"kvoffload: which weights of {model.model} were loaded cannot be told (load format {load_format}: neither "
            "local weights nor a commit in the local cache that they come from), so KV in secondary_tiers could later be served to other weights; set model_identity to a "
            "text that changes whenever the weights do, or leave the secondary tiers out"
        )
    return revision


def _weights_identity(vllm_config: Any, model: Any) -> str:
    """What else decides which numbers come out of the same checkpoint: overrides, quantisation, dtype, dummy weights."""
    settings = {
        name: value
        for name, value in model.hf_config.to_dict().items()
        if name not in ("_name_or_path", "transformers_version")
    }
    text = json.dumps(settings, sort_keys=True, default=str)
    load_format = str(vllm_config.load_config.load_format)
    seed = f" seed={model.seed}" if load_format == "dummy" else ""
    # Which of LongRoPE's factors are used depends on how long requests may be.
    length = f" max_model_len={model.max_model_len}" if "longrope" in text.lower() else ""
    return (
        f"config={hashlib.sha256(text.encode()).hexdigest()[:16]} quantization={model.quantization} "
        f"dtype={dtype_name(model.dtype)} load_format={load_format}{seed}{length}"
    )


def _cache(
    vllm_config: Any,
    kv_cache_config: Any,
    options: OffloadingOptions,
    groups: tuple[OffloadingGroupConfig, ...],
) -> OffloadingCacheConfig:
    cache = vllm_config.cache_config
    tokens_per_block = [group.tokens_per_block for group in groups]
    tokens_per_hash, boundary_unit = token_units(vllm_config, kv_cache_config)
    check_divides_hash(tokens_per_block, tokens_per_hash)
    blocks_per_chunk = resolve_blocks_per_chunk(
        tokens_per_block, options.block_size, options.blocks_per_chunk
    )
    if blocks_per_chunk != 1 and any(group.reach_tokens or group.local_tokens for group in groups):
        raise ConfigError(
            f"{WHERE}: chunks of {blocks_per_chunk} blocks are not available for models with windows or recurrent states: the "
            "engine gives their blocks away one by one; leave blocks_per_chunk and block_size out"
        )
    return OffloadingCacheConfig(
        tokens_per_hash=tokens_per_hash,
        blocks_per_chunk=blocks_per_chunk,
        boundary_unit_tokens=boundary_unit,
        hash_algorithm=cache.prefix_caching_hash_algo,
        hash_seed=resolve_hash_seed(
            cache.prefix_caching_hash_algo, os.environ.get("PYTHONHASHSEED"), options.hash_seed
        ),
        prefix_caching=bool(cache.enable_prefix_caching),
    )


def _plain_rotary(vllm_config: Any) -> bool:
    """Whether vLLM rotates query and key with plain torch in place of its own kernel."""
    chosen = vllm_config.compilation_config.custom_ops
    return "-rotary_embedding" in chosen or ("none" in chosen and "+rotary_embedding" not in chosen)


def _refuse_no_prefix(vllm_config: Any) -> None:
    """Refuse what the engine cannot compute rightly when the beginning of a prompt comes from a cache."""
    model = vllm_config.model_config
    if model.use_mla and vllm_config.device_config.device_type == "cpu" and not _plain_rotary(vllm_config):
        # Measured: a token's keys depend on how many others are in its step; log-probabilities differ by 0.4 to 1.4.
        raise UnsupportedModelError(
            "kvoffload: vLLM's CPU kernel for rotary embeddings turns the keys of MLA models by wrong angles, by others in every "
            "step, so that nothing which it has computed can be used again; start with --compilation-config "
            """'{"custom_ops": ["all", "-rotary_embedding"]}' (the plain implementation), or without the connector"""
        )
    if not model.is_prefix_caching_supported:
        raise UnsupportedModelError(
            "kvoffload: vLLM does not support prefix caching for this model or task (pooling over the whole prompt, "
            "for example), so nothing can be loaded for it; start without the connector"
        )


def _refuse_unsupported(vllm_config: Any, kv_cache_config: Any) -> None:
    _refuse_no_prefix(vllm_config)
    parallel = vllm_config.parallel_config
    for name, value in (
        ("pipeline_parallel_size", parallel.pipeline_parallel_size),
        ("prefill_context_parallel_size", parallel.prefill_context_parallel_size),
        ("decode_context_parallel_size", parallel.decode_context_parallel_size),
        ("nnodes", parallel.nnodes),
    ):
        if value != 1:
            raise UnsupportedModelError(
                f"kvoffload: {name}={value} is not supported by this version; start with {name}=1 or without the connector"
            )
    _refuse_speculation(vllm_config)
    refuse_groups(vllm_config, kv_cache_config)


def _refuse_speculation(vllm_config: Any) -> None:
    """A draft model runs over the same tokens in the same steps as its target. Other drafters' KV lags behind, or is no KV."""
    speculative = vllm_config.speculative_config
    if speculative is None or not speculative.uses_draft_kv_cache():
        return
    if not speculative.uses_draft_model():
        raise UnsupportedModelError(
            f"kvoffload: speculative method {speculative.method!r} keeps KV of its own, which this version does not "
            "store; start without it, with 'ngram' or 'draft_model', or without the connector"
        )
