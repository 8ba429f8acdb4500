"""How long chunks stay in one host tier, as requests wish: priorities, pins for a time, times to live.

Inside the manager such a pin is called *keeping*; the pins of `HostTier` are another thing: they protect a slot while
somebody reads it. No clock here: the time is an argument. See docs/design/009-request-controls.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.wishes import Stay
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.heap import RankedKeys
from kvoffload.policies.ranked import Rank, RankedPolicy

MAX_EXPIRED = 1024
"""Chunks whose time to live is over and that are forgotten in one call: some milliseconds."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What requests with wishes may take of a tier: from 0 to below 1."""

    kept: float = 0.5
    high: float = 0.5


class Retention:
    """The terms of the chunks of one host tier; chunks without terms cost nothing.

    Args:
        policy: The tier's policy, empty.
        num_slots: Of the tier.
        shares: Bounds.
    """

    def __init__(self, policy: EvictionPolicy, num_slots: int, shares: Shares) -> None:
        self.policy = RankedPolicy(policy, int(num_slots * shares.high))
        self.max_kept = int(num_slots * shares.kept)
        # What a key ranks when it is no longer kept; of kept keys only.
        self._rank_after: dict[OffloadKey, Rank] = {}
        self._kept_until = RankedKeys()
        self._ends_at = RankedKeys()

    @property
    def kept_count(self) -> int:
        """Chunks that are kept, those that are just being written included."""
        return len(self._rank_after)

    def concerns(self, stay: Stay) -> bool:
        """Whether an offer with these wishes could change anything."""
        return not stay.is_usual or bool(self._ends_at) or self.policy.may_have_low

    def apply(
        self,
        offered: Sequence[tuple[OffloadKey, bool]],
        new: Collection[OffloadKey],
        stay: Stay,
        now_s: float,
    ) -> int:
        """An offer was taken: its chunks stay as its request wishes, and at least as others have wished before.

        Args:
            offered: Keys that are in the tier or on their way, in the order of the prompt, and whether each is there.
            new: Those that came with this offer.
            stay: The wishes.
            now_s: The time.

        Returns:
            How many chunks were not kept although it was wished: the share is used up.
        """
        refused = 0
        ranks = []
        for key, is_known in offered:
            self._set_end(key, key in new, stay, now_s)
            rank = stay.priority.rank
            if key not in new:
                rank = max(rank, self._rank_after.get(key, self.policy.rank_of(key)))
            if stay.keep_s is not None and not self._keep(key, now_s + stay.keep_s):
                refused += 1
            if key in self._rank_after:
                self._rank_after[key] = rank
                rank = Rank.KEPT
            ranks.append((key, rank, is_known))
        # Backwards: of a prompt the first chunk counts as the most recent.
        for key, rank, is_known in reversed(ranks):
            self.policy.assign(key, rank, is_known=is_known)
        return refused

    def forget(self, keys: Iterable[OffloadKey]) -> None:
        """These chunks have gone, or will not come; the policy knows them no longer."""
        for key in keys:
            self.policy.forget(key)
            self._ends_at.discard(key)
            if self._rank_after.pop(key, None) is not None:
                self._kept_until.discard(key)

    def forget_evicted(self, keys: Iterable[OffloadKey]) -> None:
        """As `forget`, for chunks that the policy gave up itself: none of them was kept."""
        if self._ends_at:
            for key in keys:
                self._ends_at.discard(key)

    def overdue(self, now_s: float, most: int) -> list[OffloadKey]:
        """Chunks whose time to live is over, up to `most`; each is told once, and must be dropped."""
        gone: list[OffloadKey] = []
        while len(gone) < most and (first := self._ends_at.first()) is not None and first[1] <= now_s:
            self._ends_at.discard(first[0])
            gone.append(first[0])
        return gone

    def overdue_of(self, keys: Iterable[OffloadKey], now_s: float) -> list[OffloadKey]:
        """As `overdue`, of these keys."""
        end_of = self._ends_at.rank_of
        gone = [key for key in keys if (end_s := end_of(key)) is not None and end_s <= now_s]
        for key in gone:
            self._ends_at.discard(key)
        return gone

    def unkeep(self, now_s: float) -> list[tuple[OffloadKey, Rank]]:
        """Chunks that are no longer kept, and their ranks from now on; each must be assigned its own, in this order."""
        over = []
        while (first := self._kept_until.first()) is not None and first[1] <= now_s:
            self._kept_until.discard(first[0])
            over.append((first[0], self._rank_after.pop(first[0])))
        return over[::-1]

    def clear(self) -> None:
        """Forget everything."""
        self.policy.clear()
        self._rank_after.clear()
        self._kept_until.clear()
        self._ends_at.clear()

    def check(self, known: Collection[OffloadKey]) -> None:
        """Raise AssertionError unless the terms fit to the keys that are in the tier or on their way."""
        assert self.kept_count <= self.max_kept, (self.kept_count, self.max_kept)
        assert len(self._kept_until) == self.kept_count, (len(self._kept_until), self.kept_count)
        for key in self._rank_after:
            assert key in known, key
            assert key in self._kept_until, key
            assert self.policy.rank_of(key) is Rank.KEPT, key
        assert self._ends_at.keys() <= set(known), self._ends_at.keys()
        assert self.policy.keys_with_ranks() <= set(known), self.policy.keys_with_ranks()

    def _keep(self, key: OffloadKey, until_s: float) -> bool:
        before_s = self._kept_until.rank_of(key)
        if before_s is None:
            if self.kept_count >= self.max_kept:
                return False
            self._rank_after[key] = Rank.NORMAL
        if before_s is None or until_s > before_s:
            self._kept_until.set(key, until_s)
        return True

    def _set_end(self, key: OffloadKey, is_new: bool, stay: Stay, now_s: float) -> None:
        """The longest wish holds: none at all is for ever."""
        before_s = self._ends_at.rank_of(key)
        if stay.ttl_s is None:
            self._ends_at.discard(key)
        elif is_new or (before_s is not None and before_s < now_s + stay.ttl_s):
            self._ends_at.set(key, now_s + stay.ttl_s)
