"""A store's directory as the tools see it: is it one, which namespaces it has, what each says it is, the usage record.

Reads only, never waits for a link or a FIFO, and needs no engine.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from enum import Enum

from kvoffload.errors import ConfigError
from kvoffload.keys.fingerprint import FORMAT_VERSION as NAMESPACE_VERSION
from kvoffload.keys.fingerprint import Namespace
from kvoffload.layout.chunk_format import FORMAT_VERSION, ChunkIdentity
from kvoffload.tiers.fs.directory import (
    GONE,
    NAMESPACE_FILE,
    SHARED_DIRECTORY,
    USAGE_FILE,
    OnError,
    is_fan_name,
    namespaces_in,
)
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.namespace_file import read_namespace_text
from kvoffload.tiers.fs.usage import Usage, decode_usage, is_of_later_version
from kvoffload.tiers.namespace_text import NOT_OURS, identity_of, parse_namespace

_DIGEST_CHARS = 16
_MAX_RECORD_BYTES = 1024**2


class NamespaceState(Enum):
    """What a namespace's directory says it is."""

    READABLE = "readable"
    UNDESCRIBED = "no namespace.json"
    DAMAGED = "damaged namespace.json"
    MISPLACED = "namespace.json of another directory"
    NEWER = "newer format"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """One namespace of a store."""

    name: str
    path: str
    state: NamespaceState
    namespace: Namespace | None = None
    detail: str = ""
    """What was found, where the state alone does not say it."""

    @property
    def digest_start(self) -> str:
        """The part of the digest that the directory's name carries, in hexadecimal."""
        return self.name[-_DIGEST_CHARS:]

    @property
    def is_ours(self) -> bool:
        """Whether the directory proves to be a namespace that this version knows: only then is anything in it deleted.

        The one rule for engines that evict and sweep, and for tools. Not so a copy that was made by hand, a directory
        that says nothing, and one of a later version: their chunks count, and stay.
        """
        return self.state is NamespaceState.READABLE

    @property
    def identity(self) -> ChunkIdentity | None:
        """What the headers of its chunks must say; None if that is not known for certain."""
        is_told = self.state in (NamespaceState.READABLE, NamespaceState.MISPLACED)
        return identity_of(self.namespace) if is_told and self.namespace is not None else None

    @property
    def fields(self) -> dict[str, object]:
        """What the fingerprint is made of; empty if it is not known."""
        return {} if self.namespace is None else dict(json.loads(self.namespace.fields_json))


class RecordState(Enum):
    """What became of reading the usage record."""

    READABLE = "readable"
    ABSENT = "absent"
    DAMAGED = "damaged"
    NEWER = "newer format"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True)
class Record:
    """The usage record as it was read, without its lock."""

    state: RecordState
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class StoreRoot:
    """A directory that is a store."""

    disk: DiskIO
    path: str
    """Absolute."""
    namespaces: tuple[NamespaceInfo, ...]

    @property
    def usage_path(self) -> str:
        """Where the usage record is."""
        return f"{self.path}/{SHARED_DIRECTORY}/{USAGE_FILE}"

    def select(self, wanted: str | None) -> tuple[NamespaceInfo, ...]:
        """The namespaces that a user means: all for None, else the one of this name, or of this beginning of name or digest.

        Raises:
            ConfigError: none or several fit.
        """
        if wanted is None:
            return self.namespaces
        fitting = [info for info in self.namespaces if info.name == wanted] or [
            info
            for info in self.namespaces
            if wanted and (info.name.startswith(wanted) or info.digest_start.startswith(wanted))
        ]
        if len(fitting) != 1:
            found = ", ".join(info.name for info in fitting or self.namespaces) or "none"
            problem = "fits several namespaces" if fitting else "is no namespace"
            raise ConfigError(
                f"{wanted!r} {problem} of {self.path}: give the name, or its beginning; found: {found}"
            )
        return tuple(fitting)

    def read_record(self) -> Record:
        """The usage record."""
        try:
            data = _read_small(self.disk, self.usage_path)
        except OSError:
            return Record(RecordState.UNREADABLE)
        if data is None:
            return Record(RecordState.ABSENT)
        usage = decode_usage(data)
        if usage is not None:
            return Record(RecordState.READABLE, usage)
        return Record(RecordState.NEWER if is_of_later_version(data) else RecordState.DAMAGED)


def open_root(path: str, disk: DiskIO | None = None) -> StoreRoot:
    """Look at a directory.

    Raises:
        ConfigError: it is no store, or may not be read; says what was found.
    """
    disk = disk or DiskIO()
    root = absolute(path)
    problems: list[OSError] = []
    try:
        entries = [entry.name for entry in disk.scandir(root)]
        names = namespaces_in(disk, root, lambda _path, error: problems.append(error))
    except OSError as error:
        raise _not_readable(root, error) from error
    if problems:
        raise _not_readable(root, problems[0]) from problems[0]
    if NAMESPACE_FILE in entries:
        raise ConfigError(
            f"{root} is one namespace of a store; give the store: {root.rpartition('/')[0] or '/'}"
        )
    infos = tuple(describe(disk, root, name) for name in names)
    if SHARED_DIRECTORY not in entries and not any(_has_something(disk, info) for info in infos):
        found = f"{len(entries)} entries, none of them of a store" if entries else "it is empty"
        raise ConfigError(f"{root} is not a store ({found}); give the root_dir of an fs tier")
    return StoreRoot(disk, root, infos)


def absolute(path: str) -> str:
    """An absolute path; links in it stay.

    Raises:
        ConfigError: it is empty, which would be the directory where the command happens to run.
    """
    if not path.strip():
        raise ConfigError("the path is empty; give the root_dir of an fs tier")
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  (lexical only)


def describe(disk: DiskIO, root: str, name: str) -> NamespaceInfo:
    """What the directory `name` of a root says it is."""
    path = f"{root}/{name}"
    try:
        text = read_namespace_text(disk, path)
        if text is None:
            is_there = NAMESPACE_FILE in (entry.name for entry in disk.scandir(path))
            state = NamespaceState.DAMAGED if is_there else NamespaceState.UNDESCRIBED
            return NamespaceInfo(name, path, state)
    except OSError as error:
        return NamespaceInfo(name, path, NamespaceState.UNREADABLE, None, error.strerror or str(error))
    newer = _newer_version(text)
    if newer:
        return NamespaceInfo(name, path, NamespaceState.NEWER, None, newer)
    namespace = parse_namespace(text)
    if namespace is None or not is_sound(namespace) or json.loads(text).get("digest") != namespace.digest:
        return NamespaceInfo(name, path, NamespaceState.DAMAGED, None, "its content does not fit its digest")
    if namespace.directory_name != name:
        return NamespaceInfo(name, path, NamespaceState.MISPLACED, namespace, namespace.directory_name)
    return NamespaceInfo(name, path, NamespaceState.READABLE, namespace)


def collect_errors(found: list[str]) -> OnError:
    """What a walk tells of places that it cannot read, as one line each."""
    return lambda path, error: found.append(f"{path}: {error.strerror or error}")


def is_sound(namespace: Namespace | None) -> bool:
    """Whether a description can be worked with."""
    try:
        return namespace is not None and len(identity_of(namespace).namespace_digest) > 0
    except NOT_OURS:
        return False


def _has_something(disk: DiskIO, info: NamespaceInfo) -> bool:
    """Whether there is any sign that this is a namespace, and not a directory whose name looks like one."""
    if info.state is not NamespaceState.UNDESCRIBED:
        return True
    try:
        return any(is_fan_name(entry.name) for entry in disk.scandir(info.path))
    except OSError:
        return False


def _newer_version(text: bytes) -> str:
    """What is newer than this version about a `namespace.json`; empty if nothing is."""
    try:
        found = json.loads(text)
        chunk_version = found.get("chunk_format_version", 0)
        namespace_version = found.get("fields", {}).get("namespace_version", 0)
        if chunk_version > FORMAT_VERSION:
            return f"chunk format {chunk_version}, this kvoffload knows {FORMAT_VERSION}"
        if namespace_version > NAMESPACE_VERSION:
            return f"namespace version {namespace_version}, this kvoffload knows {NAMESPACE_VERSION}"
    except NOT_OURS:
        pass
    return ""


def _read_small(disk: DiskIO, path: str) -> bytes | None:
    try:
        fd = disk.open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    try:
        buffer = memoryview(bytearray(min(disk.fstat(fd).st_size, _MAX_RECORD_BYTES)))
        return bytes(buffer[: disk.read_into(fd, [buffer])]) if buffer else b""
    finally:
        disk.close(fd)


def _not_readable(root: str, error: OSError) -> ConfigError:
    if error.errno == errno.ENOTDIR:
        return ConfigError(f"{root} is not a directory; give the root_dir of an fs tier")
    if error.errno in GONE:
        return ConfigError(f"{root} does not exist; give the root_dir of an fs tier")
    return ConfigError(
        f"{root} cannot be read: {error.strerror or error}; run this as the user of the engine, or with its group"
    )
