"""Opening a store's directory: make it, check whose it is, find out whether O_DIRECT works. May block; raises plainly."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kvoffload.errors import ConfigError
from kvoffload.layout.chunk_format import ALIGNMENT_BYTES
from kvoffload.tiers.fs.directory import DIRECTORY_BYTES, GONE, NAMESPACE_BYTES, ROOT_BYTES
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.namespace_file import read_namespace, write_namespace
from kvoffload.tiers.fs.options import DirectIo, FsTierConfig
from kvoffload.tiers.fs.place import StorePlace
from kvoffload.tiers.namespace_text import check_namespace

logger = logging.getLogger(__name__)

_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})
"""States of a disk, which may end, and no mistakes of who configured it. What is there can still be loaded."""
_PLAIN_NUMBER_BELOW = 16 * 1024
"""No size that anybody means in bytes."""
_MAY_NOT = "give a directory that this user may write, or read_only=true"
_NO_PATH = "a part of this path is no directory; give a directory"
_OTHERWISE = "give another root_dir, or mend the file system"
_MENDING = {
    errno.EACCES: _MAY_NOT,
    errno.EPERM: _MAY_NOT,
    errno.ENOTDIR: _NO_PATH,
    errno.ELOOP: _NO_PATH,
    errno.ENAMETOOLONG: "give a shorter root_dir",
}


def open_directory(disk: DiskIO, place: StorePlace, config: FsTierConfig) -> bool:
    """Make a store's directory usable; returns whether its files can be read and written past the page cache.

    Raises:
        ConfigError: it cannot be made or written, belongs to another configuration, or O_DIRECT was asked for and does
            not work.
    """
    if not config.read_only:
        _check_cap(config.max_bytes, place)
    try:
        _refuse_link(disk, place.directory)
        if config.read_only:
            return _open_to_read(disk, place, config)
        works = _open_to_write(disk, place, config)
    except OSError as error:
        raise ConfigError(
            f"fs tier: root_dir={config.root_dir!r} cannot be used: {error.strerror} ({error.filename or place.directory}); "
            f"{_MENDING.get(error.errno or 0, _OTHERWISE)}"
        ) from error
    if config.direct_io is DirectIo.ON and not works:
        raise ConfigError(
            f"fs tier: direct_io='on', but the file system of {config.root_dir!r} refuses O_DIRECT; "
            "give another root_dir, or direct_io='auto'"
        )
    return works


def count_siblings(disk: DiskIO, place: StorePlace) -> int:
    """How many other namespaces of the same model the store holds; 0 if that cannot be seen."""
    own = place.namespace.directory_name
    model = own.rpartition("_")[0]
    try:
        names = [entry.name for entry in disk.scandir(place.root)]
    except OSError:
        return 0
    return sum(name.rpartition("_")[0] == model and name != own for name in names)


def _check_cap(cap_bytes: int | None, place: StorePlace) -> None:
    """Refuse a cap under which nothing could ever be stored."""
    least = ROOT_BYTES + NAMESPACE_BYTES + place.smallest_file_bytes + 2 * DIRECTORY_BYTES
    if cap_bytes is None or cap_bytes >= least:
        return
    hint = (
        f"; a number without a unit is bytes: did you mean '{cap_bytes}GiB'?"
        if cap_bytes < _PLAIN_NUMBER_BELOW
        else ""
    )
    raise ConfigError(
        f"fs tier: max_bytes={cap_bytes} is less than one chunk and its directories take; give at least {least}{hint}"
    )


def _refuse_link(disk: DiskIO, directory: str) -> None:
    """A namespace's directory must be one: behind a link no other engine would count what is stored."""
    try:
        mode = disk.lstat(directory).st_mode
    except OSError:
        # Not there yet; or what follows finds out.
        return
    if stat.S_ISLNK(mode):
        raise ConfigError(
            f"fs tier: {directory} is a link; nothing would count or tidy what is behind it. "
            "Put a directory there, or make root_dir itself the link"
        )


def _open_to_write(disk: DiskIO, place: StorePlace, config: FsTierConfig) -> bool:
    """Step by step: one that a sick disk fails must not hide what the next one would have found."""
    trouble = _Trouble(config.root_dir)
    with trouble.tolerated():
        for path in (*_parents(place.directory), place.directory):
            with suppress(FileExistsError):
                disk.mkdir(path)
    with trouble.tolerated():
        found = read_namespace(disk, place.directory)
        check_namespace(found, place.namespace, place.directory)
        if found is None:
            write_namespace(disk, place.directory, place.namespace, place.next_temp_name())
    if config.direct_io is DirectIo.OFF:
        return False
    # Where it cannot be found out, each file falls back by itself.
    works = True
    if not trouble.errors:
        with trouble.tolerated():
            works = probe_direct(disk, place.directory, place.next_temp_name())
    return works


class _Trouble:
    """What the disk refuses for now: told once. The tier opens all the same, skips what fails, and recovers by itself."""

    def __init__(self, root_dir: str) -> None:
        self._root_dir = root_dir
        self.errors: list[OSError] = []

    @contextmanager
    def tolerated(self) -> Iterator[None]:
        """Pass over what may pass; everything else is raised."""
        try:
            yield
        except OSError as error:
            is_consequence = bool(self.errors) and error.errno == errno.ENOENT
            if error.errno not in _PASSING and not is_consequence:
                raise
            if not self.errors:
                logger.warning(
                    "fs tier: root_dir=%r: %s (%s); it is opened all the same, and stores are skipped until that ends",
                    self._root_dir,
                    error.strerror,
                    error.filename or "no file named",
                )
            self.errors.append(error)


def _open_to_read(disk: DiskIO, place: StorePlace, config: FsTierConfig) -> bool:
    trouble = _Trouble(config.root_dir)
    try:
        with trouble.tolerated():
            disk.lstat(place.root)
    except OSError as error:
        if error.errno in GONE:
            raise ConfigError(
                f"fs tier: root_dir={config.root_dir!r} does not exist, and with read_only it is not made"
            ) from error
        raise
    with trouble.tolerated():
        check_namespace(read_namespace(disk, place.directory), place.namespace, place.directory)
    # Nothing may be written to find out; each file falls back by itself.
    return config.direct_io is not DirectIo.OFF


def _parents(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts))]


def probe_direct(disk: DiskIO, directory: str, temp_name: str) -> bool:
    """Whether files of this directory can be written and read past the page cache; tries with a file. Raises OSError."""
    path = f"{directory}/{temp_name}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT
    try:
        fd = disk.open(path, flags)
    except OSError as error:
        if error.errno == errno.EINVAL:
            # Some file systems make the file and refuse the flag.
            with suppress(OSError):
                disk.unlink(path)
            return False
        raise
    try:
        page = memoryview(mmap.mmap(-1, ALIGNMENT_BYTES))
        disk.write_from(fd, [page])
        return disk.read_into(fd, [page]) == ALIGNMENT_BYTES
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # A full disk says nothing about O_DIRECT; each file falls back by itself.
            return True
        if error.errno == errno.EINVAL:
            return False
        raise
    finally:
        disk.close(fd)
        disk.unlink(path)
