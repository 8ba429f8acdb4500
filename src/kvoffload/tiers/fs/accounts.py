"""A tool as one of the store's writers: it promises nothing, but says what it freed, and can set the record right.

The rules are those of `share.py` and `usage.py`; a record that cannot be had is no reason to fail, because it then only
says too much until an engine walks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kvoffload.clock import Clock, MonotonicClock, WallClock
from kvoffload.errors import ConfigError
from kvoffload.tiers.fs.liveness import has_died
from kvoffload.tiers.fs.share import Baseline, UsageShare
from kvoffload.tiers.fs.store_root import RecordState, StoreRoot
from kvoffload.tiers.fs.survey import Observer
from kvoffload.tiers.fs.usage import Usage, UsageFile, WriterUsage, drop_dead
from kvoffload.tiers.fs.writer import new_writer

_REPORT_INTERVAL_S = 5.0


class Accounts:
    """The usage record in the hands of a tool. `open` it before anything is removed. Safe for threads.

    Args:
        store: The store.
        wall_clock: Seconds since the epoch.
    """

    def __init__(self, store: StoreRoot, wall_clock: Clock | None = None) -> None:
        self._store = store
        self._clock = wall_clock or WallClock()
        self.here = new_writer()
        record = UsageFile(store.disk, store.usage_path, self.here.text, MonotonicClock())
        self._share = UsageShare(record, self.here.text, None, self._clock)
        self._reported_s = time.monotonic()
        self.seen: Callable[[int], None] = lambda _chunks: None
        """Told of the progress of every survey; see `Observer`."""
        self.problem: str | None = None
        """Why the record could not be told something; None if all went well."""

    def observer(self) -> Observer:
        """Who is known to live, by the record as it is; changes nothing."""
        usage = self._store.read_record().usage
        writers = {} if usage is None else drop_dead(usage, self._is_dead).writers
        return Observer(self.here, self._clock.now_s(), frozenset(writers), self.seen)

    def open(self) -> None:
        """Begin to take part.

        Raises:
            ConfigError: the record is of a later version: what is removed could not be told.
        """
        if self._store.read_record().state is RecordState.NEWER:
            raise ConfigError(
                f"{self._store.usage_path} is of a later version of kvoffload than this one; nothing is changed: use that version"
            )
        self._try(self._share.show)

    def begin_count(self) -> Baseline | None:
        """Before a walk over all namespaces; forgets dead writers. None if the record cannot be had."""
        try:
            return self._share.begin_count(self._is_dead)[1]
        except OSError as error:
            self._note(error)
            return None

    def end_count(self, baseline: Baseline | None, found_bytes: int, *, is_whole: bool) -> Usage | None:
        """Set the record right by what the walk found; returns it."""
        if baseline is None:
            return None
        try:
            return self._share.end_count(baseline, found_bytes, is_whole=is_whole)
        except OSError as error:
            self._note(error)
            return None

    @property
    def counts(self) -> int:
        """To be noted before a file is removed."""
        return self._share.counts

    def freed(self, size_bytes: int, counts: int) -> None:
        """A file was removed; tells the record now and then, so that engines can use the room at once."""
        self._share.freed(size_bytes, counts)
        now_s = time.monotonic()
        if now_s - self._reported_s > _REPORT_INTERVAL_S:
            self._reported_s = now_s
            self._try(self._share.show)

    def close(self) -> None:
        """Say the rest and leave the record."""
        self._try(self._share.close)

    def _is_dead(self, name: str, entry: WriterUsage) -> bool:
        return has_died(name, entry, self.here, self._clock.now_s())

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        self.problem = f"the usage record could not be told ({error.strerror or error}); it says too much until the next walk"
