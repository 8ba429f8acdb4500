"""The host tier of one group: which chunk is in which slot, who protects it, who goes when room is needed.

Every slot is in exactly one of these states (`check` proves it):

    free ── prepare_store ──> writing ── commit_store ──> ready ── evict / drop ──> free
                                 └───── abort_store ───> free       (a pinned slot only after its last unpin)

The verbs take batches: this is the hot path of the scheduler. No I/O, no clock, no jobs here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import filterfalse

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.prepared import PreparedStore, Writes
from kvoffload.manager.retention import MAX_EXPIRED, Retention, Shares
from kvoffload.manager.wishes import Stay
from kvoffload.policies.admission import Admission
from kvoffload.policies.base import EvictionPolicy
from kvoffload.types import LookupResult, SlotId


class HostTier:
    """Index, slots, pins and eviction of one group's chunks in host memory.

    Args:
        num_slots: Number of slots.
        policy: Orders the ready keys.
        admission: Decides which new keys may be stored.
        shares: What requests with wishes may take of it.
    """

    def __init__(
        self, num_slots: int, policy: EvictionPolicy, admission: Admission, shares: Shares | None = None
    ) -> None:
        self.num_slots = num_slots
        self._retention = Retention(policy, num_slots, shares or Shares())
        self._policy = self._retention.policy
        self._admission = admission
        # Low slots first: neighbours in a prompt get neighbouring slots, which join into one copy.
        self._free = [SlotId(slot) for slot in range(num_slots - 1, -1, -1)]
        self._ready: dict[OffloadKey, SlotId] = {}
        self._writing: dict[OffloadKey, SlotId] = {}
        self._pins: dict[SlotId, int] = {}
        # Those of the pins that are loads to the device: others may want to share them.
        self._loading: dict[SlotId, int] = {}
        # Pinned slots whose key is gone: they become free at their last unpin.
        self._orphans: set[SlotId] = set()
        # None, or a time: chunks are left whose life was over then. And how many have gone since this was told.
        self._behind_s: float | None = None
        self._expired = 0

    # -- queries -------------------------------------------------------------------------------------------------

    def lookup(self, key: OffloadKey) -> LookupResult:
        """HIT, HIT_PENDING (being written) or MISS. Does not mutate."""
        self._catch_up([key])
        if key in self._ready:
            return LookupResult.HIT
        return LookupResult.HIT_PENDING if key in self._writing else LookupResult.MISS

    def lookup_all(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """`lookup` of each key, in one call. Does not mutate."""
        self._catch_up(keys)
        ready, writing = self._ready, self._writing
        hit, pending, miss = LookupResult.HIT, LookupResult.HIT_PENDING, LookupResult.MISS
        return [hit if key in ready else pending if key in writing else miss for key in keys]

    def has_none_of(self, keys: Collection[OffloadKey]) -> bool:
        """Whether all of these are a MISS, in one call. Does not mutate."""
        self._catch_up(keys)
        return self._ready.keys().isdisjoint(keys) and self._writing.keys().isdisjoint(keys)

    def lookup_prefix(self, keys: Sequence[OffloadKey]) -> tuple[int, bool]:
        """How far a prefix reaches, in one call.

        Returns:
            Number of leading keys that are ready, and whether the next one is being written. Does not mutate.
        """
        self._catch_up(keys)
        ready = self._ready
        hits = 0
        for key in keys:
            if key not in ready:
                return hits, key in self._writing
            hits += 1
        return hits, False

    def any_loading(self, keys: Iterable[OffloadKey]) -> bool:
        """Whether a running load reads one of these chunks. Does not mutate."""
        loading = self._loading
        return bool(loading) and not loading.keys().isdisjoint(map(self._ready.get, keys))

    @property
    def ready_count(self) -> int:
        """Chunks that can be loaded now."""
        return len(self._ready)

    @property
    def pinned_count(self) -> int:
        """Slots that somebody reads."""
        return len(self._pins)

    @property
    def kept_count(self) -> int:
        """Chunks that a request has asked to keep for a time (its `pin`)."""
        return self._retention.kept_count

    # -- loads and other readers ---------------------------------------------------------------------------------

    def hold(self, keys: Sequence[OffloadKey]) -> list[SlotId | None]:
        """Pin the chunks: they are neither evicted nor overwritten until they are released.

        Returns:
            The slot of each key, None for a key that is not ready (and not pinned). Each slot that is returned
            must be given to `release` once.
        """
        self._catch_up(keys)
        pins = self._pins
        slots = list(map(self._ready.get, keys))
        for slot in slots:
            if slot is not None:
                pins[slot] = pins.get(slot, 0) + 1
        return slots

    def release(self, slots: Iterable[SlotId]) -> None:
        """Unpin slots that `hold` pinned, once each."""
        pins, orphans = self._pins, self._orphans
        for slot in slots:
            left = pins[slot] - 1
            if left:
                pins[slot] = left
                continue
            del pins[slot]
            if slot in orphans:
                orphans.remove(slot)
                self._free.append(slot)

    def prepare_load(self, keys: Sequence[OffloadKey]) -> list[SlotId | None]:
        """Hold the chunks for a load and take them for recent, the first one for the most recent.

        Returns:
            As `hold`; each slot must be given to `complete_load` once.
        """
        slots = self.hold(keys)
        loading = self._loading
        for slot in slots:
            if slot is not None:
                loading[slot] = loading.get(slot, 0) + 1
        self._policy.chain(keys)
        self._policy.renew(self._backwards(keys) if None in slots else reversed(keys))
        return slots

    def complete_load(self, slots: Sequence[SlotId]) -> None:
        """A load that `prepare_load` prepared is over."""
        loading = self._loading
        for slot in slots:
            if loading[slot] == 1:
                del loading[slot]
            else:
                loading[slot] -= 1
        self.release(slots)

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """Count the ready ones of these keys as used, the first as the most recent.

        In this order because a chunk is worth nothing without those before it: the deepest must go first.
        """
        self._policy.chain(keys)
        self._policy.touch(self._backwards(keys))

    def renew(self, keys: Sequence[OffloadKey]) -> None:
        """As `touch`, but the use is counted elsewhere: a request counts once, when its chunks are offered."""
        self._policy.chain(keys)
        self._policy.renew(self._backwards(keys))

    # -- stores --------------------------------------------------------------------------------------------------

    def prepare_store(
        self, keys: Sequence[OffloadKey], protected: Collection[OffloadKey] = ()
    ) -> PreparedStore:
        """Find slots for those of the offered keys that are not there yet.

        Keys that are there count as used. If room is short, the first keys of the offer are served: a prefix can
        be used without its end, but not the other way round.

        Args:
            keys: The offer, in the order of the prompt, without duplicates.
            protected: Keys that must not be evicted for it (the rest of the same prompt: evicting its beginning
                to store its end would leave nothing that can be used).

        Returns:
            The decision; every key in `slots` must be committed or aborted once.
        """
        new = self._missing(keys)
        self._policy.chain(keys)
        if known := len(keys) - len(new):
            # Mostly the new ones are the end of the prompt, and the others need not be looked for.
            is_prefix = not new or new[0] == keys[known]
            self._policy.touch(self._backwards(keys[:known] if is_prefix else keys))
        admitted = self._admission.admit(new)
        self._policy.expect(admitted)
        evicted = self._make_room(len(admitted), protected)
        slots = self._take_slots(admitted)
        return PreparedStore(slots, tuple(evicted), len(new) - len(admitted), len(admitted) - len(slots))

    def reserve(self, keys: Sequence[OffloadKey], protected: Collection[OffloadKey] = ()) -> PreparedStore:
        """Slots for chunks that come from another tier: as `prepare_store`, but nothing is left out by admission."""
        new = self._missing(keys)
        self._policy.chain(keys)
        self._policy.expect(new)
        evicted = self._make_room(len(new), protected)
        slots = self._take_slots(new)
        return PreparedStore(slots, tuple(evicted), 0, len(new) - len(slots))

    def commit_store(self, writes: Writes) -> list[OffloadKey]:
        """Publish chunks whose copies all succeeded; those that a reset or drop overtook give their slot back.

        Returns:
            The keys that were published.
        """
        own = self._end_writes(writes)
        self._ready.update(own)
        published = list(own)
        self._policy.insert(reversed(published))
        return published

    def abort_store(self, writes: Writes) -> None:
        """Give back the slots of chunks that were not written."""
        self._retention.forget(own := self._end_writes(writes))
        self._free.extend(own.values())

    # -- how long chunks stay ------------------------------------------------------------------------------------

    def retain(
        self, keys: Sequence[OffloadKey], new: Collection[OffloadKey], stay: Stay, now_s: float
    ) -> int:
        """An offer was answered: what is there of it, or on its way, stays as its request wishes.

        Args:
            keys: The offer.
            new: Those of it that were given slots.
            stay: The wishes.
            now_s: The time.

        Returns:
            How many chunks are not kept for it because the share for that is used up.
        """
        if not self._retention.concerns(stay):
            return 0
        ready, writing = self._ready, self._writing
        offered = [(key, key in ready) for key in keys if key in ready or key in writing]
        return self._retention.apply(offered, new, stay, now_s)

    def pass_time(self, now_s: float) -> int:
        """What was kept until now may be evicted again; what was to live until now is gone, being written or not.

        Only `MAX_EXPIRED` at once: others go when somebody names them or needs room, or later. Nobody sees a difference.

        Returns:
            How many chunks were forgotten since the last call.
        """
        for key, rank in self._retention.unkeep(now_s):
            self._policy.assign(key, rank, is_known=key in self._ready)
        self._expire(now_s, MAX_EXPIRED)
        expired, self._expired = self._expired, 0
        return expired

    def _expire(self, now_s: float, most: int) -> None:
        overdue = self._retention.overdue(now_s, most)
        self._behind_s = now_s if len(overdue) == most else None
        self._forget_overdue(overdue)

    def _catch_up(self, keys: Iterable[OffloadKey]) -> None:
        """These are about to be used: what should not be there any more goes now."""
        if self._behind_s is not None:
            self._forget_overdue(self._retention.overdue_of(keys, self._behind_s))

    def _forget_overdue(self, keys: Sequence[OffloadKey]) -> None:
        self._expired += len(keys)
        for key in self._writing.keys() & keys:
            self.forget_write(key, self._writing[key])
        self.drop(keys)

    # -- removal -------------------------------------------------------------------------------------------------

    def drop(self, keys: Iterable[OffloadKey]) -> int:
        """Forget ready chunks whose bytes are in doubt. Pinned slots become free at their last unpin.

        Returns:
            How many were there.
        """
        gone = [key for key in keys if key in self._ready]
        self._policy.remove(gone)
        self._retention.forget(gone)
        self._release([self._ready.pop(key) for key in gone])
        return len(gone)

    def forget_write(self, key: OffloadKey, slot: SlotId) -> None:
        """Give up a store that nobody reported: the key may be stored anew.

        The slot stays out of use until the late `commit_store` or `abort_store`.
        """
        if self._writing.get(key) == slot:
            del self._writing[key]
            self._retention.forget([key])

    def clear(self) -> int:
        """Forget everything; stores in flight will not come back, running loads keep their slots to the end.

        Returns:
            How many ready chunks were dropped.
        """
        dropped = len(self._ready)
        slots = list(self._ready.values())
        self._ready.clear()
        self._writing.clear()
        self._retention.clear()
        self._behind_s = None
        self._admission.clear()
        self._release(slots)
        return dropped

    def check(self, writing_slots: Collection[SlotId], held_slots: Collection[SlotId]) -> None:
        """Raise AssertionError unless every slot is in exactly one state and every pin has an owner.

        Args:
            writing_slots: The slots that somebody writes, as the ledger and the staging know them.
            held_slots: The slots that somebody reads, one entry for each pin.
        """
        states = [*self._free, *self._ready.values(), *writing_slots, *self._orphans]
        assert sorted(states) == list(range(self.num_slots)), sorted(states)
        assert set(self._writing.values()) <= set(writing_slots), self._writing
        assert not self._ready.keys() & self._writing.keys()
        assert self._orphans <= self._pins.keys(), (self._orphans, self._pins)
        assert self._pins.keys() <= self._orphans | set(self._ready.values()), self._pins
        assert self._pins == Counter(held_slots), (self._pins, held_slots)
        assert all(0 < count <= self._pins[slot] for slot, count in self._loading.items()), self._loading
        assert len(self._policy) == len(self._ready), (len(self._policy), len(self._ready))
        self._retention.check({*self._ready, *self._writing})

    def _missing(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        self._catch_up(keys)
        new = list(filterfalse(self._ready.__contains__, keys))
        return list(filterfalse(self._writing.__contains__, new)) if self._writing else new

    def _backwards(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Those that are ready, the last one first."""
        return list(filter(self._ready.__contains__, reversed(keys)))

    def _end_writes(self, writes: Writes) -> dict[OffloadKey, SlotId]:
        """Those that were still being written as was prepared; the slots of the others are free now."""
        slots = writes if isinstance(writes, dict) else dict(writes)
        self._catch_up(slots)
        writing = self._writing
        if writing == slots:
            # All writes that there are: often, and by far the fastest.
            self._writing = {}
            return slots
        own = {key: slot for key, slot in slots.items() if writing.get(key) == slot}
        if len(own) < len(slots):
            self._free.extend([slot for key, slot in slots.items() if key not in own])
        for key in own:
            del writing[key]
        return own

    def _take_slots(self, keys: Sequence[OffloadKey]) -> dict[OffloadKey, SlotId]:
        taken = min(len(keys), len(self._free))
        if not taken:
            return {}
        slots = dict(zip(keys, self._free[: -taken - 1 : -1], strict=False))
        del self._free[-taken:]
        self._writing.update(slots)
        return slots

    def _make_room(self, needed: int, protected: Collection[OffloadKey]) -> Sequence[OffloadKey]:
        while (missing := needed - len(self._free)) > 0 and self._behind_s is not None:
            self._expire(self._behind_s, missing)
        if missing <= 0:
            return ()
        ready, pins = self._ready, self._pins
        # Mostly nothing is pinned; then the question is answered without a call into Python for each key.
        is_kept = (lambda key: ready[key] in pins or key in protected) if pins else protected.__contains__
        victims = self._policy.evict(missing, is_kept)
        self._free.extend(map(ready.pop, victims))
        self._retention.forget_evicted(victims)
        return victims

    def _release(self, slots: Iterable[SlotId]) -> None:
        for slot in slots:
            if slot in self._pins:
                self._orphans.add(slot)
            else:
                self._free.append(slot)
