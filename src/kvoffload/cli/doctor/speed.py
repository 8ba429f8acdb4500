"""A quick measurement of a directory: a few files of a chunk's size written, synced and read back past the page cache."""

from __future__ import annotations

import mmap
import os
import time

from kvoffload.cli.doctor.check import Check, ok, warn
from kvoffload.cli.store.output import size_text
from kvoffload.tiers.fs.disk import DiskIO

_FILES = 8
_PAGE_BYTES = 4096
_MEBIBYTE = 1024**2
_SLOW_MIB_S = 50.0
_FREE_PART = 4
"""No more than this part of the free space is written."""


def check_speed(scratch: str, disk: DiskIO, size_bytes: int, *, direct: bool) -> Check:
    """Write and read `size_bytes` in a scratch directory, with one thread; the files stay there. Raises OSError."""
    found = disk.statvfs(scratch)
    free = found.f_bavail * (found.f_frsize or found.f_bsize)
    file_bytes = min(size_bytes, free // _FREE_PART) // _FILES // _PAGE_BYTES * _PAGE_BYTES
    if file_bytes == 0:
        return warn("speed", "not measured: there is no room", "make room")
    # Not zeros: some file systems do not write them.
    row = memoryview(mmap.mmap(-1, file_bytes))
    row[:_PAGE_BYTES] = os.urandom(_PAGE_BYTES)
    for begin in range(_PAGE_BYTES, file_bytes, _PAGE_BYTES):
        row[begin : begin + _PAGE_BYTES] = row[:_PAGE_BYTES]
    flags = os.O_DIRECT if direct else 0
    paths = [f"{scratch}/speed-{number}" for number in range(_FILES)]
    write_s = _timed_write(disk, paths, row, flags)
    read_s = _timed_read(disk, paths, row, flags)
    write, read = (_FILES * file_bytes / _MEBIBYTE / max(seconds, 1e-9) for seconds in (write_s, read_s))
    text = (
        f"write {write:,.0f} MiB/s, read {read:,.0f} MiB/s ({_FILES} files of {size_text(file_bytes)}, one after the other, "
        f"{'O_DIRECT' if direct else 'page cache dropped'})"
    )
    if read < _SLOW_MIB_S:
        return warn("speed", text, "slower than computing anew for many models; give a faster disk")
    return ok("speed", text)


def _timed_write(disk: DiskIO, paths: list[str], row: memoryview, flags: int) -> float:
    began = time.perf_counter()
    for path in paths:
        fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags)
        try:
            disk.write_from(fd, [row])
            disk.fsync(fd)
        finally:
            disk.close(fd)
    return time.perf_counter() - began


def _timed_read(disk: DiskIO, paths: list[str], row: memoryview, flags: int) -> float:
    took = 0.0
    for path in paths:
        fd = disk.open(path, os.O_RDONLY | flags)
        try:
            if not flags:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            disk.read_into(fd, [row])
            took += time.perf_counter() - began
        finally:
            disk.close(fd)
    return took
