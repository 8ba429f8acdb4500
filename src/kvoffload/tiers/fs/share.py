"""This process's share of the cap: promises taken from the usage record in advance, spent without asking again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvoffload.clock import Clock
from kvoffload.tiers.fs.usage import Usage, UsageFile, WriterUsage, drop_dead

_MAX_GRANT_BYTES = 64 * 1024**2
_GRANTS_PER_CAP = 64
_STALE_S = 60.0
"""A promise this old is shown to the record again before it is spent: long pauses happen (a suspended machine),
and a writer that is not heard of loses its promises."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the record said when a walk began."""

    epoch: str
    promised_total_bytes: int
    open_promises_bytes: int


def grant_bytes_for(cap_bytes: int | None) -> int:
    """How much is promised at a time: few calls of the record, and little of the cap that lies idle."""
    return _MAX_GRANT_BYTES if cap_bytes is None else min(_MAX_GRANT_BYTES, cap_bytes // _GRANTS_PER_CAP)


class UsageShare:
    """Takes promises, spends them, reports what was freed. Safe for threads.

    Args:
        file: The record.
        name: This writer's name in it.
        cap_bytes: What all writers together may use; None: no cap, but others may have one, so all is recorded.
        wall_clock: Seconds since the epoch.
    """

    def __init__(self, file: UsageFile, name: str, cap_bytes: int | None, wall_clock: Clock) -> None:
        self._file = file
        self._name = name
        self._cap_bytes = cap_bytes
        self._clock = wall_clock
        self._grant_bytes = grant_bytes_for(cap_bytes)
        self._record_lock = threading.Lock()
        self._lock = threading.Lock()
        # All below: guarded by `_lock`, which is never held while the disk is touched.
        self._allowance_bytes = 0
        self._writing_bytes = 0
        self._freed_bytes = 0
        self._epoch = ""
        self._counts = 0
        self._shown_s = float("-inf")

    def take(self, need_bytes: int) -> int | None:
        """Get leave to write `need_bytes`.

        Returns:
            0: granted, to be settled. A positive number: so many bytes must be freed first. None: nobody has
            counted the directory yet.

        Raises:
            OSError: the record cannot be used.
        """
        if self._take_local(need_bytes):
            return 0
        with self._record_lock:
            # Another thread may have brought enough while this one waited.
            if self._take_local(need_bytes):
                return 0
            grant_bytes, missing = 0, 0 if self._cap_bytes is None else None

            def grant(usage: Usage) -> Usage:
                nonlocal grant_bytes, missing
                usage = self._synchronise(usage)
                grant_bytes, missing = self._plan(usage, need_bytes)
                return self._shown(_promised(usage, grant_bytes), grant_bytes)

            self._update(grant)
            with self._lock:
                # Only now: a grant that did not get into the record must not be spent.
                self._allowance_bytes += grant_bytes
            if missing == 0:
                taken = self._take_local(need_bytes)
                # Only a clock that jumps in this moment can make it fail.
                return 0 if taken else need_bytes
            return missing

    def settle(self, taken_bytes: int, added_bytes: int) -> None:
        """End what `take` began: `added_bytes` of it (or more) are on the disk now, the rest can be taken again."""
        with self._lock:
            self._writing_bytes -= taken_bytes
            self._allowance_bytes += taken_bytes - added_bytes

    @property
    def counts(self) -> int:
        """How many counts this share has heard of: to be noted before a file is removed, for `freed`."""
        return self._counts

    def freed(self, size_bytes: int, counts: int) -> None:
        """A file was removed by this process; `counts` was noted before.

        If a count ended in between, nobody knows whether it has seen the file; then it stays counted until the next.
        """
        with self._lock:
            if counts == self._counts:
                self._freed_bytes += size_bytes

    def show(self) -> Usage:
        """Tell the record that this writer lives and what it freed; returns the record. Raises OSError."""
        with self._record_lock:
            return self._update(lambda usage: self._shown(self._synchronise(usage)))

    def begin_count(self, is_dead: Callable[[str, WriterUsage], bool]) -> tuple[Usage, Baseline]:
        """Note where the promises stand before a walk; forgets dead writers. Raises OSError.

        Returns:
            The record, and what `end_count` needs.
        """
        with self._record_lock:
            usage = self._update(lambda usage: drop_dead(self._shown(self._synchronise(usage)), is_dead))
        open_bytes = sum(entry.promised_bytes for entry in usage.writers.values())
        return usage, Baseline(usage.epoch, usage.promised_total_bytes, open_bytes)

    def end_count(self, baseline: Baseline, found_bytes: int, *, is_whole: bool) -> Usage:
        """Set the record right by what a walk found; returns the record. Raises OSError.

        A walk that is not whole (places could not be read) only sets what nobody has counted yet: it knows too little
        to lower anything.
        """

        def correct(usage: Usage) -> Usage:
            usage = self._shown(self._synchronise(usage))
            if usage.epoch != baseline.epoch or not (is_whole or usage.used_bytes is None):
                return usage
            since = usage.promised_total_bytes - baseline.promised_total_bytes
            used = found_bytes + baseline.open_promises_bytes + since
            counts = usage.counts + 1
            with self._lock:
                self._counts = counts
            return replace(usage, used_bytes=used, counts=counts, counted_s=self._clock.now_s())

        with self._record_lock:
            return self._update(correct)

    def close(self) -> None:
        """Give back what was promised and not used. Raises OSError."""

        def leave(usage: Usage) -> Usage:
            usage = self._synchronise(usage)
            with self._lock:
                unused, self._allowance_bytes = self._allowance_bytes, 0
                still_writing = self._writing_bytes
            writers = {name: entry for name, entry in usage.writers.items() if name != self._name}
            if still_writing:
                # A thread that hangs in a write may yet end it.
                writers[self._name] = WriterUsage(still_writing, self._clock.now_s())
            used = usage.used_bytes
            return replace(usage, used_bytes=None if used is None else max(0, used - unused), writers=writers)

        with self._record_lock:
            self._update(leave)

    def _update(self, change: Callable[[Usage], Usage]) -> Usage:
        try:
            return self._file.update(change)
        except BaseException:
            with self._lock:
                # Whether the record was written is not known. Without the promises it can only say too much.
                self._allowance_bytes = min(0, self._allowance_bytes)
            raise

    def _take_local(self, need_bytes: int) -> bool:
        with self._lock:
            if self._allowance_bytes < need_bytes or self._clock.now_s() - self._shown_s > _STALE_S:
                return False
            self._allowance_bytes -= need_bytes
            self._writing_bytes += need_bytes
            return True

    def _synchronise(self, usage: Usage) -> Usage:
        """Bring record and share together: report what was freed, void what a lost record had promised."""
        with self._lock:
            freed, self._freed_bytes = self._freed_bytes, 0
            forgotten = usage.epoch != self._epoch or self._name not in usage.writers
            extra = 0
            if forgotten:
                # What is being written now may have escaped the count: it is promised again, on top.
                self._allowance_bytes = 0
                extra = self._writing_bytes
            if forgotten or usage.counts != self._counts:
                # Freed before a count ended, told after: the count may have gone without it already.
                freed = 0
            self._epoch, self._counts = usage.epoch, usage.counts
        usage = _promised(usage, extra)
        if usage.used_bytes is None:
            return usage
        return replace(usage, used_bytes=max(0, usage.used_bytes - freed))

    def _plan(self, usage: Usage, need_bytes: int) -> tuple[int, int | None]:
        """(bytes to promise, bytes that are missing first or None: not counted)."""
        with self._lock:
            lacking = need_bytes - self._allowance_bytes
        if self._cap_bytes is None:
            return max(lacking, self._grant_bytes), 0
        if usage.used_bytes is None:
            return 0, None
        room = self._cap_bytes - usage.used_bytes
        if room < lacking:
            return 0, lacking - room
        return max(0, lacking, min(self._grant_bytes, room)), 0

    def _shown(self, usage: Usage, grant_bytes: int = 0) -> Usage:
        """The record with this writer's present state in it."""
        now_s = self._clock.now_s()
        with self._lock:
            self._shown_s = now_s
            promised = max(0, self._allowance_bytes + self._writing_bytes + grant_bytes)
        return replace(usage, writers={**usage.writers, self._name: WriterUsage(promised, now_s)})


def _promised(usage: Usage, more_bytes: int) -> Usage:
    """The record with a further promise in it."""
    used = usage.used_bytes
    return replace(
        usage,
        used_bytes=None if used is None else used + more_bytes,
        promised_total_bytes=usage.promised_total_bytes + more_bytes,
    )
