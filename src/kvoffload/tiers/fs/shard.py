"""One of the 256 parts of the index: the chunks whose hash begins with one byte (one directory of the first level).

Parts, because a dictionary of a million entries stops the whole process for 50–150 ms whenever it grows; a part
of it does so for less than one. The caller holds the index's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy


class Victim(NamedTuple):
    """A chunk that may be evicted."""

    key: OffloadKey
    used_s: float
    """When it was used last, as far as this process knows; seconds since the epoch."""


class Shard:
    """Chunks, and the order in which they go. Every chunk is in exactly one of: policy, `_front`, `_stuck`.

    Args:
        policy: Orders them for eviction; empty.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self.used_s: dict[OffloadKey, float] = {}
        """Chunk → time of last use. Others read it without the lock."""
        self._policy = policy
        self._front: OffloadKey | None = None
        """A victim that was proposed and not taken: still the first to go."""
        self._stuck: set[OffloadKey] = set()
        """They could not be deleted."""

    def insert(self, key: OffloadKey, used_s: float) -> bool:
        """It is there and was just used; returns whether it is new."""
        is_new = key not in self.used_s
        self.used_s[key] = used_s
        if is_new:
            self._policy.insert((key,))
        elif key == self._front:
            self._front = None
            self._policy.insert((key,))
        elif key not in self._stuck:
            self._policy.touch((key,))
        return is_new

    def remove(self, key: OffloadKey) -> bool:
        """It is gone; returns whether it was known."""
        if self.used_s.pop(key, None) is None:
            return False
        if key == self._front:
            self._front = None
        elif key in self._stuck:
            self._stuck.discard(key)
        else:
            self._policy.remove((key,))
        return True

    def replace(self, found: Mapping[OffloadKey, float], kept: Iterable[OffloadKey]) -> None:
        """Hold exactly what a walk found, and those of `kept` that are known; in the order of their last use."""
        known = self.used_s
        # A time that is only in memory (touches are written rarely) is newer than the one on the disk.
        now = {key: max(used_s, known.get(key, used_s)) for key, used_s in found.items()}
        now.update((key, known[key]) for key in kept if key in known)
        self._policy.clear()
        self._policy.insert(sorted(now, key=now.__getitem__))
        self.used_s, self._front = now, None
        self._stuck.clear()

    def front(self, is_kept: Callable[[OffloadKey], bool]) -> Victim | None:
        """The chunk that should go first; it stays so until it is used, removed, put back or found stuck."""
        if self._front is None or is_kept(self._front):
            evicted = self._policy.evict(1, is_kept)
            if not evicted:
                return None
            if self._front is not None:
                self._policy.insert((self._front,))
            self._front = evicted[0]
        return Victim(self._front, self.used_s[self._front])

    def set_stuck(self, key: OffloadKey) -> None:
        """The proposed victim could not be deleted."""
        if key == self._front:
            self._front = None
            self._stuck.add(key)

    def clear(self) -> None:
        """Forget everything."""
        self._policy.clear()
        self.used_s, self._front = {}, None
        self._stuck.clear()

    def check(self) -> None:
        """For tests."""
        held = len(self._policy) + len(self._stuck) + (self._front is not None)
        assert held == len(self.used_s), (len(self._policy), self._stuck, self._front, len(self.used_s))
