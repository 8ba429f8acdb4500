"""A disk in memory behind the fs tier's `DiskIO`: an inode file system that can lose what was not synced.

It tells the truth. What goes wrong is in disk_faults.py.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from kvoffload.clock import Clock
from kvoffload.tiers.fs.disk import DiskIO

_NANOSECONDS = 1_000_000_000
_BLOCK_BYTES = 4096
_FREE_BLOCKS = 2**20


@dataclass(eq=False)
class Node:
    """A file or a directory."""

    inode: int
    entries: dict[str, Node] | None = None
    """Of a directory."""
    data: bytearray = field(default_factory=bytearray)
    mtime_ns: int = 0
    is_dirty: bool = False
    """Written since it was synced: a power failure may tear it."""

    def stat(self) -> os.stat_result:
        """As the system would say it."""
        mode = stat.S_IFREG | 0o644 if self.entries is None else stat.S_IFDIR | 0o755
        seconds = self.mtime_ns / _NANOSECONDS
        times = {"st_mtime": seconds, "st_mtime_ns": self.mtime_ns, "st_ctime_ns": self.mtime_ns}
        ten = (mode, self.inode, 1, 1, 0, 0, len(self.data), int(seconds), int(seconds), int(seconds))
        return os.stat_result(ten, times)


@dataclass(frozen=True)
class Entry:
    """An entry of a listed directory: as much of os.DirEntry as is used."""

    name: str
    path: str
    node: Node

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory."""
        del follow_symlinks
        return self.node.entries is not None


@dataclass(frozen=True)
class Descriptor:
    """An open file."""

    node: Node
    path: str


class SimDisk(DiskIO):
    """See the module. Outlives the engines that use it.

    Args:
        clock: Seconds since the epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_inode = 2
        self._next_fd = 3
        self.root = Node(1, {})
        self.descriptors: dict[int, Descriptor] = {}

    # -- the calls -----------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        """See DiskIO."""
        parent, name = self._parent(path)
        node = parent.get(name)
        if node is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            node = parent[name] = self._new_node(None)
        elif flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        elif node.entries is not None and flags & os.O_ACCMODE != os.O_RDONLY:
            raise _error(errno.EISDIR, path)
        self._next_fd += 1
        self.descriptors[self._next_fd] = Descriptor(node, path)
        return self._next_fd

    def close(self, fd: int) -> None:
        """See DiskIO."""
        del self.descriptors[fd]

    def fstat(self, fd: int) -> os.stat_result:
        """See DiskIO."""
        return self.descriptors[fd].node.stat()

    def lstat(self, path: str) -> os.stat_result:
        """See DiskIO."""
        return self._node(path).stat()

    def stat_entry(self, entry: os.DirEntry[str]) -> os.stat_result:
        """See DiskIO."""
        return cast("Entry", entry).node.stat()

    def read_into(self, fd: int, buffers: Sequence[memoryview], offset: int = 0) -> int:
        """See DiskIO."""
        data = memoryview(self.descriptors[fd].node.data)[offset:]
        done = 0
        for buffer in buffers:
            part = data[done : done + len(buffer)]
            buffer[: len(part)] = part
            done += len(part)
        return done

    def write_from(self, fd: int, buffers: Sequence[memoryview], offset: int = 0) -> None:
        """See DiskIO."""
        self.put(self.descriptors[fd].node, b"".join(buffers), offset)

    def put(self, node: Node, content: bytes, offset: int) -> None:
        """Write, whatever a fault has left of the content."""
        node.data[offset : offset + len(content)] = content
        node.is_dirty = True
        node.mtime_ns = self._now_ns()

    def without_direct(self, fd: int) -> None:
        """See DiskIO."""
        assert fd in self.descriptors, fd

    def truncate(self, fd: int, size: int) -> None:
        """See DiskIO."""
        node = self.descriptors[fd].node
        del node.data[size:]
        node.is_dirty = True

    def fsync(self, fd: int) -> None:
        """See DiskIO."""
        self.descriptors[fd].node.is_dirty = False

    def set_times(self, target: str | int, time_ns: int) -> None:
        """See DiskIO."""
        node = self.descriptors[target].node if isinstance(target, int) else self._node(target)
        node.mtime_ns = time_ns

    def rename(self, source: str, target: str) -> None:
        """See DiskIO."""
        old, old_name = self._parent(source)
        if old_name not in old:
            raise _error(errno.ENOENT, source)
        new, new_name = self._parent(target)
        new[new_name] = old.pop(old_name)

    def unlink(self, path: str) -> None:
        """See DiskIO."""
        if self._node(path).entries is not None:
            raise _error(errno.EISDIR, path)
        parent, name = self._parent(path)
        del parent[name]

    def rmdir(self, path: str) -> None:
        """See DiskIO."""
        if self._entries(path):
            raise _error(errno.ENOTEMPTY, path)
        parent, name = self._parent(path)
        del parent[name]

    def mkdir(self, path: str) -> None:
        """See DiskIO."""
        parent, name = self._parent(path)
        if name in parent:
            raise _error(errno.EEXIST, path)
        parent[name] = self._new_node({})

    def scandir(self, path: str) -> list[os.DirEntry[str]]:
        """See DiskIO."""
        found = [Entry(name, f"{path}/{name}", node) for name, node in self._entries(path).items()]
        return cast("list[os.DirEntry[str]]", found)

    def statvfs(self, path: str) -> os.statvfs_result:
        """See DiskIO. There is room; a full disk is a fault."""
        self._node(path)
        free = _FREE_BLOCKS
        return os.statvfs_result((_BLOCK_BYTES, _BLOCK_BYTES, 2 * free, free, free, free, free, free, 0, 255))

    def try_lock(self, fd: int) -> bool:
        """See DiskIO. One call at a time, so nobody ever holds it."""
        assert fd in self.descriptors, fd
        return True

    # -- for those who damage, and those who look ----------------------------------------------------------------

    def files(self) -> list[tuple[str, Node]]:
        """Every file with its path, in the order of the paths."""
        return [(path, node) for path, node in self._walk("", self.root) if node.entries is None]

    def used_bytes(self, directory_bytes: int) -> int:
        """What is on the disk, each directory counted as so much."""
        nodes = [node for _, node in self._walk("", self.root)]
        return sum(directory_bytes if node.entries is not None else len(node.data) for node in nodes)

    def _walk(self, path: str, node: Node) -> list[tuple[str, Node]]:
        found: list[tuple[str, Node]] = []
        for name, child in sorted((node.entries or {}).items()):
            found += [(f"{path}/{name}", child), *self._walk(f"{path}/{name}", child)]
        return found

    def _now_ns(self) -> int:
        return round(self._clock.now_s() * _NANOSECONDS)

    def _new_node(self, entries: dict[str, Node] | None) -> Node:
        self._next_inode += 1
        return Node(self._next_inode, entries, mtime_ns=self._now_ns())

    def _parent(self, path: str) -> tuple[dict[str, Node], str]:
        directory, _, name = path.rpartition("/")
        return self._entries(directory), name

    def _node(self, path: str) -> Node:
        parent, name = self._parent(path)
        if name not in parent:
            raise _error(errno.ENOENT, path)
        return parent[name]

    def _entries(self, path: str) -> dict[str, Node]:
        node = self.root
        for part in path.split("/")[1:]:
            if node.entries is None:
                raise _error(errno.ENOTDIR, path)
            if part not in node.entries:
                raise _error(errno.ENOENT, path)
            node = node.entries[part]
        if node.entries is None:
            raise _error(errno.ENOTDIR, path)
        return node.entries


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
