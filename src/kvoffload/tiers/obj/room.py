"""The cap of a namespace: room for what is to be written, made by deleting what was used least recently."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.obj.announcer import Announcer
from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.catalogue import HeldObject
from kvoffload.tiers.obj.journal import Went
from kvoffload.tiers.obj.trouble import ObjectError

_SLACK_PART = 32
"""A little more than needed is removed, so that not every store has to delete something."""


class Room:
    """Gives out bytes of the cap. Safe for threads.

    The cap holds for what this process knows to be there: what others wrote since the last look at the journal comes
    on top until then. With the next look it goes (`Sweeper.meet_cap`).

    Args:
        around: The store and what is known of it.
        announcer: Is told what was deleted.
    """

    def __init__(self, around: Around, announcer: Announcer) -> None:
        self._around = around
        self._announcer = announcer
        self._lock = threading.Lock()
        self._promised_bytes = 0

    def acquire(self, size_bytes: int, kept: Collection[OffloadKey]) -> bool:
        """Promise so many bytes, and make room if needed, but not at the cost of the chunks `kept`. Raises ObjectError."""
        cap = self._around.config.max_bytes
        if cap is None:
            return True
        with self._lock:
            too_many = self._around.catalogue.size_bytes + self._promised_bytes + size_bytes - cap
            if too_many > 0:
                slack = cap // _SLACK_PART
                victims = self._victims(too_many, kept, slack)
                if victims is None:
                    self._around.counters.add("rejected_no_room")
                    return False
                self.remove(victims, "evicted")
            self._promised_bytes += size_bytes
            return True

    def settle(self, size_bytes: int) -> None:
        """What was promised is in the catalogue now, or will not be written."""
        if self._around.config.max_bytes is not None:
            with self._lock:
                self._promised_bytes -= size_bytes

    def superfluous(self, expected_bytes: int) -> list[HeldObject]:
        """What must go so that the cap is met, also if others wrote, when `expected_bytes` go anyway."""
        cap = self._around.config.max_bytes
        if cap is None:
            return []
        with self._lock:
            too_many = self._around.catalogue.size_bytes + self._promised_bytes - expected_bytes - cap
            return (self._victims(too_many, (), 0) or []) if too_many > 0 else []

    def remove(self, victims: Sequence[HeldObject], reason: str) -> None:
        """Delete objects and tell everybody. Raises ObjectError."""
        names = [victim.name for victim in victims]
        if not names:
            return
        with self._around.names.holding(names):
            # First out of the catalogue: nobody here shall begin to read them. If the deletion fails, they are orphans.
            self._around.catalogue.remove(names)
            self._around.caller.delete(names)
        self._around.counters.add(f"{reason}_objects", len(names))
        self._around.counters.add(reason, sum(len(victim.chunks) for victim in victims))
        try:
            self._announcer.announce([Went(name) for name in names])
        except ObjectError:
            # Others find out when they read them.
            self._around.counters.add("unannounced_deletions", len(names))

    def _victims(self, too_many: int, kept: Collection[OffloadKey], slack: int) -> list[HeldObject] | None:
        """The least recently used that are so many bytes, and a little more; None if there are not so many."""
        victims: list[HeldObject] = []
        found = 0
        for held in self._around.catalogue.objects():
            if found >= too_many + slack:
                break
            if not any(chunk.key in kept for chunk in held.chunks):
                victims.append(held)
                found += held.size_bytes
        return victims if found >= too_many else None
