"""Batches of events → a file that `kvoffload simulate` reads. Needs no wire and no engine.

A record is a run of blocks that the device's cache did not have (`runs.py`), and these alone: not the blocks before them, which
it had. So a hit in the trace is one that a tier below would have had, a long prompt counts once however many steps it took,
and a message that is lost costs its own blocks only, since no chain is kept.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvoffload.connectors.events.batches import Batch
from kvoffload.connectors.events.runs import Run, Runs
from kvoffload.connectors.events.selection import Selection
from kvoffload.connectors.trace_lines import BlockNames, trace_line
from kvoffload.errors import KvError

NOTE = (
    "from KV events: only blocks that the device's cache did not have, prompts and answers alike; "
    "neither its hits nor requests; arrivals are those of the first block of a run"
)


class TraceFileError(KvError):
    """The file cannot be made or written."""


@dataclass(slots=True)
class Counts:
    """What was seen and written so far."""

    runs: int = 0
    """Written; each is a "request" of the trace."""
    blocks: int = 0
    """Written."""
    file_bytes: int = 0
    events: int = 0
    """That told of stored blocks which belong into the trace."""
    clears: int = 0
    """How often the engine emptied its cache."""
    unreadable: int = 0
    """Events that were not understood."""


class EventTrace:
    """The file, and what is held back for it.

    Lines are only ever added, and a torn last one is left out by the reader: whatever ends this process, what is there can be
    read. Neither tokens nor the engine's hashes are written (`BlockNames`).

    Args:
        path: Must not be there yet.
        max_bytes: The file does not grow beyond.

    Raises:
        TraceFileError: it is there, or cannot be made.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.counts = Counts()
        self.selection = Selection()
        self.is_full = False
        self._max_bytes = max_bytes
        self._names = BlockNames()
        self._runs = Runs()
        self._start_s: float | None = None
        try:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        except FileExistsError:
            raise TraceFileError(
                f"{path} exists and is not overwritten; give another name or remove it"
            ) from None
        except OSError as error:
            raise TraceFileError(f"{path} cannot be made: {error.strerror}") from error

    @property
    def held_blocks(self) -> int:
        """Blocks that are not written yet, as their runs may still grow."""
        return self._runs.held_blocks

    def add(self, batch: Batch) -> None:
        """Take what a message tells, and write the runs that are over."""
        self.counts.unreadable += batch.unreadable
        self.counts.clears += batch.clears
        for stored in batch.stored:
            if self.selection.takes(stored):
                self.counts.events += 1
                self._runs.add(batch.at_s, stored.hashes, stored.parent)
        self._write(self._runs.closed())

    def close_runs(self) -> None:
        """Write all that is held back: messages are missing, or none come."""
        self._write(self._runs.close_all())

    def close(self) -> None:
        """Write what is held back and close; a file without a record is removed. Idempotent."""
        if self._file.closed:
            return
        try:
            self.close_runs()
        finally:
            # What could not be written would be tried, and told, once more.
            with contextlib.suppress(OSError):
                self._file.close()
            if not self.counts.runs:
                self.path.unlink(missing_ok=True)

    def _write(self, runs: Iterable[Run]) -> None:
        try:
            for run in runs:
                self._write_run(run)
            self._file.flush()
        except OSError as error:
            raise TraceFileError(
                f"{self.path}: written no further: {error.strerror}; it can be read"
            ) from error

    def _write_run(self, run: Run) -> None:
        line = self._line_of(run) if self.counts.runs else self._header() + self._line_of(run)
        self.is_full = self.is_full or self.counts.file_bytes + len(line) > self._max_bytes
        if self.is_full:
            return
        self._file.write(line)
        self.counts.file_bytes += len(line)
        self.counts.runs += 1
        self.counts.blocks += len(run.blocks)

    def _header(self) -> bytes:
        return trace_line({"block_tokens": self.selection.block_tokens, "note": NOTE})

    def _line_of(self, run: Run) -> bytes:
        if self._start_s is None:
            self._start_s = run.start_s
        assert self.selection.block_tokens is not None
        return trace_line(
            {
                "arrival_s": round(run.start_s - self._start_s, 6),
                "input_tokens": len(run.blocks) * self.selection.block_tokens,
                "blocks": [self._names.name(block_hash) for block_hash in run.blocks],
            }
        )
