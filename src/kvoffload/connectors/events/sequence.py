"""Numbers of messages: which are missing, and whether the publisher has begun anew. Pure."""

from __future__ import annotations

from enum import Enum, auto


class Restart(Enum):
    """The publisher counts from its beginning again: another engine, or the same one after a restart."""

    RESTART = auto()


class Sequence:
    """What came last. Numbers below the first one do not count as missing: they were before our time."""

    def __init__(self) -> None:
        self._last: int | None = None

    def take(self, number: int) -> range | Restart:
        """A message with this number is here: the numbers that are missing before it, or a new beginning."""
        last, self._last = self._last, number
        if last is None:
            return range(0)
        if number <= last:
            return Restart.RESTART
        return range(last + 1, number)
