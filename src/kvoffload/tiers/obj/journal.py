"""The journal's text: which objects came and went, in the order in which it happened. Pure functions over bytes.

first line   kvoffload journal 1 <xxh3-128 of the rest, hexadecimal>
the rest     JSON: a list of ["+", name, used_s, [[key, offset, length], …]] and ["-", name]
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvoffload.keys.offload_key import GROUP_BYTES, OffloadKey
from kvoffload.layout.chunk_format import MAX_KEY_BYTES, checksum

_START = b"kvoffload journal 1 "
_OTHER_START = re.compile(rb"kvoffload journal ([0-9]{1,9}) ")
MAX_JOURNAL_BYTES = 64 * 1024**2
"""A longer journal object is none of ours: it would take longer to read than a request may last."""
_MAX_OFFSET = 2**50
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, IndexError)


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """Where a chunk is in its object."""

    key: OffloadKey
    offset: int
    length: int
    """Of header, payload and padding."""


@dataclass(frozen=True, slots=True)
class Came:
    """An object was written."""

    name: str
    used_s: float
    """When, in seconds since the epoch, by the writer's clock."""
    chunks: tuple[PackedChunk, ...]

    @property
    def size_bytes(self) -> int:
        """Of the object."""
        return sum(chunk.length for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Went:
    """An object was deleted."""

    name: str


Event = Came | Went


def encode_journal(events: Sequence[Event]) -> bytes:
    """The text of a journal object."""
    rows: list[object] = []
    for event in events:
        match event:
            case Came():
                chunks = [[chunk.key.hex(), chunk.offset, chunk.length] for chunk in event.chunks]
                rows.append(["+", event.name, event.used_s, chunks])
            case Went():
                rows.append(["-", event.name])
    body = json.dumps(rows, separators=(",", ":")).encode("ascii")
    return _START + checksum(body).hex().encode("ascii") + b"\n" + body


def decode_journal(text: bytes | memoryview) -> list[Event] | None:
    """What a journal object says; None if it is damaged, of another version, or no journal. Never raises."""
    first, _, body = bytes(text).partition(b"\n")
    if not first.startswith(_START) or first[len(_START) :] != checksum(body).hex().encode("ascii"):
        return None
    try:
        return [_event(row) for row in json.loads(body)]
    except _MALFORMED:
        return None


def is_of_other_version(text: bytes | memoryview) -> bool:
    """Whether this is a journal object in words that are not known here: a later kvoffload's. Never raises."""
    return _OTHER_START.match(text) is not None and text[: len(_START)] != _START


def _event(row: list[object]) -> Event:
    match row:
        case ["+", str(name), int(used_s) | float(used_s), [*chunks]] if chunks and math.isfinite(used_s):
            return Came(name, float(used_s), tuple(map(_chunk, chunks)))
        case ["-", str(name)]:
            return Went(name)
    raise ValueError("no event")


def _chunk(row: object) -> PackedChunk:
    match row:
        case [str(text), int(offset), int(length)] if 0 <= offset < _MAX_OFFSET and 0 < length < _MAX_OFFSET:
            key = OffloadKey(bytes.fromhex(text))
            if GROUP_BYTES < len(key) <= MAX_KEY_BYTES:
                return PackedChunk(key, offset, length)
    raise ValueError("no chunk")
