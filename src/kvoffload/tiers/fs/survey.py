"""Walks a store for the tools: what every namespace holds, what it occupies, and which temporary files nobody will finish."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvoffload.tiers.fs.directory import (
    DIRECTORY_BYTES,
    GONE,
    NAMESPACE_BYTES,
    NAMESPACE_FILE,
    ROOT_BYTES,
    SHARED_DIRECTORY,
    Leaf,
    OnError,
    is_fan_name,
    walk_namespace,
)
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.liveness import is_orphan
from kvoffload.tiers.fs.store_root import NamespaceInfo, StoreRoot, collect_errors
from kvoffload.tiers.fs.writer import WriterId


@dataclass(frozen=True, slots=True)
class Observer:
    """Who looks, when, and which writers are known to live."""

    here: WriterId
    now_s: float
    """Seconds since the epoch."""
    live_writers: frozenset[str]
    """Those that the usage record has heard of lately."""
    seen: Callable[[int], None] = lambda _chunks: None
    """Told, after each directory, how many chunks are in it."""


class TempFile(NamedTuple):
    """A chunk, or a `namespace.json`, that is being written."""

    path: str
    size_bytes: int
    mtime_ns: int
    is_orphan: bool
    """Nobody will finish it."""


class ForeignEntry(NamedTuple):
    """Something that is not ours."""

    path: str
    size_bytes: int
    """Of files; a directory is counted with everything in it."""


@dataclass(slots=True)
class NamespaceSurvey:
    """What one namespace holds."""

    info: NamespaceInfo
    chunks: int = 0
    chunk_bytes: int = 0
    oldest_ns: int | None = None
    """When the chunk that was not used for the longest time was used; None if there is no chunk."""
    newest_ns: int | None = None
    directories: int = 0
    """Below the namespace's own."""
    foreign: int = 0
    temps: list[TempFile] = field(default_factory=list)

    @property
    def temp_bytes(self) -> int:
        """Bytes of temporary files."""
        return sum(temp.size_bytes for temp in self.temps)

    @property
    def counted_bytes(self) -> int:
        """What the usage record counts for it."""
        return NAMESPACE_BYTES + self.chunk_bytes + self.temp_bytes + self.directories * DIRECTORY_BYTES


@dataclass(slots=True)
class Survey:
    """What a store holds."""

    namespaces: list[NamespaceSurvey] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Places that could not be read, one line each."""
    is_whole_store: bool = True
    """Whether all namespaces were surveyed."""

    @property
    def bounded_bytes(self) -> int:
        """What a bound of gc holds for: the whole store as it is counted, or the namespaces that were chosen."""
        return self.counted_bytes - (0 if self.is_whole_store else ROOT_BYTES)

    @property
    def counted_bytes(self) -> int:
        """What the usage record counts, if the whole store was surveyed."""
        return ROOT_BYTES + sum(one.counted_bytes for one in self.namespaces)


EachLeaf = Callable[[NamespaceInfo, Leaf], None]


def survey_store(
    store: StoreRoot, chosen: Sequence[NamespaceInfo], observer: Observer, each_leaf: EachLeaf | None = None
) -> Survey:
    """Walk the chosen namespaces. Files may vanish meanwhile.

    Args:
        store: The store.
        chosen: Which of its namespaces.
        observer: For telling dead writers' files from others.
        each_leaf: Called with every directory of chunks that was read.
    """
    survey = Survey(is_whole_store=len(chosen) == len(store.namespaces))
    for info in chosen:
        one = NamespaceSurvey(info)
        for leaf in walk_namespace(store.disk, info.path, collect_errors(survey.errors)):
            _add_leaf(one, leaf, observer)
            observer.seen(len(leaf.chunks))
            if each_leaf is not None:
                each_leaf(info, leaf)
        survey.namespaces.append(one)
    return survey


def _add_leaf(one: NamespaceSurvey, leaf: Leaf, observer: Observer) -> None:
    one.chunks += len(leaf.chunks)
    one.chunk_bytes += sum(file.size_bytes for file in leaf.chunks)
    one.directories += 1 if leaf.path else 0
    one.foreign += leaf.foreign
    if leaf.chunks:
        times = [file.mtime_ns for file in leaf.chunks]
        one.oldest_ns = min(times) if one.oldest_ns is None else min(one.oldest_ns, *times)
        one.newest_ns = max(times) if one.newest_ns is None else max(one.newest_ns, *times)
    directory = f"{one.info.path}/{leaf.path}".rstrip("/")
    for file in leaf.temps:
        dead = is_orphan(file, observer.here, observer.now_s, observer.live_writers)
        one.temps.append(TempFile(f"{directory}/{file.name}", file.size_bytes, file.mtime_ns, dead))


def foreign_in_root(store: StoreRoot, on_error: OnError) -> Iterator[ForeignEntry]:
    """What stands beside the namespaces."""
    ours = {SHARED_DIRECTORY, *(info.name for info in store.namespaces)}
    yield from _entries(store.disk, store.path, ours, on_error)


def foreign_in_leaf(
    disk: DiskIO, info: NamespaceInfo, leaf: Leaf, on_error: OnError
) -> Iterator[ForeignEntry]:
    """What stands in one directory of a namespace beside what is ours."""
    directory = f"{info.path}/{leaf.path}".rstrip("/")
    ours = {file.name for file in (*leaf.chunks, *leaf.temps)}
    if not leaf.path:
        ours.add(NAMESPACE_FILE)
    may_fan = leaf.path.count("/") == 0 and len(leaf.path) <= len("hh")
    yield from _entries(disk, directory, ours, on_error, skip_fans=may_fan)


def _entries(
    disk: DiskIO, directory: str, ours: Container[str], on_error: OnError, *, skip_fans: bool = False
) -> Iterator[ForeignEntry]:
    try:
        entries = disk.scandir(directory)
    except OSError as error:
        if error.errno not in GONE:
            on_error(directory, error)
        return
    for entry in entries:
        if entry.name in ours:
            continue
        try:
            is_directory = entry.is_dir(follow_symlinks=False)
            if skip_fans and is_directory and is_fan_name(entry.name):
                continue
            size = _tree_bytes(disk, entry.path, on_error) if is_directory else disk.stat_entry(entry).st_size
        except OSError as error:
            if error.errno not in GONE:
                on_error(entry.path, error)
            continue
        yield ForeignEntry(entry.path, size)


def _tree_bytes(disk: DiskIO, directory: str, on_error: OnError) -> int:
    """Bytes of everything in a directory; links are not followed."""
    total = DIRECTORY_BYTES
    waiting = [directory]
    while waiting:
        path = waiting.pop()
        try:
            for entry in disk.scandir(path):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    total += DIRECTORY_BYTES
                else:
                    total += disk.stat_entry(entry).st_size
        except OSError as error:
            if error.errno not in GONE:
                on_error(path, error)
    return total
