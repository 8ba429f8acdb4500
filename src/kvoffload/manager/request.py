"""What the manager remembers of a request: its keys, its device blocks, how far it has been stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from kvoffload.keys.offload_key import OffloadKey, group_suffix
from kvoffload.manager.wishes import NO_WISHES, Wishes
from kvoffload.policies.curve import first_bytes
from kvoffload.types import BlockId, JobId, RequestId


@dataclass(frozen=True, slots=True)
class GroupGeometry:
    """Sizes of one group, as the manager needs them."""

    group_id: int
    """Index in the engine's list of groups: part of the key."""
    tokens_per_block: int
    blocks_per_chunk: int
    tokens_per_hash: int
    reach_tokens: int | None = None
    """So many tokens before a boundary a load to it must bring; None: all of them (full attention). Of a window of w
    tokens w - 1, of a recurrent state 1: the block that ends at the boundary."""
    is_state: bool = False
    """A block holds the state behind its last token, not something for each of its tokens: it is true only if a step
    of the engine ended just there."""
    local_tokens: int | None = None
    """Chunked-local attention: a token sees those of its own stretch of so many tokens that are before it."""

    @property
    def is_sparse(self) -> bool:
        """A load to a boundary needs what is near to it only, and the engine keeps no more."""
        return self.reach_tokens is not None or self.local_tokens is not None

    def first_needed(self, boundary: int) -> int:
        """The first token that a load to this boundary must bring: what is before it no token behind the boundary sees."""
        if self.local_tokens is not None:
            return boundary - boundary % self.local_tokens
        return 0 if self.reach_tokens is None else max(0, boundary - self.reach_tokens)

    @property
    def tokens_per_chunk(self) -> int:
        """Tokens that one chunk spans."""
        return self.tokens_per_block * self.blocks_per_chunk

    @property
    def hashes_per_chunk(self) -> int:
        """Block hashes that one chunk spans; the last of them names it."""
        return self.tokens_per_chunk // self.tokens_per_hash


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A new request, as the engine describes it."""

    req_id: RequestId
    num_prompt_tokens: int
    block_hashes: Sequence[bytes]
    """Chained hashes of the known tokens. The engine's own list: it grows while tokens become known."""
    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None
    skip_load: bool = False
    """The request must not be served from any cache."""
    key_salt: bytes = b""
    """What the engine's hashes leave out although the KV depends on it (the contents of an adapter): with another
    salt the same hashes name other chunks."""
    wishes: Wishes = NO_WISHES

    @property
    def is_skipped(self) -> bool:
        """Neither looked up nor stored: it leaves no trace in the cache."""
        return self.skip_load and self.max_offload_tokens == 0


@dataclass(slots=True)
class GroupState:
    """One request in one group."""

    geometry: GroupGeometry
    keys: list[OffloadKey] = field(default_factory=list)
    own_keys: set[OffloadKey] = field(default_factory=set)
    """The same keys, for membership: they are protected from eviction by their own request."""
    key_starts: bytearray = field(default_factory=bytearray)
    """The first byte of each key: enough to sample them, without looking at all of them once more."""
    block_ids: list[BlockId] = field(default_factory=list)
    next_store_chunk: int = 0
    """Chunks before this one have been offered to the tier."""
    first_live_block: int = 0
    """Blocks before this one the engine may have given away: they are behind the window."""
    state_ends: tuple[int, ...] = ()
    """Where the last steps began and ended: at these tokens a state exists."""

    def follow(self, computed_tokens: int, scheduled_tokens: int) -> None:
        """A step begins behind `computed_tokens`: note what the engine keeps of the blocks, and where states are."""
        behind = self.geometry.first_needed(computed_tokens) // self.geometry.tokens_per_block
        self.first_live_block = max(self.first_live_block, behind)
        self.state_ends = (computed_tokens, computed_tokens + scheduled_tokens)

    def take_blocks(self, new: Sequence[BlockId], *, replaces: bool) -> None:
        """Further blocks, or all of them anew."""
        if replaces:
            self.clear_blocks()
        self.block_ids.extend(new)

    def clear_blocks(self) -> None:
        """Its device blocks are no longer its own."""
        self.block_ids.clear()
        self.first_live_block = 0
        self.state_ends = ()

    def extend_keys(self, block_hashes: Sequence[bytes], salt: bytes) -> None:
        """Make the keys of chunks that have become known since the last call. `salt`: of the request."""
        per_chunk = self.geometry.hashes_per_chunk
        known = len(block_hashes) // per_chunk
        if known <= len(self.keys):
            return
        suffix = group_suffix(self.geometry.group_id)
        names = [block_hashes[(i + 1) * per_chunk - 1] for i in range(len(self.keys), known)]
        if salt:
            names = [hashlib.sha256(salt + name).digest()[: len(name)] for name in names]
        # Not `OffloadKey(…)`: a call for each key would take longer than making it.
        new = cast("list[OffloadKey]", [name + suffix for name in names])
        self.keys.extend(new)
        self.own_keys.update(new)
        self.key_starts += first_bytes(new)


@dataclass(slots=True)
class RequestState:
    """One request in all groups."""

    info: RequestInfo
    groups: tuple[GroupState, ...]
    asked_tokens: int = 0
    """Tokens of the last match that have not been counted yet."""
    waiting_since_s: float | None = None
    """Since when its matches have been answered with "ask again"."""
    load_jobs: set[JobId] = field(default_factory=set)
    valid_tokens: int | None = None
    """Set when it has finished: tokens whose KV exists."""
    has_loaded: bool = False
    """Its blocks were filled by a load, or will be."""
    computes_all: bool = False
    """Nothing is loaded for it any more: a load over several groups has failed, or the engine takes no offer."""
    refused_offers: int = 0
    """Steps in a row in which the engine, with nothing else to do, did not take what it was offered."""
    predates_reset: bool = False
    """It holds KV from before a reset: nothing that it computes from that may enter a tier."""

    def extend_keys(self) -> None:
        """See GroupState."""
        for group in self.groups:
            group.extend_keys(self.info.block_hashes, self.info.key_salt)

    def follow(self, computed_tokens: int, scheduled_tokens: int) -> None:
        """See GroupState."""
        for group in self.groups:
            group.follow(computed_tokens, scheduled_tokens)

    def clear_blocks(self) -> None:
        """Its device blocks are no longer its own."""
        for group in self.groups:
            group.clear_blocks()
        self.has_loaded = False
        self.computes_all = False
        self.refused_offers = 0
        self.predates_reset = False

    def follow_reset(self) -> None:
        """The tiers were cleared. Stores nothing until it gets other blocks: the weights may be other ones now."""
        self.restart_stores()
        self.predates_reset = self.has_loaded or any(group.block_ids for group in self.groups)

    def restart_stores(self, first_chunk: int = 0) -> None:
        """Offer the chunks from `first_chunk` on once more."""
        for group in self.groups:
            group.next_store_chunk = min(group.next_store_chunk, first_chunk)
