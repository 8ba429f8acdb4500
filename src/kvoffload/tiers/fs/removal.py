"""Removing one file that was looked at before, and not a good one that somebody has put in its place since."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kvoffload.tiers.fs.directory import GONE
from kvoffload.tiers.fs.disk import DiskIO


@contextmanager
def directory_of(disk: DiskIO, root: str, path: str) -> Iterator[tuple[int, str]]:
    """(a descriptor of the directory that holds a path below a root, the last name of the path).

    Opened name by name, so that no directory that was swapped for a link is ever gone through; the root may be one.
    Raises OSError: a link is ENOTDIR or ELOOP.
    """
    *above, name = path.removeprefix(f"{root}/").split("/")
    opened = disk.open_directory(root)
    try:
        for part in above:
            below = disk.open_directory(part, opened)
            disk.close(opened)
            opened = below
        yield opened, name
    finally:
        disk.close(opened)


def remove_in_if_same(disk: DiskIO, directory: int, name: str, found: os.stat_result) -> bool:
    """As `remove_if_same`, of a name in a directory that was opened before. Raises OSError."""
    try:
        now = disk.lstat_in(directory, name)
        if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
            return False
        disk.unlink_in(directory, name)
    except OSError as error:
        if error.errno in GONE:
            return False
        raise
    return True


def remove_if_same(disk: DiskIO, path: str, found: os.stat_result) -> bool:
    """Remove the file at `path` if it still is the inode `found`; returns whether it did. Raises OSError."""
    try:
        now = disk.lstat(path)
        if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
            return False
        disk.unlink(path)
    except OSError as error:
        if error.errno in GONE:
            return False
        raise
    return True
