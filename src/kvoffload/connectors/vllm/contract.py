"""What this connector needs of vLLM, checked once at start: better one clear line then than wrong KV later."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from kvoffload.errors import EngineContractError

logger = logging.getLogger(__name__)

TESTED_VERSIONS = ("0.32",)
"""Minor versions of vLLM that the end-to-end tests run with."""

_METHODS: dict[str, tuple[str, ...]] = {
    "register_kv_caches": ("kv_caches",),
    "handle_preemptions": ("kv_connector_metadata",),
    "start_load_kv": ("forward_context",),
    "wait_for_layer_load": ("layer_name",),
    "save_kv_layer": ("layer_name", "kv_layer", "attn_metadata"),
    "wait_for_save": (),
    "get_transfer_results": ("finished_req_ids",),
    "get_block_ids_with_load_errors": (),
    "build_connector_worker_meta": (),
    "on_new_request": ("request",),
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "build_connector_meta": ("scheduler_output",),
    "update_connector_output": ("connector_output",),
    "request_finished": ("request", "block_ids"),
    "has_pending_push_work": (),
    "reset_cache": (),
    "shutdown": (),
}
_FIELDS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (
        SchedulerOutput,
        (
            "scheduled_new_reqs",
            "scheduled_cached_reqs",
            "num_scheduled_tokens",
            "finished_req_ids",
            "preempted_req_ids",
            "kv_cache_block_copies",
        ),
    ),
    (NewRequestData, ("req_id", "block_ids", "num_computed_tokens")),
    (CachedRequestData, ("req_ids", "resumed_req_ids", "new_block_ids", "num_computed_tokens")),
    (
        KVConnectorOutput,
        ("kv_connector_worker_meta", "finished_recving", "invalid_block_ids", "failed_recving"),
    ),
    (
        MLAAttentionSpec,
        (
            "block_size",
            "num_kv_heads",
            "head_size",
            "head_size_v",
            "dtype",
            "kv_quant_mode",
            "num_head_slots",
            "state_content_bytes",
            "tokens_per_state",
            "max_tp_shards",
        ),
    ),
    (SlidingWindowSpec, ("sliding_window", "extra_retained_tokens")),
    (ChunkedLocalAttentionSpec, ("attention_chunk_size",)),
    (
        MambaSpec,
        (
            "shapes",
            "dtypes",
            "mamba_cache_mode",
            "num_speculative_blocks",
            "num_prefill_checkpoint_blocks",
            "tp_replicated",
        ),
    ),
)
_REQUEST_ATTRIBUTES = (
    "request_id",
    "num_prompt_tokens",
    "num_computed_tokens",
    "block_hashes",
    "kv_transfer_params",
    "skip_reading_prefix_cache",
    "resumable",
    "lora_request",
    "prompt_is_token_ids",
    "num_tokens",
    "status",
)


def check_contract() -> None:
    """Compare the installed vLLM with what the connector was written for.

    An untested version whose interface fits is accepted with a warning.

    Raises:
        EngineContractError: something is missing; names all of it, the version found and the tested ones.
    """
    problems = [*_method_problems(), *_field_problems(), *_request_problems()]
    tested = ", ".join(f"{version}.x" for version in TESTED_VERSIONS)
    if problems:
        raise EngineContractError(
            f"vLLM {vllm.__version__} does not have the connector interface that kvoffload needs ({'; '.join(problems)}); "
            f"tested with {tested}: install one of these, or a newer kvoffload"
        )
    if not any(re.match(rf"{re.escape(version)}(\D|$)", vllm.__version__) for version in TESTED_VERSIONS):
        logger.warning(
            "kvoffload was tested with vLLM %s, this is %s; its interface fits", tested, vllm.__version__
        )


def _method_problems() -> list[str]:
    problems = []
    for name, needed in _METHODS.items():
        method = getattr(KVConnectorBase_V1, name, None)
        if method is None:
            problems.append(f"{name}() is missing")
            continue
        found = tuple(inspect.signature(method).parameters)[1:]
        if found[: len(needed)] != needed:
            problems.append(f"{name}{found} should be {name}{needed}")
    return problems


def _field_problems() -> list[str]:
    return [
        f"{kind.__name__}.{name} is missing"
        for kind, names in _FIELDS
        for name in names
        if name not in {field.name for field in dataclasses.fields(kind)}
    ]


def _request_problems() -> list[str]:
    # A request's attributes are made in its constructor: they are among the names that its code stores.
    known = set(Request.__init__.__code__.co_names) | set(dir(Request))
    return [f"Request.{name} is missing" for name in _REQUEST_ATTRIBUTES if name not in known]
