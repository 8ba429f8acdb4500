"""SIEVE: a queue, a hand that walks over it, and one bit per key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.queues import Queue


class SIEVEPolicy(EvictionPolicy):
    """Yazhuo Zhang, Juncheng Yang, Yao Yue, Ymir Vigfusson, K. V. Rashmi: SIEVE is simpler than LRU … (NSDI 2024).

        oldest ── passed ── hand ── ahead ── newest

    The hand goes from the oldest to the newest key and round again. It spares a key that was used since it last came
    by, in its place (that is the difference to CLOCK), and evicts the first that was not.

    Variant: the paper's. The queue is kept in two parts, behind and before the hand, so no linked list is needed.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._passed: Queue = OrderedDict()
        self._ahead: Queue = OrderedDict()
        self._used: set[OffloadKey] = set()

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        self._ahead.update(dict.fromkeys(keys))

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        self._used.update(keys)

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._used.discard(key)
            del (self._ahead if key in self._ahead else self._passed)[key]
        self._go_round()

    def evict(self, count: int, is_kept: Callable[[OffloadKey], bool]) -> list[OffloadKey]:
        """See EvictionPolicy."""
        victims: list[OffloadKey] = []
        spared = 0
        # Whoever is spared twice in a row without a victim in between is kept.
        while len(victims) < count and spared <= 2 * len(self):
            if not self._ahead:
                break
            key, _ = self._ahead.popitem(last=False)
            if is_kept(key):
                self._passed[key] = None
                spared += 1
            elif key in self._used:
                self._used.discard(key)
                self._passed[key] = None
                spared += 1
            else:
                victims.append(key)
                spared = 0
            self._go_round()
        return victims

    def clear(self) -> None:
        """See EvictionPolicy."""
        self._passed.clear()
        self._ahead.clear()
        self._used.clear()

    def __len__(self) -> int:
        """Number of known keys."""
        return len(self._passed) + len(self._ahead)

    def _go_round(self) -> None:
        # At once, not when the hand is needed: a key that comes next is new, and the hand is at the oldest.
        if not self._ahead:
            self._passed, self._ahead = self._ahead, self._passed
