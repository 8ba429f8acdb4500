"""Which directories of a namespace are directories, and no links to somewhere else. Nothing else lives here.

A link would be followed by whoever opens a path through it, but not by a walk: what lies behind it is not counted, not
found by a reset, and not ours.
"""

from __future__ import annotations

import errno
import os
import stat

from kvoffload.tiers.fs.disk import DiskIO

_MAX_KNOWN = 70_000


class SolidDirectories:
    """Looks at each directory once. Safe for threads: at worst one is looked at twice.

    Args:
        disk: The disk.
    """

    def __init__(self, disk: DiskIO) -> None:
        self._disk = disk
        self._known: set[str] = set()

    def check(self, leaf: str) -> None:
        """See that a directory of chunks and those above it, up to the namespace's, are no links.

        Raises:
            OSError: ELOOP if one is a link, ENOTDIR if it is something else; what looking at it raises.
        """
        if leaf in self._known:
            return
        above = leaf.rpartition("/")[0]
        # From the top: what is below a link may well be a directory.
        for path in (above.rpartition("/")[0], above, leaf):
            if path not in self._known:
                check_directory(self._disk, path)
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known.add(path)


def check_directory(disk: DiskIO, path: str) -> None:
    """See that one path is a directory. Raises OSError as `SolidDirectories.check`."""
    mode = disk.lstat(path).st_mode
    if not stat.S_ISDIR(mode):
        number = errno.ELOOP if stat.S_ISLNK(mode) else errno.ENOTDIR
        raise OSError(number, os.strerror(number), path)


def check_leaf(disk: DiskIO, leaf: str) -> None:
    """See, now, that a directory of chunks and those above it are no links. Raises OSError as `SolidDirectories.check`."""
    SolidDirectories(disk).check(leaf)
