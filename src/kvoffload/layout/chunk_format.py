"""Chunk format v1: one chunk as a self-describing file (`docs/chunk-format.md` is the one page about it).

Pure functions over bytes: no I/O, no clock. Who reads or writes a file lives in the tiers.

    file:  [ header: 4096 bytes | payload | padding to a multiple of 4096 ]
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

import xxhash

from kvoffload.keys.offload_key import OffloadKey

MAGIC = b"KVOCHUNK"
FORMAT_VERSION = 1
HEADER_BYTES = 4096
ALIGNMENT_BYTES = 4096
MAX_KEY_BYTES = 256
MAX_FAMILY_BYTES = 16

_START = struct.Struct("<8sI")
_FIELDS = struct.Struct("<8sII32s16sII16sQQQ")
_KEY_OFFSET = 112
_CHECKSUM_OFFSET = HEADER_BYTES - 16
_ZEROS = bytes(HEADER_BYTES)
assert _FIELDS.size == _KEY_OFFSET, _FIELDS.size


class Damage(Enum):
    """Why the bytes of a file are not the chunk that was asked for."""

    SHORT_HEADER = "short_header"
    NOT_A_CHUNK = "not_a_chunk"
    UNKNOWN_VERSION = "unknown_version"
    """Written by a version that this one does not know: not damage, but a clean miss."""
    HEADER_CHECKSUM = "header_checksum"
    HEADER_FIELDS = "header_fields"
    """The header is as it was written, and still makes no sense."""
    OTHER_NAMESPACE = "other_namespace"
    OTHER_LAYOUT = "other_layout"
    OTHER_KEY = "other_key"
    LENGTH = "length"
    PAYLOAD_CHECKSUM = "payload_checksum"


@dataclass(frozen=True, slots=True)
class ChunkIdentity:
    """What the bytes of all chunks of one namespace mean."""

    namespace_digest: bytes
    """SHA-256, 32 bytes."""
    layout_family: str
    """At most 16 ASCII characters."""
    layout_version: int


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The header of one chunk."""

    identity: ChunkIdentity
    key: OffloadKey
    payload_bytes: int
    payload_checksum: bytes
    """xxh3-128 of the payload, 16 bytes."""
    created_ns: int
    """Nanoseconds since the epoch, by the writer's clock."""


def padded_bytes(payload_bytes: int) -> int:
    """Length of a payload with its padding."""
    return -(-payload_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def file_bytes(payload_bytes: int) -> int:
    """Length of a chunk's file."""
    return HEADER_BYTES + padded_bytes(payload_bytes)


def checksum(data: bytes | bytearray | memoryview) -> bytes:
    """xxh3-128 in its canonical (big-endian) form, 16 bytes. Releases the interpreter lock while it runs."""
    return xxhash.xxh3_128_digest(data)


def encode_header(header: ChunkHeader, page: memoryview | bytearray) -> None:
    """Write a header into `page` (HEADER_BYTES, writable). Mutates `page` only."""
    identity, key = header.identity, header.key
    family = identity.layout_family.encode("ascii")
    assert len(page) == HEADER_BYTES, len(page)
    assert 0 < len(key) <= MAX_KEY_BYTES, key
    assert len(family) <= MAX_FAMILY_BYTES, family
    assert len(identity.namespace_digest) == 32, identity
    assert len(header.payload_checksum) == 16, header
    page[:] = _ZEROS
    _FIELDS.pack_into(
        page,
        0,
        MAGIC,
        FORMAT_VERSION,
        HEADER_BYTES,
        identity.namespace_digest,
        family,
        identity.layout_version,
        len(key),
        header.payload_checksum,
        header.payload_bytes,
        padded_bytes(header.payload_bytes),
        header.created_ns,
    )
    page[_KEY_OFFSET : _KEY_OFFSET + len(key)] = key
    page[_CHECKSUM_OFFSET:] = checksum(memoryview(page)[:_CHECKSUM_OFFSET])


def decode_header(page: bytes | bytearray | memoryview) -> ChunkHeader | Damage:
    """Read the first HEADER_BYTES of a file; does not mutate. Never raises, whatever the bytes are."""
    if len(page) < _START.size:
        return Damage.SHORT_HEADER
    magic, version = _START.unpack_from(page)
    if magic != MAGIC:
        return Damage.NOT_A_CHUNK
    # Before anything else: a later version may have another header length and another checksum.
    if version != FORMAT_VERSION:
        return Damage.UNKNOWN_VERSION
    if len(page) < HEADER_BYTES:
        return Damage.SHORT_HEADER
    view = memoryview(page)
    if checksum(view[:_CHECKSUM_OFFSET]) != view[_CHECKSUM_OFFSET:HEADER_BYTES]:
        return Damage.HEADER_CHECKSUM
    return _decode_fields(view)


def _decode_fields(view: memoryview) -> ChunkHeader | Damage:
    (
        _,
        _,
        header_bytes,
        digest,
        family,
        layout_version,
        key_bytes,
        payload_checksum,
        payload,
        padded,
        created,
    ) = _FIELDS.unpack_from(view)
    if header_bytes != HEADER_BYTES or not 0 < key_bytes <= MAX_KEY_BYTES or padded != padded_bytes(payload):
        return Damage.HEADER_FIELDS
    try:
        family_text = family.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        return Damage.HEADER_FIELDS
    return ChunkHeader(
        identity=ChunkIdentity(digest, family_text, layout_version),
        key=OffloadKey(bytes(view[_KEY_OFFSET : _KEY_OFFSET + key_bytes])),
        payload_bytes=payload,
        payload_checksum=payload_checksum,
        created_ns=created,
    )


def check_header(
    found: ChunkHeader, identity: ChunkIdentity, key: OffloadKey, payload_bytes: int
) -> Damage | None:
    """Whether a header is the one of the chunk that was asked for; None if it is."""
    if found.identity != identity:
        same_namespace = found.identity.namespace_digest == identity.namespace_digest
        return Damage.OTHER_LAYOUT if same_namespace else Damage.OTHER_NAMESPACE
    if found.key != key:
        return Damage.OTHER_KEY
    if found.payload_bytes != payload_bytes:
        return Damage.LENGTH
    return None


def check_payload(found: ChunkHeader, payload: bytes | bytearray | memoryview) -> Damage | None:
    """Whether a payload (padding allowed behind it) is the one the header speaks of; None if it is."""
    if len(payload) < found.payload_bytes:
        return Damage.LENGTH
    if checksum(memoryview(payload)[: found.payload_bytes]) != found.payload_checksum:
        return Damage.PAYLOAD_CHECKSUM
    return None
