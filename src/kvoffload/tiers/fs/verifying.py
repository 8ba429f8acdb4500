"""Reads every chunk of a store, with a few threads and not faster than allowed, and says what is damaged."""

from __future__ import annotations

import mmap
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from kvoffload.layout.chunk_format import Damage
from kvoffload.tiers.fs.checking import PIECE_BYTES, ChunkCheck, Expected, check_chunk
from kvoffload.tiers.fs.cleaning import Cleaner
from kvoffload.tiers.fs.directory import FoundFile, Leaf, key_of_chunk_name, walk_namespace
from kvoffload.tiers.fs.store_root import NamespaceInfo, NamespaceState, StoreRoot, collect_errors

MAX_THREADS = 64
UNREADABLE = "unreadable"
_QUEUED_PER_THREAD = 2


class Finding(NamedTuple):
    """A chunk that is not what it should be."""

    path: str
    size_bytes: int
    kind: str
    """A value of Damage, or UNREADABLE."""
    detail: str
    is_removed: bool


@dataclass(slots=True)
class Verification:
    """What was found. Changed by many threads under a lock of theirs."""

    chunks: int = 0
    size_bytes: int = 0
    """Of the files that were read."""
    newer: int = 0
    """Chunks of a later format: left alone, not damaged."""
    findings: list[Finding] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Directories that could not be read, one line each."""

    def by_kind(self) -> dict[str, tuple[int, int, int]]:
        """Kind of damage → (chunks, bytes, how many of them were removed)."""
        counts: Counter[str] = Counter(one.kind for one in self.findings)
        sizes: Counter[str] = Counter()
        removed: Counter[str] = Counter()
        for one in self.findings:
            sizes[one.kind] += one.size_bytes
            removed[one.kind] += one.is_removed
        return {kind: (counts[kind], sizes[kind], removed[kind]) for kind in sorted(counts)}


class Throttle:
    """Makes all threads together read no faster than allowed.

    Args:
        bytes_per_s: None: as fast as they can.
        now_s: Seconds, monotonic.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        bytes_per_s: float | None,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_from_s = 0.0

    def __call__(self, size_bytes: int) -> None:
        """Wait until so many bytes may be read."""
        if self._bytes_per_s is None:
            return
        with self._lock:
            now_s = self._now_s()
            begin_s = max(now_s, self._free_from_s)
            self._free_from_s = begin_s + size_bytes / self._bytes_per_s
        if begin_s > now_s:
            self._sleep(begin_s - now_s)


class _Buffers(threading.local):
    """One page-aligned buffer per thread."""

    def __init__(self) -> None:
        self.buffer = memoryview(mmap.mmap(-1, PIECE_BYTES))


class Verifier:
    """Verifies.

    Args:
        store: The store.
        threads: How many read at once.
        throttle: Asked before every read.
        cleaner: Removes what is damaged; None: nothing is changed.
        on_checked: Told of the bytes of every file that was looked at.
    """

    def __init__(
        self,
        store: StoreRoot,
        *,
        threads: int,
        throttle: Throttle,
        cleaner: Cleaner | None,
        on_checked: Callable[[int], None],
    ) -> None:
        self._disk = store.disk
        self._threads = threads
        self._throttle = throttle
        self._cleaner = cleaner
        self._on_checked = on_checked
        self._local = _Buffers()
        self._lock = threading.Lock()
        self._stopping = False
        self.found = Verification()

    def run(self, chosen: Sequence[NamespaceInfo]) -> Verification:
        """Verify the chosen namespaces; those of a later format are passed over."""
        waiting: deque[Future[None]] = deque()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="kvoffload-verify") as pool:
            try:
                for info in chosen:
                    if info.state in (NamespaceState.NEWER, NamespaceState.UNREADABLE):
                        continue
                    for leaf in walk_namespace(self._disk, info.path, collect_errors(self.found.errors)):
                        if leaf.chunks:
                            waiting.append(pool.submit(self._check_leaf, info, leaf))
                        # Bounded: a store of millions of chunks shall not be held in a queue.
                        while len(waiting) > self._threads * _QUEUED_PER_THREAD:
                            waiting.popleft().result()
                while waiting:
                    waiting.popleft().result()
            finally:
                self._stopping = True
                pool.shutdown(wait=False, cancel_futures=True)
        return self.found

    def _check_leaf(self, info: NamespaceInfo, leaf: Leaf) -> None:
        for file in leaf.chunks:
            if self._stopping:
                return
            self._check_file(info, f"{info.path}/{leaf.path}/{file.name}", file)
            self._on_checked(file.size_bytes)

    def _check_file(self, info: NamespaceInfo, path: str, file: FoundFile) -> None:
        key = key_of_chunk_name(file.name)
        assert key is not None, file
        expected = Expected(key, info.identity, info.digest_start)
        try:
            check = check_chunk(self._disk, path, expected, self._local.buffer, self._throttle)
        except OSError as error:
            self._add(file, Finding(path, file.size_bytes, UNREADABLE, error.strerror or str(error), False))
            return
        if check is None:
            return
        self._add(file, self._judge(info, path, check), is_newer=check.damage is Damage.UNKNOWN_VERSION)

    def _judge(self, info: NamespaceInfo, path: str, check: ChunkCheck) -> Finding | None:
        if check.damage is None or check.damage is Damage.UNKNOWN_VERSION:
            return None
        # Where nobody knows what the namespace is, nobody knows what is damaged about it.
        removed = (
            info.is_ours and self._cleaner is not None and self._cleaner.remove_damaged(path, check.found)
        )
        return Finding(path, check.found.st_size, check.damage.value, "", removed)

    def _add(self, file: FoundFile, finding: Finding | None, *, is_newer: bool = False) -> None:
        with self._lock:
            self.found.chunks += 1
            self.found.size_bytes += file.size_bytes
            self.found.newer += is_newer
            if finding is not None:
                self.found.findings.append(finding)
