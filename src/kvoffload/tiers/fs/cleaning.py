"""Removes what a plan names, one by one, looking at each thing again first, and tells the usage record.

Only regular files with the name of a chunk or of a dead writer's temporary file, and empty directories, are ever named by
a plan; here, too, nothing else goes: a link is not followed, a directory that is not empty stays.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.collecting import Kind, Reason, Removal
from kvoffload.tiers.fs.directory import GONE, NAMESPACE_BYTES, NAMESPACE_FILE
from kvoffload.tiers.fs.disk import DiskIO, is_plain_file
from kvoffload.tiers.fs.namespace_file import write_namespace
from kvoffload.tiers.fs.removal import directory_of, remove_in_if_same
from kvoffload.tiers.fs.solid import check_directory
from kvoffload.tiers.fs.store_root import NamespaceInfo, NamespaceState, StoreRoot, describe

_NEWER_NS = 1_000_000_000
"""As the evictor: a file must have been used by this much later than believed to be spared."""
_MAX_TOLD = 100
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY})


@dataclass(slots=True)
class Cleaned:
    """What became of a plan."""

    removed: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    freed_bytes: int = 0
    gone_bytes: int = 0
    """Of what somebody else, an engine that evicts or another tool, had removed already."""
    spared: int = 0
    """Used, replaced or filled by somebody since the survey."""
    failed: list[str] = field(default_factory=list)
    """What could not be removed and why, one line each; the first ones only."""
    failures: int = 0


class Cleaner:
    """Removes. Safe for threads.

    Args:
        store: The store.
        accounts: Opened; is told what was freed.
    """

    def __init__(self, store: StoreRoot, accounts: Accounts) -> None:
        self._disk: DiskIO = store.disk
        self._store = store
        self._accounts = accounts
        self._lock = threading.Lock()
        self.cleaned = Cleaned()

    def run(
        self, removals: Iterable[Removal], on_done: Callable[[Removal], None] = lambda _: None
    ) -> Cleaned:
        """Remove all that is named; what is gone already, was used since or cannot be removed is passed over."""
        for removal in removals:
            self.remove(removal)
            on_done(removal)
        return self.cleaned

    def remove(self, removal: Removal) -> None:
        """Remove one."""
        counts = self._accounts.counts
        try:
            is_removed = (
                self._remove_directory(removal)
                if removal.kind is Kind.DIRECTORY
                else self._remove_file(removal)
            )
        except OSError as error:
            self._fail(removal.path, error)
            return
        if is_removed:
            self._freed(removal.kind, removal.size_bytes, counts)

    def remove_damaged(self, path: str, found: os.stat_result) -> bool:
        """Remove a chunk that was read and is damaged, if it still is the same file; returns whether it did."""
        counts = self._accounts.counts
        try:
            with directory_of(self._disk, self._store.path, path) as (directory, name):
                if not remove_in_if_same(self._disk, directory, name, found):
                    return False
        except OSError as error:
            self._fail(path, error)
            return False
        self._freed(Kind.CHUNK, found.st_size, counts)
        return True

    def remove_namespace(self, info: NamespaceInfo) -> bool:
        """Remove a namespace's directory if nothing but its description is in it; returns whether it is gone.

        Only when no engine can be using the store: see `purge`.
        """
        counts = self._accounts.counts
        found = describe(self._disk, self._store.path, info.name)
        if found.state is not NamespaceState.READABLE or found.namespace is None:
            return False
        try:
            check_directory(self._disk, info.path)
            if [entry.name for entry in self._disk.scandir(info.path)] != [NAMESPACE_FILE]:
                return False
            self._disk.unlink(f"{info.path}/{NAMESPACE_FILE}")
            try:
                self._disk.rmdir(info.path)
            except OSError:
                # Somebody has begun to use it: a namespace must say what it is.
                write_namespace(self._disk, info.path, found.namespace, self._accounts.here.temp_name(1))
                raise
        except OSError as error:
            if error.errno not in GONE | _NOT_EMPTY:
                self._fail(info.path, error)
            return False
        self._freed(Kind.DIRECTORY, NAMESPACE_BYTES, counts)
        return True

    def _remove_file(self, removal: Removal) -> bool:
        try:
            with directory_of(self._disk, self._store.path, removal.path) as (directory, name):
                found = self._disk.lstat_in(directory, name)
                # Also of a temporary file: another host may have gone on writing it after a long silence.
                is_used = (
                    removal.reason is not Reason.PURGED and found.st_mtime_ns > removal.used_ns + _NEWER_NS
                )
                if is_used or not is_plain_file(found):
                    self._spare()
                    return False
                return remove_in_if_same(self._disk, directory, name, found)
        except OSError as error:
            if error.errno in GONE:
                return self._is_gone(removal)
            raise

    def _remove_directory(self, removal: Removal) -> bool:
        try:
            with directory_of(self._disk, self._store.path, removal.path) as (directory, name):
                self._disk.rmdir_in(directory, name)
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                self._spare()
                return False
            if error.errno in GONE:
                return self._is_gone(removal)
            raise
        return True

    def _freed(self, kind: Kind, size_bytes: int, counts: int) -> None:
        self._accounts.freed(size_bytes, counts)
        with self._lock:
            self.cleaned.removed[kind] += 1
            self.cleaned.freed_bytes += size_bytes

    def _is_gone(self, removal: Removal) -> bool:
        with self._lock:
            self.cleaned.gone_bytes += removal.size_bytes
        return False

    def _spare(self) -> None:
        with self._lock:
            self.cleaned.spared += 1

    def _fail(self, path: str, error: OSError) -> None:
        with self._lock:
            self.cleaned.failures += 1
            if self.cleaned.failures <= _MAX_TOLD:
                self.cleaned.failed.append(f"{path}: {error.strerror or error}")
            elif self.cleaned.failures == _MAX_TOLD + 1:
                self.cleaned.failed.append("… and more of the kind")
