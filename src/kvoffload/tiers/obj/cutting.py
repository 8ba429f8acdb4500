"""How a job is cut into the parts that one thread carries out. Pure functions over chunks and places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import TierEntry
from kvoffload.tiers.obj.catalogue import Location


def parts_to_read(
    entries: Sequence[TierEntry], find: Callable[[OffloadKey], Location | None], span_bytes: int
) -> list[list[TierEntry]]:
    """The chunks of a load, in parts that are one request each, as far as it is known where they are.

    What lies apart is read by different threads at the same time, not by one after the other. Mutates nothing.

    Args:
        entries: Of a job.
        find: Where a chunk is; None if that is not known.
        span_bytes: Bytes of chunks, without their headers, that one request reads at most; a larger chunk is read alone.
    """
    placed = [(entry, find(entry.key)) for entry in entries]
    parts: list[list[TierEntry]] = []
    last: Location | None = None
    room = 0
    for entry, at in sorted(placed, key=lambda one: _order(one[1])):
        size = entry.buffer.nbytes
        if parts and _is_beside(last, at) and size <= room:
            parts[-1].append(entry)
        else:
            parts.append([entry])
            room = span_bytes
        room -= size
        last = at
    return parts


def _order(at: Location | None) -> tuple[str, int]:
    return ("", 0) if at is None else (at.name, at.offset)


def _is_beside(before: Location | None, at: Location | None) -> bool:
    """Whether one request reads both; what is unknown is looked for together."""
    if before is None or at is None:
        return before is at
    return before.name == at.name and at.offset in (before.offset, before.offset + before.length)
