"""The options that users set, with their defaults. Names are the ones that vLLM's users know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvoffload.config.units import parse_bytes


def _size() -> Any:
    return field(metadata={"parse": parse_bytes})


@dataclass(frozen=True, slots=True)
class OffloadingOptions:
    """Options of `kv_connector_extra_config`, parsed."""

    cpu_bytes_to_use: int = _size()
    """Host memory for KV, in bytes, in total per engine (all of its workers together)."""
    block_size: int | None = None
    """Size of a chunk in tokens. Either this or `blocks_per_chunk`."""
    blocks_per_chunk: int | None = None
    """Size of a chunk in engine blocks (1 if neither is given)."""
    spec_name: str = "CPUOffloadingSpec"
    spec_module_path: str | None = None
    """Python module of an out-of-tree spec."""
    eviction_policy: str = "lru"
    cache_policy_module_path: str | None = None
    """Python module of an out-of-tree eviction policy; `eviction_policy` is then its class name."""
    store_threshold: int = 0
    """Store a chunk only when it was offered this often (2: on second touch). Below 2: always."""
    max_tracker_size: int = 64_000
    """How many keys the admission filter remembers."""
    offload_prompt_only: bool = True
    """Store the prompt's chunks and not the answer's: the next turn often drops or rewrites the answer
    (reasoning, templates), so that its chunks would be written and never read."""
    canonical_layout: bool = False
    self_describing_kv_events: bool = False
    secondary_tiers: tuple[object, ...] = ()
    hash_seed: str | None = None
    """Says that PYTHONHASHSEED is set on purpose: it must then have exactly this value in every engine."""
    join_timeout_s: float = 60.0
    """How long a worker waits for the others when they join the host region."""
    pending_timeout_s: float = 5.0
    """How long a request waits for a chunk that is just being written or loaded, before it is a miss."""
    transfer_timeout_s: float = 60.0
    """After this time a transfer that no worker reported is given up and its slots are never used again."""
