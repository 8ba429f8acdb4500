"""Deletes all chunks of one namespace. Nothing that is not a chunk is touched."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvoffload.tiers.fs.directory import GONE, prune, walk_namespace
from kvoffload.tiers.fs.share import UsageShare
from kvoffload.tiers.fs.solid import check_leaf
from kvoffload.tiers.fs.surroundings import Surroundings


class Clearing:
    """One pass of deletion; `run` is called once, by a thread that may take its time.

    Args:
        around: Disk and names.
        share: Is told what was freed.
        end: Called at the end with what sets `has_ended`, so that both can be one step for whoever asks.
    """

    def __init__(
        self, around: Surroundings, share: UsageShare, end: Callable[[Callable[[], None]], None]
    ) -> None:
        self._around = around
        self._share = share
        self._call_end = end
        self._left = 0
        self._ended = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; returns whether it ended and everything is gone."""
        return self._ended.wait(timeout_s) and self._left == 0

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self._ended.is_set()

    def run(self) -> None:
        """Delete."""
        try:
            for leaf in walk_namespace(self._around.disk, self._around.place.directory, self._note):
                directory = f"{self._around.place.directory}/{leaf.path}"
                if leaf.chunks and not self._is_solid(directory):
                    continue
                for file in leaf.chunks:
                    self._delete(f"{directory}/{file.name}", file.size_bytes)
                if leaf.chunks:
                    counts = self._share.counts
                    self._share.freed(prune(self._around.disk, directory), counts)
        finally:
            self._call_end(self._ended.set)

    def _is_solid(self, directory: str) -> bool:
        """Whether it is no link that somebody has put there since it was listed."""
        try:
            check_leaf(self._around.disk, directory)
        except OSError as error:
            if error.errno not in GONE:
                self._note(directory, error)
            return False
        return True

    def _delete(self, path: str, size_bytes: int) -> None:
        counts = self._share.counts
        try:
            self._around.disk.unlink(path)
        except OSError as error:
            if error.errno not in GONE:
                self._note(path, error)
            return
        self._share.freed(size_bytes, counts)

    def _note(self, _path: str, error: OSError) -> None:
        self._left += 1
        self._around.counters.add_error("clear", error)
