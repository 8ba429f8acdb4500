"""Removing one file that was looked at before, and not a good one that somebody has put in its place since."""

from __future__ import annotations

import os

from kvoffload.tiers.fs.directory import GONE
from kvoffload.tiers.fs.disk import DiskIO


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
