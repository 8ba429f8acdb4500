"""What a store's directory looks like, and how to walk it. Reads only; also for tools, online and offline.

    <root>/.kvoffload/usage                          what all writers together occupy (usage.py)
    <root>/<model>_<digest>/namespace.json           what the fingerprint is made of (namespace_file.py)
    <root>/<model>_<digest>/hh/hh/<hash>_g<n>.kv     a chunk
    <root>/<model>_<digest>/hh/hh/tmp-….kvtmp        a chunk that is being written (writer.py)

Everything else is foreign: tolerated, not counted, never deleted.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.tiers.fs.disk import DiskIO, is_plain_file
from kvoffload.tiers.fs.writer import writer_of_temp

SHARED_DIRECTORY = ".kvoffload"
USAGE_FILE = "usage"
NAMESPACE_FILE = "namespace.json"
DIRECTORY_BYTES = 4096
"""What a directory is counted as."""
MAX_DIRECTORIES_BYTES = (256 + 256 * 256) * DIRECTORY_BYTES
"""What the directories of one namespace take when all are there (257 MiB)."""
ROOT_BYTES = 2 * DIRECTORY_BYTES + 4096
"""What the root, the directory of the usage record, and the record are counted as."""
NAMESPACE_BYTES = DIRECTORY_BYTES + 4096
"""What a namespace's directory and its `namespace.json` are counted as."""

_NAMESPACE_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,80}_[0-9a-f]{16}")
_FAN_PATTERN = re.compile(r"[0-9a-f]{2}")
_CHUNK_PATTERN = re.compile(r"((?:[0-9a-f]{2}){4,120})_g(0|[1-9][0-9]{0,9})\.kv")
_MAX_GROUP = 2**32 - 1
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
"""Errors that mean "not there (any more)"."""
_GONE_FOR_SURE = GONE - {errno.ESTALE}
"""Of a listing: a server that starts again says ESTALE, too, and a count without what is there would break the cap."""


class FoundFile(NamedTuple):
    """A chunk file, or one that is being written. A tuple, because a walk makes a million of them."""

    name: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """What one directory holds. `path` is relative to the namespace ("" is the namespace's directory itself)."""

    path: str
    chunks: tuple[FoundFile, ...]
    temps: tuple[FoundFile, ...]
    foreign: int
    """How many entries are not ours."""


OnError = Callable[[str, OSError], None]
"""(path, error): told of every place that could not be read; what is merely gone is not an error."""


def key_of_chunk_name(name: str) -> OffloadKey | None:
    """The key that a file name carries, as the inverse of FileMapper's last part; None for every other name."""
    match = _CHUNK_PATTERN.fullmatch(name)
    if match is None or int(match.group(2)) > _MAX_GROUP:
        return None
    return make_offload_key(bytes.fromhex(match.group(1)), int(match.group(2)))


def is_fan_name(name: str) -> bool:
    """Whether a directory of this name can hold chunks, or directories of chunks."""
    return _FAN_PATTERN.fullmatch(name) is not None


def prune(disk: DiskIO, leaf_path: str) -> int:
    """Remove a directory of chunks if it is empty, and the one above it if that is; returns the bytes that frees."""
    freed = 0
    for path in (leaf_path, leaf_path.rpartition("/")[0]):
        try:
            disk.rmdir(path)
        except OSError:
            break
        freed += DIRECTORY_BYTES
    return freed


def namespaces_in(disk: DiskIO, root: str, on_error: OnError) -> list[str]:
    """Names of the directories of a root that can be namespaces, sorted."""
    names = [entry.name for entry in _list(disk, root, on_error) if _is_directory(entry, on_error)]
    return sorted(name for name in names if _NAMESPACE_PATTERN.fullmatch(name))


def walk_namespace(disk: DiskIO, path: str, on_error: OnError) -> Iterator[Leaf]:
    """Every directory of a namespace, the namespace's own first. `path` is the namespace's directory."""
    top = _list(disk, path, on_error)
    outer = [e.name for e in top if _FAN_PATTERN.fullmatch(e.name) and _is_directory(e, on_error)]
    temps, others = _split_top(disk, path, top, on_error)
    yield Leaf("", (), temps, others)
    for first in sorted(outer):
        inner = _list(disk, f"{path}/{first}", on_error)
        seconds = [e.name for e in inner if _FAN_PATTERN.fullmatch(e.name) and _is_directory(e, on_error)]
        yield Leaf(first, (), (), len(inner) - len(seconds))
        for second in sorted(seconds):
            yield read_leaf(disk, path, f"{first}/{second}", on_error)


def read_leaf(disk: DiskIO, namespace_path: str, leaf: str, on_error: OnError) -> Leaf:
    """What one directory of chunks holds. `leaf` is "hh/hh"."""
    path = f"{namespace_path}/{leaf}"
    prefix = leaf.replace("/", "")
    chunks: list[FoundFile] = []
    temps: list[FoundFile] = []
    entries = _list(disk, path, on_error)
    for entry in entries:
        name = entry.name
        is_chunk = name.startswith(prefix) and _CHUNK_PATTERN.fullmatch(name) is not None
        if is_chunk or writer_of_temp(name):
            found = _stat(disk, path, entry, on_error)
            if found is not None:
                (chunks if is_chunk else temps).append(found)
    return Leaf(leaf, tuple(chunks), tuple(temps), len(entries) - len(chunks) - len(temps))


def _split_top(
    disk: DiskIO, path: str, entries: list[os.DirEntry[str]], on_error: OnError
) -> tuple[tuple[FoundFile, ...], int]:
    found = [_stat(disk, path, entry, on_error) for entry in entries if writer_of_temp(entry.name)]
    temps = tuple(file for file in found if file is not None)
    ours = sum(e.name == NAMESPACE_FILE or bool(_FAN_PATTERN.fullmatch(e.name)) for e in entries)
    return temps, len(entries) - len(temps) - ours


def _list(disk: DiskIO, path: str, on_error: OnError) -> list[os.DirEntry[str]]:
    try:
        return disk.scandir(path)
    except OSError as error:
        if error.errno not in _GONE_FOR_SURE:
            on_error(path, error)
        return []


def _stat(disk: DiskIO, directory: str, entry: os.DirEntry[str], on_error: OnError) -> FoundFile | None:
    try:
        found = disk.stat_entry(entry)
    except OSError as error:
        if error.errno not in _GONE_FOR_SURE:
            on_error(f"{directory}/{entry.name}", error)
        return None
    return FoundFile(entry.name, found.st_size, found.st_mtime_ns) if is_plain_file(found) else None


def _is_directory(entry: os.DirEntry[str], on_error: OnError) -> bool:
    try:
        # The kind of an entry usually comes with the listing, without another call.
        return entry.is_dir(follow_symlinks=False)
    except OSError as error:
        on_error(entry.path, error)
        return False
