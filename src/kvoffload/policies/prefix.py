"""LRU that knows prompts: only ends go, so that no chunk is kept whose beginning is gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.heap import RankedKeys

_ORPHANED = 0
"""Rank of a chunk whose beginning has gone: it can never be hit again before that is stored anew."""


class PrefixPolicy(EvictionPolicy):
    """Leaves of the tree of prefixes, the least recently used first.

    The order of SGLang's radix cache (Lianmin Zheng et al.: SGLang, efficient execution of structured language model programs,
    NeurIPS 2024, §3), here over keys alone. Variant: the tree is learned from `chain`. A key whose parent nobody
    named is a root. When the parent of a known key is lost for another reason, its whole subtree goes first. If only
    leaves that are kept are left, inner keys go all the same, the least recently used first: the contract demands it.
    Without `chain` (the fs tier) this is LRU.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._turn = _ORPHANED
        self._used: dict[OffloadKey, int] = {}
        self._parent: dict[OffloadKey, OffloadKey] = {}
        """Of known keys; the parent need not be known."""
        self._children: dict[OffloadKey, dict[OffloadKey, None]] = {}
        """The same the other way round."""
        self._coming: OrderedDict[OffloadKey, OffloadKey] = OrderedDict()
        """Parents of keys that are not known yet."""
        self._leaves = RankedKeys()

    def chain(self, keys: Sequence[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for parent, child in pairwise(keys):
            if child not in self._used:
                self._coming[child] = parent
                self._coming.move_to_end(child)
            elif self._parent.get(child) != parent:
                self._unlink(child)
                self._link(child, parent)
        while len(self._coming) > 2 * self.capacity:
            self._coming.popitem(last=False)

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._use(key)
            parent = self._coming.pop(key, None)
            if parent is not None:
                self._link(key, parent)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._use(key)

    def renew(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        self.touch(keys)

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._forget(key)

    def evict(self, count: int, is_kept: Callable[[OffloadKey], bool]) -> list[OffloadKey]:
        """See EvictionPolicy."""
        victims: list[OffloadKey] = []
        kept: list[OffloadKey] = []
        while len(victims) < count:
            first = self._leaves.pop()
            if first is None:
                break
            if is_kept(first[0]):
                kept.append(first[0])
                continue
            self._forget(first[0])
            victims.append(first[0])
        for key in kept:
            self._leaves.set(key, self._used[key])
        if len(victims) < count:
            oldest_first = sorted(self._used, key=self._used.__getitem__)
            inner = [key for key in oldest_first if not is_kept(key)][: count - len(victims)]
            self.remove(inner)
            victims += inner
        return victims

    def clear(self) -> None:
        """See EvictionPolicy."""
        for part in (self._used, self._parent, self._children, self._coming, self._leaves):
            part.clear()

    def __len__(self) -> int:
        """Number of known keys."""
        return len(self._used)

    def _use(self, key: OffloadKey) -> None:
        self._turn += 1
        self._used[key] = self._turn
        if key not in self._children:
            self._leaves.set(key, self._turn)

    def _link(self, child: OffloadKey, parent: OffloadKey) -> None:
        self._parent[child] = parent
        self._children.setdefault(parent, {})[child] = None
        self._leaves.discard(parent)

    def _unlink(self, child: OffloadKey) -> None:
        parent = self._parent.pop(child, None)
        if parent is None:
            return
        siblings = self._children[parent]
        del siblings[child]
        if not siblings:
            del self._children[parent]
            if parent in self._used:
                self._leaves.set(parent, self._used[parent])

    def _forget(self, key: OffloadKey) -> None:
        del self._used[key]
        self._leaves.discard(key)
        self._unlink(key)
        self._orphan(key)

    def _orphan(self, key: OffloadKey) -> None:
        """What hangs on a key that has gone goes next."""
        waiting = list(self._children.get(key, ()))
        while waiting:
            child = waiting.pop()
            if self._used[child] == _ORPHANED:
                continue
            self._used[child] = _ORPHANED
            waiting.extend(self._children.get(child, ()))
            if child not in self._children:
                self._leaves.set(child, _ORPHANED)
