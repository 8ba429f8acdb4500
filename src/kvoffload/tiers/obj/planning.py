"""What goes into which object, and what is read together. Pure functions over sizes and places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import TierEntry
from kvoffload.tiers.obj.catalogue import Location


def plan_objects(sizes: Sequence[int], pack_bytes: int, pack_below_bytes: int) -> list[list[int]]:
    """Positions of the chunks of each object, in their order: neighbours together, large ones alone.

    Args:
        sizes: Bytes of each chunk.
        pack_bytes: Of an object of several chunks at most.
        pack_below_bytes: A chunk of this size and more is an object of its own.
    """
    objects: list[list[int]] = []
    room = 0
    for position, size in enumerate(sizes):
        if size < pack_below_bytes and size <= room and objects:
            objects[-1].append(position)
            room -= size
        else:
            objects.append([position])
            room = pack_bytes - size if size < pack_below_bytes else 0
    return objects


class Wanted(NamedTuple):
    """One chunk that is to be loaded."""

    entry: TierEntry
    at: Location
    parts: tuple[tuple[int, int], ...]
    """(start, end) of what is needed of it, header included, counted from its beginning; ascending, disjoint."""


class Reading(NamedTuple):
    """Bytes of one object, one request a span, and the chunks that are in them and nowhere else."""

    name: str
    spans: tuple[tuple[int, int], ...]
    """(start, length), ascending."""
    wanted: tuple[Wanted, ...]


def plan_readings(wanted: Sequence[Wanted], span_bytes: int, gap_bytes: int) -> list[Reading]:
    """What to read for these chunks.

    Parts are joined that lie apart by `gap_bytes` at most, so that a request is saved where it is worth as many bytes: then
    bytes, plus `gap_bytes` for every request, are the fewest that can be (but for spans that would be too long).

    Args:
        wanted: Each chunk once.
        span_bytes: Of joined parts at most.
        gap_bytes: Read in vain to save a request.
    """
    readings: list[Reading] = []
    for one in sorted(wanted, key=lambda one: (one.at.name, one.at.offset)):
        last = readings[-1] if readings and readings[-1].name == one.at.name else None
        spans = [] if last is None else list(last.spans)
        shared = len(spans)
        for start, end in one.parts:
            _join(spans, one.at.offset + start, one.at.offset + end, (span_bytes, gap_bytes))
        if last is not None and last.spans[-1] != spans[shared - 1]:
            readings[-1] = Reading(last.name, tuple(spans), (*last.wanted, one))
        else:
            readings.append(Reading(one.at.name, tuple(spans[shared:]), (one,)))
    return readings


def _join(spans: list[tuple[int, int]], start: int, end: int, limits: tuple[int, int]) -> None:
    """Add a part: to the last span, if it is near enough to it."""
    span_bytes, gap_bytes = limits
    if spans:
        first, length = spans[-1]
        if 0 <= start - first - length <= gap_bytes and end - first <= span_bytes:
            spans[-1] = (first, end - first)
            return
    spans.append((start, end - start))


def unique(entries: Sequence[TierEntry]) -> dict[OffloadKey, TierEntry]:
    """Key → entry, each key once."""
    return {entry.key: entry for entry in entries}
