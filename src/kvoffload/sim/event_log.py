"""The events of a run, one line each, and a digest of all of them: equal digests mean equal runs."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from kvoffload.clock import Clock


class EventLog:
    """Digests lines, and hands them to somebody who shows them.

    Args:
        clock: Stamps every line.
        show: Is given every line; None: nobody looks.
    """

    def __init__(self, clock: Clock, show: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._show = show
        self._hash = xxhash.xxh3_128()
        self.count = 0
        """Events so far."""

    def add(self, event: str) -> None:
        """Note an event."""
        line = f"{self._clock.now_s():10.4f} {event}"
        self.count += 1
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        if self._show is not None:
            self._show(line)

    @property
    def digest(self) -> str:
        """Of all lines so far, 32 hexadecimal characters."""
        return self._hash.hexdigest()
