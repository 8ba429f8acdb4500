"""Checks of a directory for a store. What is written for them goes into a scratch directory that is removed afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvoffload.cli.doctor.check import Check, fail, guarded, ok, warn
from kvoffload.cli.doctor.mounts import check_mount
from kvoffload.cli.doctor.speed import check_speed
from kvoffload.cli.store.output import size_text
from kvoffload.errors import ConfigError
from kvoffload.tiers.fs.directory import SHARED_DIRECTORY
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.opening import probe_direct
from kvoffload.tiers.fs.room import default_min_free_bytes
from kvoffload.tiers.fs.store_root import NamespaceState, StoreRoot, absolute, open_root
from kvoffload.tiers.fs.writer import new_writer

_SCRATCH_PREFIX = ".kvoffload-doctor-"
_MAX_SKEW_S = 5.0
_MAX_PATH_CHARS = 4096 - 400
"""What a chunk's name and those of its directories take, and some reserve."""


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """What to check with."""

    cap_bytes: int | None = None
    """What the tier may use; None: not said."""
    speed_bytes: int = 64 * 1024**2
    now_s: Callable[[], float] = time.time
    proc: Path = Path("/proc")


def check_storage(path: str, options: StorageOptions, disk: DiskIO | None = None) -> Iterator[Check]:
    """Everything about a directory.

    Args:
        path: The directory that is to be root_dir of an fs tier.
        options: What to check with.
        disk: The disk; tests inject faults here.
    """
    disk = disk or DiskIO()
    root = absolute(path)
    there = _nearest(root)
    yield from _check_existence(root, there)
    if not there.is_dir():
        return
    directory = os.path.realpath(there)
    yield from guarded("file system", lambda: iter((check_mount(directory, options.proc),)))
    yield from guarded("free space", lambda: iter((check_space(disk, directory, options.cap_bytes),)))
    yield from guarded("store", lambda: iter((check_store(root, disk),)))
    try:
        scratch = tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=directory)
    except OSError as error:
        yield fail(
            "writable",
            f"{directory}: {error.strerror}",
            "give a directory that this user may write, or read_only=true",
        )
        return
    try:
        yield ok("writable", f"{directory}")
        yield from _check_inside(scratch, options, disk)
    finally:
        # Our own, made a moment ago.
        shutil.rmtree(scratch, ignore_errors=True)


def check_space(disk: DiskIO, directory: str, cap_bytes: int | None) -> Check:
    """Whether what the tier may use, and what must stay free, is there."""
    name = "free space"
    found = disk.statvfs(directory)
    block = found.f_frsize or found.f_bsize
    free, total = found.f_bavail * block, found.f_blocks * block
    kept = default_min_free_bytes(total)
    text = f"{size_text(free)} of {size_text(total)}; {size_text(kept)} stay free unless min_free_bytes says otherwise"
    if free <= kept:
        return fail(name, text, "make room: nothing would be stored")
    if cap_bytes is None:
        return ok(name, f"{text}; compare with --fs-bytes SIZE")
    room = free - kept + _occupied(directory, disk)
    text = f"{text}; wanted {size_text(cap_bytes)}"
    if cap_bytes > room:
        return warn(
            name, text, f"give max_bytes at most {room}: more is never used, and others may fill the disk"
        )
    return ok(name, text)


def check_store(root: str, disk: DiskIO) -> Check:
    """What is there already."""
    name = "store"
    if not Path(root).is_dir() or not any(Path(root).iterdir()):
        return ok(name, "none yet; an engine makes it")
    try:
        store: StoreRoot = open_root(root, disk)
    except ConfigError as error:
        # Strangers are tolerated, but it is more often the wrong directory.
        return warn(
            name, str(error).partition(";")[0], "is it the right directory? What is in it stays untouched"
        )
    odd = [info for info in store.namespaces if info.state is not NamespaceState.READABLE]
    found = f"{len(store.namespaces)} namespace(s), {len(store.namespaces) - len(odd)} readable"
    if odd:
        names = ", ".join(f"{info.name}: {info.state.value}" for info in odd)
        return warn(name, f"{found}; {names}", f"kvoffload verify {root}")
    return ok(name, found)


def _occupied(directory: str, disk: DiskIO) -> int:
    """What a store in this directory takes already, by its record: it is part of the cap and not of the free space."""
    record = StoreRoot(disk, directory, ()).read_record()
    return (record.usage.used_bytes or 0) if record.usage else 0


def _nearest(root: str) -> Path:
    """The directory itself, or the nearest one above it that exists."""
    path = Path(root)
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def _check_existence(root: str, there: Path) -> Iterator[Check]:
    name = "directory"
    if len(root) > _MAX_PATH_CHARS:
        yield fail(
            name,
            f"a path of {len(root)} characters",
            "give a shorter one: chunks would have no room for their names",
        )
    elif not there.is_dir():
        yield fail(name, f"{there} is no directory", "give a directory")
    elif str(there) != root:
        yield warn(
            name,
            f"{root} does not exist; {there} does",
            "an engine makes it; but if it should be a mount, mount it first",
        )
    else:
        yield ok(name, root)


def _check_inside(scratch: str, options: StorageOptions, disk: DiskIO) -> Iterator[Check]:
    direct = False
    temp = new_writer().temp_name(1)

    def ask_direct() -> Iterator[Check]:
        nonlocal direct
        direct = probe_direct(disk, scratch, temp)
        if direct:
            yield ok("O_DIRECT", "works")
        else:
            yield warn(
                "O_DIRECT",
                "is refused here",
                "none needed: files go through the page cache, which takes memory",
            )

    yield from guarded("O_DIRECT", ask_direct)
    yield from _answered("rename and fsync", lambda: _check_publishing(scratch, disk))
    yield from _answered("record locks", lambda: _check_locks(scratch, disk))
    yield from _answered("clock", lambda: _check_clock(scratch, options, disk))
    yield from guarded(
        "speed", lambda: iter((check_speed(scratch, disk, options.speed_bytes, direct=direct),))
    )


def _answered(name: str, ask: Callable[[], Check]) -> Iterator[Check]:
    """Of what a tier cannot do without, an error is a failure."""
    try:
        yield ask()
    except OSError as error:
        yield fail(name, f"{error.strerror or error}", "give a directory on a file system that can do this")


def _check_publishing(scratch: str, disk: DiskIO) -> Check:
    """As a chunk is published: a temporary file, synced, renamed over another one, its directory synced."""
    source, target = f"{scratch}/source", f"{scratch}/target"
    for path, text in ((target, b"old"), (source, b"new")):
        fd = disk.open(path, os.O_WRONLY | os.O_CREAT)
        try:
            disk.write_from(fd, [memoryview(text)])
            disk.fsync(fd)
        finally:
            disk.close(fd)
    disk.rename(source, target)
    fd = disk.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)
    is_new = Path(target).read_bytes() == b"new" and not os.path.lexists(source)
    if not is_new:
        return fail(
            "rename and fsync",
            "a renamed file does not take the place of the other",
            "give another file system",
        )
    return ok("rename and fsync", "work")


def _check_locks(scratch: str, disk: DiskIO) -> Check:
    """As the usage record is locked: one descriptor at a time, also within one process."""
    path = f"{scratch}/{SHARED_DIRECTORY.strip('.')}-lock"
    first = disk.open(path, os.O_RDWR | os.O_CREAT)
    try:
        second = disk.open(path, os.O_RDWR)
        try:
            answers = disk.try_lock(first), disk.try_lock(second)
        finally:
            disk.close(second)
    finally:
        disk.close(first)
    if answers != (True, False):
        return fail(
            "record locks",
            "two writers get the same lock",
            "mount with locks (NFS: without nolock): the cap needs them",
        )
    return ok("record locks", "exclude each other")


def _check_clock(scratch: str, options: StorageOptions, disk: DiskIO) -> Check:
    """Whether the time that a file server gives to a new file is ours."""
    before_s = options.now_s()
    fd = disk.open(f"{scratch}/clock", os.O_WRONLY | os.O_CREAT)
    try:
        disk.write_from(fd, [memoryview(b"x")])
        written_s = disk.fstat(fd).st_mtime
    finally:
        disk.close(fd)
    after_s = options.now_s()
    skew_s = written_s - before_s if written_s < before_s else max(0.0, written_s - after_s)
    if abs(skew_s) > _MAX_SKEW_S:
        found = f"a new file is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine"
        return warn("clock", found, "set both clocks (NTP): evictions go by the time of last use")
    return ok("clock", "that of new files is this machine's")
