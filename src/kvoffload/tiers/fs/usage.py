"""The usage record: one small file per root by which all its writers, of all processes and hosts, keep one cap.

    used_bytes  =  what is on the disk  +  what writers were promised and have not written yet     (or more, never less)

A writer takes promises in advance (under the file's lock), writes without asking, and reports what it freed.
A walk of the directory (`begin_count` … `end_count`) sets the record right again, however writers have died:

    used := bytes the walk found  +  promises that were open when it began  +  promises made since

A file that the walk missed was covered by one of the two promises, so the sum is never too low; what it counts twice
it counts in the safe direction, until the next walk.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from kvoffload.clock import Clock
from kvoffload.layout.chunk_format import checksum
from kvoffload.tiers.fs.disk import DiskIO

_KIND, _VERSION = "kvoffload usage", 1
_MAX_RECORD_BYTES = 1024**2
_LOCK_TIMEOUT_S = 2.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.0002, 0.01


class UsageBusyError(OSError):
    """Another process held the record's lock for longer than anybody may."""


@dataclass(frozen=True, slots=True)
class WriterUsage:
    """What the record knows of one writer."""

    promised_bytes: int
    """It may write that many bytes more; they are part of `used_bytes`."""
    seen_s: float
    """When it was here last, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The record."""

    epoch: str
    """Another one after the record was lost and made anew: what was promised before is void."""
    used_bytes: int | None
    """None: nobody has counted yet, so nothing can be promised."""
    promised_total_bytes: int
    """All promises ever made; only rises."""
    counts: int
    """How often a walk has set `used_bytes`."""
    counted_s: float
    """When the last walk did, seconds since the epoch."""
    writers: dict[str, WriterUsage]

    def encode(self) -> bytes:
        """As text, one line for the checksum and one for the values."""
        values = json.dumps(
            {
                "kind": _KIND,
                "version": _VERSION,
                "epoch": self.epoch,
                "used_bytes": self.used_bytes,
                "promised_total_bytes": self.promised_total_bytes,
                "counts": self.counts,
                "counted_s": self.counted_s,
                "writers": {
                    name: [entry.promised_bytes, entry.seen_s] for name, entry in self.writers.items()
                },
            }
        ).encode()
        return checksum(values).hex().encode() + b"\n" + values + b"\n"


def is_of_later_version(data: bytes) -> bool:
    """Whether this is the record of a version of kvoffload that this one does not know."""
    _, _, values = data.partition(b"\n")
    try:
        found = json.loads(values)
        return bool(found["kind"] == _KIND and found["version"] > _VERSION)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def decode_usage(data: bytes) -> Usage | None:
    """The inverse of `Usage.encode`; None for anything else (an empty, torn or foreign file)."""
    digest, _, values = data.partition(b"\n")
    values = values.removesuffix(b"\n")
    if checksum(values).hex().encode() != digest:
        return None
    try:
        found = json.loads(values)
        if (found["kind"], found["version"]) != (_KIND, _VERSION):
            return None
        return Usage(
            epoch=str(found["epoch"]),
            used_bytes=None if found["used_bytes"] is None else int(found["used_bytes"]),
            promised_total_bytes=int(found["promised_total_bytes"]),
            counts=int(found["counts"]),
            counted_s=float(found["counted_s"]),
            writers={name: WriterUsage(int(b), float(s)) for name, (b, s) in found["writers"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


Change = Callable[[Usage], Usage]


class UsageFile:
    """The file of the record, and the lock by which one at a time changes it.

    Args:
        disk: The disk.
        path: Path of the file; its directory is made when needed.
        name: This writer, as in the record; also makes a new epoch unique.
        clock: For how long the lock is waited for.
    """

    def __init__(self, disk: DiskIO, path: str, name: str, clock: Clock) -> None:
        self._disk = disk
        self._path = path
        self._name = name
        self._clock = clock
        self._epochs = 0

    def read(self) -> Usage | None:
        """The record as it is now, without the lock; None if there is none. Raises OSError."""
        try:
            fd = self._disk.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return self._read(fd)
        finally:
            self._disk.close(fd)

    def update(self, change: Change) -> Usage:
        """Replace the record by `change(record)`, alone; returns the new one. A lost record begins anew.

        Raises:
            UsageBusyError: the lock was not to be had.
            OSError: the file cannot be opened, locked, read or written.
        """
        fd = self._open_locked()
        try:
            before = self._read(fd) or self._fresh()
            after = change(before)
            data = after.encode()
            self._disk.write_from(fd, [memoryview(data)])
            self._disk.truncate(fd, len(data))
            return after
        finally:
            # Gives the lock back, too.
            with suppress(OSError):
                self._disk.close(fd)

    def _open_locked(self) -> int:
        deadline = self._clock.now_s() + _LOCK_TIMEOUT_S
        pause_s = _FIRST_PAUSE_S
        tries = 0
        while True:
            fd = self._open()
            try:
                if self._disk.try_lock(fd) and self._is_current(fd):
                    return fd
            except OSError:
                self._disk.close(fd)
                raise
            self._disk.close(fd)
            tries += 1
            # The number of tries is a bound of its own: a test's clock may stand still.
            if self._clock.now_s() >= deadline or tries >= _LOCK_TIMEOUT_S / _LAST_PAUSE_S:
                raise UsageBusyError(f"{self._path}: the lock was held for more than {_LOCK_TIMEOUT_S} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT
        try:
            return self._disk.open(self._path, flags)
        except FileNotFoundError:
            directory = self._path.rpartition("/")[0]
            for path in (directory.rpartition("/")[0], directory):
                with suppress(FileExistsError):
                    self._disk.mkdir(path)
            return self._disk.open(self._path, flags)

    def _is_current(self, fd: int) -> bool:
        """Whether the locked file still is the one at the path, and not one that somebody removed meanwhile."""
        try:
            now = self._disk.lstat(self._path)
        except FileNotFoundError:
            return False
        ours = self._disk.fstat(fd)
        return (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino)

    def _read(self, fd: int) -> Usage | None:
        buffer = memoryview(bytearray(min(self._disk.fstat(fd).st_size, _MAX_RECORD_BYTES)))
        if not buffer:
            return None
        data = bytes(buffer[: self._disk.read_into(fd, [buffer])])
        if is_of_later_version(data):
            # Beginning anew would forget what its writers were promised.
            raise OSError(
                errno.EPROTONOSUPPORT, "the usage record is of a later version of kvoffload", self._path
            )
        return decode_usage(data)

    def _fresh(self) -> Usage:
        self._epochs += 1
        epoch = f"{self._name}-{self._epochs}-{time.time_ns()}"
        return Usage(epoch, None, 0, 0, 0.0, {})


def drop_dead(usage: Usage, is_dead: Callable[[str, WriterUsage], bool]) -> Usage:
    """Forget the writers that will not write any more; what they were promised stays in `used_bytes`."""
    alive = {name: entry for name, entry in usage.writers.items() if not is_dead(name, entry)}
    return replace(usage, writers=alive)
