"""Finds out whether single chunks are there, in threads of its own: one call of the disk per key, and no listing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.fs.finder import ChunkFinder, Presence
from kvoffload.tiers.fs.index import ChunkIndex
from kvoffload.tiers.fs.place import StorePlace

_THREADS = 4
_BATCH = 32
_MAX_QUEUED = 100_000
_NANOSECONDS = 1e9


class Prober:
    """Answers for the index what it cannot answer itself.

    Args:
        finder: Looks at one path.
        place: Names and lengths.
        index: Where the answers go.
        counters: What is noteworthy.
        name: For the threads.
        threads: How many; 0: nothing is found out but by `probe_some`.
    """

    def __init__(
        self,
        finder: ChunkFinder,
        place: StorePlace,
        index: ChunkIndex,
        *,
        counters: Counters,
        name: str,
        threads: int = _THREADS,
    ) -> None:
        self._finder = finder
        self._place = place
        self._index = index
        self._counters = counters
        self._queue: deque[OffloadKey] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"kvoffload-{name}-probe{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, keys: Sequence[OffloadKey]) -> None:
        """Find these out. Does not block; what is too much is answered "not there" for a while."""
        fresh = self._index.ask(keys)
        room = max(0, _MAX_QUEUED - len(self._queue))
        self._queue.extend(fresh[:room])
        if fresh[room:]:
            self._counters.add("probes_dropped", len(fresh) - room)
            self._index.answer({}, fresh[room:])
        if fresh:
            with self._wake:
                self._wake.notify(min(_THREADS, -(-len(fresh) // _BATCH)))

    def probe_some(self) -> bool:
        """Find out what a thread would take now; False if there is nothing to be found out."""
        with self._wake:
            batch = self._next_batch()
        self._probe(batch)
        return bool(batch)

    def stop(self) -> list[threading.Thread]:
        """Take no more; returns the threads, which end after the key they are at."""
        with self._wake:
            self._stopping = True
            self._queue.clear()
            self._wake.notify_all()
        return self._threads

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._stopping:
                    self._wake.wait()
                if self._stopping:
                    return
                batch = self._next_batch()
            self._probe(batch)

    def _next_batch(self) -> list[OffloadKey]:
        return [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]

    def _probe(self, batch: Sequence[OffloadKey]) -> None:
        there: dict[OffloadKey, float] = {}
        not_there: list[OffloadKey] = []
        for key in batch:
            try:
                found = self._finder.find(self._place.chunk_file(key))
            except OSError as error:
                self._counters.add_error("probe", error)
                not_there.append(key)
                continue
            if found.presence is Presence.PRESENT:
                there[key] = found.mtime_ns / _NANOSECONDS
            else:
                not_there.append(key)
        self._counters.add("probes", len(batch))
        self._index.answer(there, not_there)
