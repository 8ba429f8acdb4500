"""Where the chunks of one engine's namespace are, how long each must be, and which files are known to be bad."""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from kvoffload.keys.file_mapper import FileMapper
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import OffloadKey, group_index_of
from kvoffload.layout.partial import RowShape
from kvoffload.tiers.chunk_form import ChunkForm, form_of
from kvoffload.tiers.fs.writer import WriterId
from kvoffload.tiers.namespace_text import identity_of

_MAX_BAD_FILES = 10_000
_COARSE_NS = 1_000_000_000
"""By how much a file's time may be before the creation of its chunk: see `Operations._used_s`, and time stamps are coarse."""


class BadFiles:
    """Files that were found unusable and could not, or must not, be removed: they count as not there.

    A file is told apart by inode and time of change, so that a good one in its place is used. Bounded; what is
    forgotten is found out again by its checksum.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marks: OrderedDict[OffloadKey, tuple[int, int]] = OrderedDict()

    def add(self, key: OffloadKey, found: os.stat_result) -> None:
        """Remember a file."""
        with self._lock:
            self._marks[key] = (found.st_ino, found.st_ctime_ns)
            if len(self._marks) > _MAX_BAD_FILES:
                self._marks.popitem(last=False)

    def has(self, key: OffloadKey, found: os.stat_result) -> bool:
        """Whether this very file was remembered."""
        return self._marks.get(key) == (found.st_ino, found.st_ctime_ns)

    def has_any(self, key: OffloadKey) -> bool:
        """Whether some file of this key was."""
        return key in self._marks


class ChunkFile(NamedTuple):
    """Where one chunk is and how it must lie there: worked out once per chunk and job."""

    key: OffloadKey
    path: str
    form: ChunkForm

    @property
    def payload_bytes(self) -> int:
        """Bytes of its payload."""
        return self.form.payload_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of its file."""
        return self.form.file_bytes


class StorePlace:
    """The names and lengths of one namespace in one root.

    Args:
        root: The directory that is shared, absolute.
        namespace: The engine's.
        rows: Bytes of a chunk, or the shape of its row, for every group id; 0 bytes for those that the engine does not
            offload.
        writer: This process.
    """

    def __init__(
        self, root: str, namespace: Namespace, rows: Sequence[int | RowShape], writer: WriterId
    ) -> None:
        self.root = root
        self.namespace = namespace
        self.writer = writer
        self.identity = identity_of(namespace)
        self.directory = f"{root}/{namespace.directory_name}"
        self.mapper = FileMapper(namespace)
        self.bad_files = BadFiles()
        self.kept_since_ns = 0
        """Of a tier that only reads: when it was reset, since the epoch. What is older stays on the disk."""
        self._forms = tuple(map(form_of, rows))
        assert any(form.payload_bytes for form in self._forms), "a store needs at least one group"
        self._temp_numbers = itertools.count(1)

    def chunk_file(self, key: OffloadKey) -> ChunkFile:
        """Where a chunk is and how long it must be."""
        return ChunkFile(key, f"{self.root}/{self.mapper.name_of(key)}", self._forms[group_index_of(key)])

    def path_of(self, key: OffloadKey) -> str:
        """The path of a chunk."""
        return f"{self.root}/{self.mapper.name_of(key)}"

    def payload_bytes_of(self, key: OffloadKey) -> int:
        """Bytes of a chunk's payload."""
        return self._forms[group_index_of(key)].payload_bytes

    def file_bytes_of(self, key: OffloadKey) -> int:
        """Bytes of a chunk's file."""
        return self._forms[group_index_of(key)].file_bytes

    def has_length(self, key: OffloadKey, size_bytes: int) -> bool:
        """Whether a file of this length can be the chunk's: also one of the version before pieces."""
        return self._forms[group_index_of(key)].has_length(size_bytes)

    @property
    def smallest_file_bytes(self) -> int:
        """Bytes of the smallest chunk's file."""
        return min(form.file_bytes for form in self._forms if form.payload_bytes)

    def has_group_of(self, key: OffloadKey) -> bool:
        """Whether the engine has the group of a key (a file may carry any)."""
        group = group_index_of(key)
        return group < len(self._forms) and self._forms[group].payload_bytes > 0

    def is_from_before(self, used_ns: int) -> bool:
        """Whether a file that was used last at this time is older than the reset: without reading it, so a miss at once.

        One that another engine has used since is found out by its header.
        """
        return used_ns < self.kept_since_ns - _COARSE_NS

    def next_temp_name(self) -> str:
        """A name for a temporary file that no other one of any process has."""
        # One call of C code, so threads need no lock.
        return self.writer.temp_name(next(self._temp_numbers))
