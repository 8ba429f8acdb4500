"""The options that users set, with their defaults. Names are the ones that vLLM's users know."""

from __future__ import annotations

from dataclasses import dataclass

from kvoffload.config.units import size_field
from kvoffload.errors import ConfigError

HOST_NAME = "host"
"""What requests call host memory in lists of tiers; no tier below may have this name."""
MAX_WAIT_S = 86_400.0 * 365
MAX_RETRIES = 100
MAX_SHARE = 0.9
"""Something must be left for everybody else."""


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """Options that every tier has: how much it may be bothered and how long it is waited for."""

    deadline_s: float = 10.0
    """A job that takes longer is given up."""
    failures_to_open: int = 3
    """Failed jobs in a row after which the tier is left alone for a while; one time-out is enough."""
    retry_after_s: float = 30.0
    """How long it is left alone."""
    max_queued_bytes: int = size_field("1GiB")
    """Chunks that wait to be stored; each of them keeps its place in host memory."""
    max_store_bytes_in_flight: int = size_field("256MiB")
    batch_bytes: int = size_field("32MiB")
    """Stores are handed over in jobs of about this size."""
    max_retries: int = 2
    """How often a chunk that the tier failed with is tried again, after a short, growing, jittered pause."""

    def __post_init__(self) -> None:
        for name in ("deadline_s", "retry_after_s"):
            # Written so that "not a number" fails too.
            if not 0 < getattr(self, name) <= MAX_WAIT_S:
                raise ConfigError(
                    f"{name}={getattr(self, name)} must be above 0 seconds and at most {MAX_WAIT_S:.0f}"
                )
        for name in ("failures_to_open", "max_queued_bytes", "max_store_bytes_in_flight", "batch_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.max_retries <= MAX_RETRIES:
            raise ConfigError(f"max_retries={self.max_retries} must be 0 to {MAX_RETRIES}")


@dataclass(frozen=True, slots=True)
class TierOptions:
    """One entry of `secondary_tiers`."""

    type: str
    module_path: str | None
    """Python module of an out-of-tree tier; `type` is then its class name."""
    lane: LaneOptions
    own: object
    """The tier's own options: an instance of its `options_type`."""


@dataclass(frozen=True, slots=True)
class OffloadingOptions:
    """Options of `kv_connector_extra_config`, parsed."""

    cpu_bytes_to_use: int = size_field()
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
    store_min_prompt_tokens: int = 0
    """Store nothing of prompts that are shorter: computing them is quick."""
    store_max_tokens: int | None = None
    """Store at most so many tokens from the start of a request: one long document shall not flush the tier."""
    offload_prompt_only: bool = True
    """Store the prompt's chunks and not the answer's: the next turn often drops or rewrites the answer
    (reasoning, templates), so that its chunks would be written and never read."""
    canonical_layout: bool = False
    canonical_order: str = "HND"
    """Whether heads or tokens lie outside in the canonical layout's chunks: HND gives every tensor-parallel rank one range
    of a layer; NHD saves engines whose cache has that order the transcoding. Engines that share chunks must agree."""
    self_describing_kv_events: bool = False
    secondary_tiers: tuple[TierOptions, ...] = ()
    """Tiers below host memory, the fastest first (they need spec_name TieringOffloadingSpec)."""
    load_policy: str = "auto"
    """When chunks are fetched from a secondary tier: "always", "never", or "auto": unless recomputing is faster."""
    promotion_deadline_s: float = 10.0
    """How long a request waits for secondary tiers before it goes on without them."""
    drain_timeout_s: float = 30.0
    """How long a shutdown waits for stores to secondary tiers."""
    model_identity: str | None = None
    """Which weights the engine serves, said by you: needed only if they cannot be told from the model's files, or if they
    are updated in place; must then change whenever they do."""
    hash_seed: str | None = None
    """Says that PYTHONHASHSEED is set on purpose: it must then have exactly this value in every engine."""
    record_dir: str | None = None
    """Write what requests ask for (hashes, no tokens) into a new file there, for `kvoffload simulate`."""
    record_max_bytes: int = size_field("256MiB")
    """Such a file does not grow beyond."""
    join_timeout_s: float = 60.0
    """How long a worker waits for the others when they join the host region."""
    max_pinned_share: float = 0.5
    """What requests may pin (`pin`) of each group's host memory; of more, the chunks are cached as usual."""
    max_high_priority_share: float = 0.5
    """What chunks of requests with priority "high" may take of it before they count as normal ones."""
    pending_timeout_s: float = 5.0
    """How long a request waits for a chunk that is just being written or loaded, before it is a miss."""
    transfer_timeout_s: float = 60.0
    """After this time a transfer that no worker reported is given up and its slots are never used again."""
