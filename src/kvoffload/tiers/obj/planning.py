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


class Span(NamedTuple):
    """Bytes of one object that are read with one request."""

    name: str
    start: int
    length: int
    entries: tuple[tuple[TierEntry, Location], ...]


def plan_spans(found: Sequence[tuple[TierEntry, Location]], span_bytes: int) -> list[Span]:
    """What to read for these chunks: those that lie side by side in an object together, up to `span_bytes`."""
    spans: list[Span] = []
    for entry, at in sorted(found, key=lambda one: (one[1].name, one[1].offset)):
        last = spans[-1] if spans else None
        if (
            last is not None
            and last.name == at.name
            and last.start + last.length == at.offset
            and last.length + at.length <= span_bytes
        ):
            spans[-1] = Span(last.name, last.start, last.length + at.length, (*last.entries, (entry, at)))
        else:
            spans.append(Span(at.name, at.offset, at.length, ((entry, at),)))
    return spans


def unique(entries: Sequence[TierEntry]) -> dict[OffloadKey, TierEntry]:
    """Key → entry, each key once."""
    return {entry.key: entry for entry in entries}
