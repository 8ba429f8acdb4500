"""What the core knows of an engine: frozen dataclasses that a connector fills in.

No defaults for facts: a connector must know them. Options that users set are in `options.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvoffload.config.options import OffloadingOptions
from kvoffload.config.pages import LayerFacts


@dataclass(frozen=True, slots=True)
class OffloadingGroupConfig:
    """One KV cache group: layers that share one kind of attention and one block table."""

    group_id: int
    """Index of the group in the engine's own list."""
    tokens_per_block: int
    """Tokens that one block spans, all workers together (context parallelism counted in)."""
    layer_names: tuple[str, ...]
    worker_kv_bytes_per_block: int
    """Bytes that one worker stores for one block, all layers of the group together."""
    page_signature: str
    """What the bytes of a page mean, readable. Direct layout: one layer's page on one worker (kind of attention, heads,
    sizes, dtype); canonical: all layers as they are without parallelism."""
    layers: tuple[LayerFacts, ...] = ()
    """What is known of every layer's page, in the order of `layer_names`. Only the canonical layout needs it."""
    reach_tokens: int | None = None
    """How many tokens before a boundary a load to it must bring; None: all of them (full attention). Of a sliding window of
    w tokens w - 1, of a recurrent state 1."""
    local_tokens: int | None = None
    """Chunked-local attention: so many tokens make a stretch, and no token sees another stretch than its own."""
    is_state: bool = False
    """A block holds a recurrent state: true only where a step of the engine ended with the block."""


@dataclass(frozen=True, slots=True)
class OffloadingModelConfig:
    """The identity of the weights and of the KV bytes that they make."""

    name: str
    revision: str
    """Commit, tag or content digest: two sets of weights under one name must differ here."""
    dtype: str
    """The effective dtype of the KV cache; never "auto"."""
    quantisation: str
    """Quantisation of the KV cache ("none" if there is none)."""


@dataclass(frozen=True, slots=True)
class OffloadingCacheConfig:
    """How tokens become keys and keys become chunks."""

    tokens_per_hash: int
    blocks_per_chunk: int
    hash_algorithm: str
    hash_seed: str
    """Identity of the seed that the first hash of every chain starts from."""
    prefix_caching: bool
    """Whether the engine keeps a prefix cache of its own on the device."""
    boundary_unit_tokens: int = 1
    """The engine's own hits end on multiples of this many tokens: the least common multiple of the blocks of all of its
    groups, also of those that are not offloaded."""


@dataclass(frozen=True, slots=True)
class OffloadingParallelConfig:
    """The engine's parallel layout. `rank` is 0 on the scheduler's side."""

    rank: int
    world_size: int
    tp_size: int
    pp_size: int
    pcp_size: int
    dcp_size: int
    data_parallel_index: int
    data_parallel_size: int
    is_parallelism_agnostic: bool
    """Whether the stored bytes mean the same under any parallel layout."""


@dataclass(frozen=True, slots=True)
class LayoutIdentity:
    """What fixes the order of the bytes in a chunk."""

    family: str
    """"direct" (workers side by side) or "canonical"."""
    format_version: int
    engine_layout: str
    """The engine's own name of its physical KV layout, e.g. "LBHNC"."""
    engine_family: str
    """The engine and whatever of it changes the meaning of the bytes, e.g. "vllm/v1-runner"."""


@dataclass(frozen=True, slots=True)
class OffloadingConfig:
    """Everything that a spec needs to make a manager and a worker."""

    groups: tuple[OffloadingGroupConfig, ...]
    model: OffloadingModelConfig
    cache: OffloadingCacheConfig
    parallel: OffloadingParallelConfig
    layout: LayoutIdentity
    engine_id: str
    """Unique to one engine, distinct for every data-parallel rank, equal in all of its processes."""
    enable_kv_cache_events: bool
    replicated_layout: bool
    """Whether one copy of a chunk serves all ranks because all of them hold the same bytes; its rows are canonical ones."""
    canonical_layout: bool
    """Whether chunks are kept as they would be without parallelism: asked for, or because the layout is replicated."""
    options: OffloadingOptions
    spec_options: object
    """Options of an out-of-tree spec, parsed by itself (a frozen dataclass), or None."""

    @property
    def worker_kv_bytes_per_block(self) -> int:
        """Bytes that one worker stores for one block of every group."""
        return sum(group.worker_kv_bytes_per_block for group in self.groups)

    def tokens_per_chunk(self, index: int) -> int:
        """Tokens that one chunk of the `index`-th group spans."""
        return self.groups[index].tokens_per_block * self.cache.blocks_per_chunk
