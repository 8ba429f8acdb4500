"""Who will not write any more: the one rule for the record's writers and for temporary files. Reads nothing but names and times."""

from __future__ import annotations

from collections.abc import Container

from kvoffload.tiers.fs.directory import FoundFile
from kvoffload.tiers.fs.usage import WriterUsage
from kvoffload.tiers.fs.writer import WriterId, is_alive, writer_of_temp, writer_of_text

SILENT_S = 3600.0
"""A writer of another host that was not heard of for so long is dead: far beyond every deadline of a store."""
_NANOSECONDS = 1e9


def has_died(name: str, entry: WriterUsage, here: WriterId, now_s: float) -> bool:
    """Whether a writer of the usage record is dead, as seen from `here`; `now_s` is seconds since the epoch."""
    writer = writer_of_text(name)
    lives = is_alive(writer, here) if writer else None
    return now_s - entry.seen_s > SILENT_S if lives is None else not lives


def is_orphan(file: FoundFile, here: WriterId, now_s: float, live_writers: Container[str]) -> bool:
    """Whether nobody will finish a temporary file. `live_writers`: those that the record has heard of lately."""
    writer = writer_of_temp(file.name)
    assert writer is not None, file
    lives = is_alive(writer, here)
    if lives is None:
        is_silent = now_s - file.mtime_ns / _NANOSECONDS > SILENT_S
        lives = writer.text in live_writers or not is_silent
    return not lives
