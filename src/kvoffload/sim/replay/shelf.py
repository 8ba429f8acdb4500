"""One tier of a replay: the production index with its policy, two channels with a speed, and what it counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.prepared import PreparedStore
from kvoffload.policies.admission import TouchFilter
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.sim.replay.options import TierSpec

_MAX_TRACKED = 64_000


@dataclass(slots=True)
class ShelfCounts:
    """What happened at one tier."""

    hit_tokens: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    evicted: int = 0
    evicted_unread: int = 0
    """Evicted before anybody read it: written for nothing."""
    not_stored: int = 0
    """Left out by admission, for want of room, or because the tier could not keep up."""


class Channel:
    """One direction of a tier: transfers wait for each other. Virtual time.

    Args:
        bytes_per_s: Its speed.
        latency_s: Of every transfer.
    """

    def __init__(self, bytes_per_s: float, latency_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._free_s = 0.0

    def send(self, now_s: float, size_bytes: int) -> float:
        """Begin a transfer as soon as possible; returns when it ends."""
        self._free_s = max(now_s, self._free_s) + size_bytes / self._bytes_per_s
        return self._free_s + self._latency_s

    def backlog_s(self, now_s: float) -> float:
        """How long a transfer would wait."""
        return max(0.0, self._free_s - now_s)


class Shelf:
    """A tier.

    Args:
        spec: Size and speeds.
        policy: Name of its eviction policy.
        chunk_bytes: Bytes of a chunk.
        store_threshold: See OffloadingOptions.
    """

    def __init__(self, spec: TierSpec, policy: str, chunk_bytes: int, store_threshold: int = 0) -> None:
        self.spec = spec
        self.slots = spec.size_bytes // chunk_bytes
        self.counts = ShelfCounts()
        self.reads = Channel(spec.read_bytes_per_s, spec.latency_s)
        self.writes = Channel(spec.write_bytes_per_s, spec.latency_s)
        ordered = EVICTION_POLICIES.resolve(policy)(max(1, self.slots))
        self.tier = HostTier(self.slots, ordered, TouchFilter(store_threshold, _MAX_TRACKED))
        self._chunk_bytes = chunk_bytes
        self._read: set[OffloadKey] = set()
        """Of the chunks that are here, those that somebody has read."""

    def read(self, keys: Sequence[OffloadKey], now_s: float) -> float:
        """Read these, which are there; returns when they have been read."""
        size_bytes = len(keys) * self._chunk_bytes
        self.counts.read_bytes += size_bytes
        self._read.update(keys)
        return self.reads.send(now_s, size_bytes)

    def take(self, keys: Sequence[OffloadKey], own: Collection[OffloadKey]) -> PreparedStore:
        """Slots for chunks that were computed."""
        prepared = self.tier.prepare_store(keys, own)
        self._count(prepared)
        return prepared

    def promote(self, keys: Sequence[OffloadKey], own: Collection[OffloadKey]) -> PreparedStore:
        """Slots for chunks that come from a tier below."""
        prepared = self.tier.reserve(keys, own)
        self._count(prepared)
        return prepared

    def publish(self, prepared: PreparedStore, _now_s: float = 0.0) -> None:
        """They are there."""
        self.tier.commit_store(prepared.slots)

    def _count(self, prepared: PreparedStore) -> None:
        counts = self.counts
        counts.written_bytes += len(prepared.slots) * self._chunk_bytes
        counts.not_stored += prepared.filtered + prepared.rejected
        evicted, read = prepared.evicted, self._read
        if evicted:
            before = len(read)
            read.difference_update(evicted)
            counts.evicted += len(evicted)
            counts.evicted_unread += len(evicted) - (before - len(read))
