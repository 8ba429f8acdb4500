"""Counts of everything noteworthy, by name, from many threads; they only rise. Nothing else lives here."""

from __future__ import annotations

import errno
import threading


class Counters:
    """Name → count. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Count something."""
        assert count >= 0, (name, count)
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count

    def add_error(self, doing: str, error: OSError) -> None:
        """Count an error under what was being done and its name: `store_error_enospc`."""
        number = error.errno
        self.add(f"{doing}_error_{errno.errorcode.get(number, str(number)).lower() if number else 'other'}")

    def snapshot(self) -> dict[str, int]:
        """All counts; a copy."""
        with self._lock:
            return dict(self._counts)
