"""Whether bytes that came from a store are the chunk that was asked for. Pure."""

from __future__ import annotations

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import (
    HEADER_BYTES,
    ChunkHeader,
    Damage,
    check_header,
    check_payload,
    decode_header,
)
from kvoffload.tiers.obj.place import ObjPlace


def damage_of(place: ObjPlace, key: OffloadKey, data: memoryview) -> Damage | None:
    """What is wrong with the bytes of a chunk (header, payload, padding); None if they are what was stored."""
    header = decode_header(data[:HEADER_BYTES])
    if not isinstance(header, ChunkHeader):
        return header
    wrong = check_header(header, place.identity, key, place.payload_bytes_of(key))
    return wrong or check_payload(header, data[HEADER_BYTES:])


def payload_of(place: ObjPlace, key: OffloadKey, data: memoryview) -> memoryview:
    """The payload in the bytes of a chunk."""
    return data[HEADER_BYTES : HEADER_BYTES + place.payload_bytes_of(key)]
