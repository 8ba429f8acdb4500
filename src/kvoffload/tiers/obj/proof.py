"""Whether bytes that came from a store are the chunk that was asked for, or the parts of it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import (
    ChunkHeader,
    Damage,
    check_header,
    check_part,
    check_payload,
    decode_header,
    header_bytes,
)
from kvoffload.tiers.chunk_form import Part
from kvoffload.tiers.obj.place import ObjPlace

Cut = Callable[[int, int], memoryview]
"""(start, end), counted from the beginning of a chunk → its bytes; fewer if they did not come."""


class Whole(Enum):
    """Parts cannot be proved: the pieces of this chunk are others than this engine's."""

    WHOLE = "whole"


class Proved(NamedTuple):
    """Bytes of a payload that are what was stored."""

    start: int
    """Where they begin in the payload."""
    data: memoryview


def prove(place: ObjPlace, key: OffloadKey, data: memoryview) -> Proved | Damage:
    """The payload in the bytes of a whole chunk (header, payload, padding), or what is wrong with them."""
    header = decode_header(data)
    if not isinstance(header, ChunkHeader):
        return header
    first = header_bytes(header.payload_bytes, header.piece_bytes)
    damage = check_header(header, place.identity, key, place.payload_bytes_of(key)) or check_payload(
        header, data[first:]
    )
    return damage or Proved(0, data[first : first + header.payload_bytes])


def prove_parts(place: ObjPlace, key: OffloadKey, cut: Cut) -> list[Proved] | Damage | Whole:
    """The parts of a payload that this engine needs, or what is wrong with any of them."""
    form = place.form_of(key)
    assert form.reads is not None, form
    header = decode_header(cut(0, form.header_bytes))
    if not isinstance(header, ChunkHeader):
        return header
    damage = check_header(header, place.identity, key, form.payload_bytes)
    if damage is not None:
        return damage
    if header.piece_bytes != form.piece_bytes:
        return Whole.WHOLE
    proved: list[Proved] = []
    for start, end in (part for read in form.reads for part in read.parts):
        part = Part(start, min(end, form.payload_bytes))
        data = cut(form.header_bytes + part.start, form.header_bytes + part.end)
        damage = Damage.LENGTH if len(data) < part.end - part.start else check_part(header, part.start, data)
        if damage is not None:
            return damage
        proved.append(Proved(part.start, data))
    return proved
