"""Writes the journal. What several threads announce at once goes into one object: one request for all of them."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Sequence

from kvoffload.clock import Clock
from kvoffload.tiers.obj.caller import Caller
from kvoffload.tiers.obj.journal import Event, encode_journal
from kvoffload.tiers.obj.place import ObjPlace
from kvoffload.tiers.obj.trouble import ObjectError


class _Ticket:
    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.is_done = False
        self.error: ObjectError | None = None


class Announcer:
    """Tells all engines what came and went.

    Args:
        caller: The store.
        place: Names.
        wall_clock: For the names of journal objects.
    """

    def __init__(self, caller: Caller, place: ObjPlace, wall_clock: Clock) -> None:
        self.writer = secrets.token_hex(8)
        """One tier of one process."""
        self._caller = caller
        self._place = place
        self._wall_clock = wall_clock
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._waiting: list[_Ticket] = []

    def announce(self, events: Sequence[Event]) -> None:
        """Returns when the journal says it. Raises ObjectError if it does not (or perhaps does not)."""
        ticket = _Ticket(events)
        with self._lock:
            self._waiting.append(ticket)
        with self._turn:
            if not ticket.is_done:
                self._write_waiting()
        if ticket.error is not None:
            raise ObjectError(ticket.error.trouble, "the journal could not be written")

    def announce_alone(self, events: Sequence[Event]) -> None:
        """The same in an object of its own, without waiting for what others are announcing. Raises ObjectError."""
        text = encode_journal(events)
        name = self._place.journal_name(self._wall_clock.now_s(), self.writer, next(self._numbers))
        self._caller.put(name, [memoryview(text)], create=False)

    def is_own(self, name: str) -> bool:
        """Whether a journal object was written here."""
        return f"-{self.writer}-" in name

    def _write_waiting(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        error: ObjectError | None = None
        try:
            self.announce_alone([event for ticket in batch for event in ticket.events])
        except ObjectError as found:
            error = found
        for ticket in batch:
            ticket.error = error
            ticket.is_done = True
