"""One walk over a root: what is there and how old (for the index), what it occupies (for the usage record), what can be
evicted of other namespaces, and which temporary files nobody will ever finish.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import suppress

from kvoffload.clock import Clock
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.fs.counters import Counters
from kvoffload.tiers.fs.directory import (
    DIRECTORY_BYTES,
    GONE,
    FoundFile,
    Leaf,
    key_of_chunk_name,
    namespaces_in,
    walk_namespace,
)
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.evictor import Evictor, ForeignChunk
from kvoffload.tiers.fs.index import SHARDS, ChunkIndex
from kvoffload.tiers.fs.namespace_file import read_namespace
from kvoffload.tiers.fs.place import StorePlace
from kvoffload.tiers.fs.share import Baseline, UsageShare
from kvoffload.tiers.fs.usage import WriterUsage
from kvoffload.tiers.fs.writer import WriterId, is_alive, writer_of_temp, writer_of_text

SILENT_S = 3600.0
"""A writer of another host that was not heard of for so long is dead: far beyond every deadline of a store."""
_MAX_FOREIGN = 20_000
_NANOSECONDS = 1e9


class Walker:
    """Walks.

    Args:
        disk: The disk.
        place: Names and lengths.
        index: Is told what is there.
        share: Is told what it occupies; None in a tier that only reads.
        evictor: Is told what others have.
        counters: What is noteworthy.
        wall_clock: Seconds since the epoch.
    """

    def __init__(
        self,
        disk: DiskIO,
        place: StorePlace,
        index: ChunkIndex,
        counters: Counters,
        wall_clock: Clock,
        writable: tuple[UsageShare, Evictor] | None,
    ) -> None:
        self._disk = disk
