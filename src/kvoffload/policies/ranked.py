"""Ranks over any eviction policy: what ranks lower goes first, what is kept does not go at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy


class Rank(IntEnum):
    """How late a chunk goes, whatever the policy thinks of it."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    KEPT = 3
    """Never evicted."""


class RankedPolicy(EvictionPolicy):
    """One instance of a policy for each rank: no policy need know of ranks.

    And no victim is searched for among keys of another rank: one policy that passes over what is kept would walk over all
    of it in every eviction.

    A rank is given with `assign`, before or after the key comes, and lasts until the key goes or is assigned anew. Keys
    without one are NORMAL, and while there are no others this costs one call.

    Args:
        normal: The policy, empty; others of its kind are made when they are first needed.
        max_high: So many keys may be HIGH; of more, those that the policy values least become NORMAL.
    """

    def __init__(self, normal: EvictionPolicy, max_high: int) -> None:
        super().__init__(normal.capacity)
        self.normal = normal
        self._max_high = max_high
        self._parts: dict[Rank, EvictionPolicy] = {Rank.NORMAL: normal}
        # Of known keys, and of those to come; NORMAL ones are in neither.
        self._rank_of: dict[OffloadKey, Rank] = {}
        self._to_come: dict[OffloadKey, Rank] = {}
        self._kept = 0
        # Most policies do not, and prompts are named often.
        self._takes_chains = type(normal).chain is not EvictionPolicy.chain

    @property
    def may_have_low(self) -> bool:
        """False: no key is LOW, nor will one be."""
        return bool(self._to_come) or bool(self._parts.get(Rank.LOW))

    def assign(self, key: OffloadKey, rank: Rank, *, is_known: bool) -> None:
        """Give a key a rank; `is_known`: it has been inserted. A key that changes its rank counts as just used."""
        if not is_known:
            self._set_to_come(key, rank)
            return
        if self.rank_of(key) is rank:
            return
        self.remove([key])
        self._set_to_come(key, rank)
        self.insert([key])

    def keys_with_ranks(self) -> set[OffloadKey]:
        """All keys that are not NORMAL, those to come included."""
        return {*self._rank_of, *self._to_come}

    def rank_of(self, key: OffloadKey) -> Rank:
        """Its rank; NORMAL if it has none."""
        rank = self._rank_of.get(key)
        return self._to_come.get(key, Rank.NORMAL) if rank is None else rank

    def forget(self, key: OffloadKey) -> None:
        """It will not come."""
        self._to_come.pop(key, None)

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        if not self._to_come:
            self.normal.insert(keys)
            return
        plain = []
        for key in keys:
            rank = self._to_come.pop(key, None)
            if rank is None:
                plain.append(key)
                continue
            self._rank_of[key] = rank
            if rank is Rank.KEPT:
                self._kept += 1
            else:
                self._part(rank).insert([key])
        self.normal.insert(plain)
        self._limit_high()

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        if not self._rank_of:
            self.normal.touch(keys)
            return
        for rank, part in self._split(keys):
            if rank is not Rank.KEPT:
                self._part(rank).touch(part)

    def renew(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        if not self._rank_of:
            self.normal.renew(keys)
            return
        for rank, part in self._split(keys):
            if rank is not Rank.KEPT:
                self._part(rank).renew(part)

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        if not self._rank_of:
            self.normal.remove(keys)
            return
        for rank, part in self._split(keys):
            if rank is Rank.KEPT:
                self._kept -= len(part)
            else:
                self._part(rank).remove(part)
            self._lose_ranks(part)

    def evict(self, count: int, is_kept: Callable[[OffloadKey], bool]) -> Sequence[OffloadKey]:
        """See EvictionPolicy. The lowest rank first."""
        if not self._rank_of:
            return self.normal.evict(count, is_kept)
        victims: list[OffloadKey] = []
        for rank in (Rank.LOW, Rank.NORMAL, Rank.HIGH):
            if rank in self._parts and len(victims) < count:
                victims.extend(self._parts[rank].evict(count - len(victims), is_kept))
        self._lose_ranks(victims)
        return victims

    def clear(self) -> None:
        """See EvictionPolicy."""
        for part in self._parts.values():
            part.clear()
        self._rank_of.clear()
        self._to_come.clear()
        self._kept = 0

    def expect(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        if len(self._parts) == 1:
            self.normal.expect(keys)
            return
        wanted = list(keys)
        for part in self._parts.values():
            part.expect(wanted)

    def chain(self, keys: Sequence[OffloadKey]) -> None:
        """See EvictionPolicy."""
        if self._takes_chains:
            for part in self._parts.values():
                part.chain(keys)

    def __len__(self) -> int:
        """Number of known keys."""
        return self._kept + sum(map(len, self._parts.values()))

    def _part(self, rank: Rank) -> EvictionPolicy:
        if rank not in self._parts:
            self._parts[rank] = type(self.normal)(self.capacity)
        return self._parts[rank]

    def _set_to_come(self, key: OffloadKey, rank: Rank) -> None:
        if rank is Rank.NORMAL:
            self._to_come.pop(key, None)
        else:
            self._to_come[key] = rank

    def _split(self, keys: Iterable[OffloadKey]) -> list[tuple[Rank, list[OffloadKey]]]:
        """By rank, in order."""
        parts: dict[Rank, list[OffloadKey]] = {}
        for key in keys:
            parts.setdefault(self._rank_of.get(key, Rank.NORMAL), []).append(key)
        return list(parts.items())

    def _lose_ranks(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            self._rank_of.pop(key, None)

    def _limit_high(self) -> None:
        high = self._parts.get(Rank.HIGH)
        if high is None or len(high) <= self._max_high:
            return
        demoted = high.evict(len(high) - self._max_high, lambda _key: False)
        self._lose_ranks(demoted)
        # The least valuable first: it is also the first to go among its new neighbours.
        self.normal.insert(demoted)
