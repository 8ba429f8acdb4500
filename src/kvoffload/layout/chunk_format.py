"""Chunk format v2: one chunk as a self-describing file (`docs/chunk-format.md` is the one page about it).

Pure functions over bytes: no I/O, no clock. Who reads or writes a file lives in the tiers.

    file:  [ header with a checksum for every piece: 4096 bytes, or more pages for many pieces | payload | padding to 4096 ]

A file of version 1 is one of a single piece: both versions are the same thing to whoever reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import xxhash

from kvoffload.keys.offload_key import OffloadKey

MAGIC = b"KVOCHUNK"
FORMAT_VERSION = 2
SINGLE_PIECE_VERSION = 1
"""The version before pieces."""
HEADER_BYTES = 4096
"""Length of the header of one piece, and the least of any."""
ALIGNMENT_BYTES = 4096
MAX_KEY_BYTES = 256
MAX_FAMILY_BYTES = 16
MAX_PIECES = 4096
CHECKSUM_BYTES = 16

_START = struct.Struct("<8sII")
_FIELDS = struct.Struct("<8sII32s16sII16sQQQ")
_PIECES = struct.Struct("<QQ")
_KEY_OFFSET = 112
_PIECES_OFFSET = _KEY_OFFSET + MAX_KEY_BYTES
_TABLE_OFFSET = _PIECES_OFFSET + _PIECES.size
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
    piece_bytes: int
    """Length of a piece, a multiple of 4096; the last one may be shorter."""
    checksums: bytes
    """xxh3-128 of every piece of the payload, 16 bytes each, one behind the other."""
    created_ns: int
    """Nanoseconds since the epoch, by the writer's clock."""
    version: int = FORMAT_VERSION

    @property
    def payload_checksum(self) -> bytes:
        """16 bytes that stand for the whole payload: the checksum of the pieces' checksums, so no byte is hashed twice."""
        return self.checksums if self.version == SINGLE_PIECE_VERSION else checksum(self.checksums)


MAX_HEADER_BYTES = 4096 * -(-(_TABLE_OFFSET + CHECKSUM_BYTES * (MAX_PIECES + 1)) // 4096)


def padded_bytes(payload_bytes: int) -> int:
    """Length of a payload with its padding."""
    return -(-payload_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def fitting_piece_bytes(payload_bytes: int, wanted_bytes: int = 0) -> int:
    """The length of pieces into which a payload is cut.

    Args:
        payload_bytes: Of a chunk.
        wanted_bytes: How long a piece should be; 0: all is one piece. Rounded up to a multiple of 4096, and doubled
            until there are at most MAX_PIECES.
    """
    if not wanted_bytes:
        return max(ALIGNMENT_BYTES, padded_bytes(payload_bytes))
    piece_bytes = padded_bytes(wanted_bytes)
    while payload_bytes > piece_bytes * MAX_PIECES:
        piece_bytes *= 2
    return piece_bytes


def header_bytes(payload_bytes: int, piece_bytes: int) -> int:
    """Length of a header, a multiple of 4096."""
    pieces = -(-payload_bytes // piece_bytes)
    return max(HEADER_BYTES, padded_bytes(_TABLE_OFFSET + CHECKSUM_BYTES * (pieces + 1)))


def file_bytes(payload_bytes: int, piece_bytes: int = 0) -> int:
    """Length of a chunk's file; without a length of pieces, that of one piece."""
    piece_bytes = piece_bytes or fitting_piece_bytes(payload_bytes)
    return header_bytes(payload_bytes, piece_bytes) + padded_bytes(payload_bytes)


def checksum(data: bytes | bytearray | memoryview) -> bytes:
    """xxh3-128 in its canonical (big-endian) form, 16 bytes.

    Releases the interpreter lock while it runs if there are more than about 100 KB.
    """
    return xxhash.xxh3_128_digest(data)


def piece_checksums(payload: bytes | bytearray | memoryview, piece_bytes: int) -> bytes:
    """The checksums of all pieces of these bytes, one behind the other."""
    view = memoryview(payload)
    return b"".join(
        [checksum(view[start : start + piece_bytes]) for start in range(0, len(view), piece_bytes)]
    )


class PieceSums:
    """The same for bytes that come in parts of any length.

    Args:
        piece_bytes: Length of a piece.
    """

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._filled = 0
        self._state = xxhash.xxh3_128()
        self._done: list[bytes] = []

    def update(self, data: memoryview) -> None:
        """The next bytes."""
        while data:
            part = data[: self._piece_bytes - self._filled]
            self._state.update(part)
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == self._piece_bytes:
                self._end_piece()

    def checksums(self) -> bytes:
        """Those of all pieces; nothing may follow."""
        if self._filled:
            self._end_piece()
        return b"".join(self._done)

    def _end_piece(self) -> None:
        self._done.append(self._state.digest())
        self._state.reset()
        self._filled = 0


def header_for(
    identity: ChunkIdentity,
    key: OffloadKey,
    payload: bytes | bytearray | memoryview,
    created_ns: int,
    piece_bytes: int = 0,
) -> ChunkHeader:
    """The header of a payload (without padding); without a length of pieces, it is one piece."""
    piece_bytes = piece_bytes or fitting_piece_bytes(len(payload))
    return ChunkHeader(
        identity, key, len(payload), piece_bytes, piece_checksums(payload, piece_bytes), created_ns
    )


def encode_header(header: ChunkHeader, area: memoryview | bytearray) -> None:
    """Write a header of this version into `area` (`header_bytes` long, writable). Mutates `area` only."""
    identity, key, table = header.identity, header.key, header.checksums
    family = identity.layout_family.encode("ascii")
    length = header_bytes(header.payload_bytes, header.piece_bytes)
    assert len(area) == length, (len(area), length)
    assert 0 < len(key) <= MAX_KEY_BYTES, key
    assert len(family) <= MAX_FAMILY_BYTES, family
    assert len(identity.namespace_digest) == 32, identity
    assert header.version == FORMAT_VERSION, header.version
    pieces = -(-header.payload_bytes // header.piece_bytes)
    assert len(table) == pieces * CHECKSUM_BYTES <= MAX_PIECES * CHECKSUM_BYTES, (len(table), pieces)
    area[:] = bytes(length)
    _FIELDS.pack_into(
        area,
        0,
        MAGIC,
        FORMAT_VERSION,
        length,
        identity.namespace_digest,
        family,
        identity.layout_version,
        len(key),
        header.payload_checksum,
        header.payload_bytes,
        padded_bytes(header.payload_bytes),
        header.created_ns,
    )
    area[_KEY_OFFSET : _KEY_OFFSET + len(key)] = key
    _PIECES.pack_into(area, _PIECES_OFFSET, header.piece_bytes, pieces)
    area[_TABLE_OFFSET : _TABLE_OFFSET + len(table)] = table
    area[length - CHECKSUM_BYTES :] = checksum(memoryview(area)[: length - CHECKSUM_BYTES])


def told_header_bytes(page: bytes | bytearray | memoryview) -> int:
    """How long the header is, as the first bytes of a file say: for who does not know. Never beyond MAX_HEADER_BYTES."""
    if len(page) < _START.size:
        return HEADER_BYTES
    magic, version, length = _START.unpack_from(page)
    is_told = magic == MAGIC and version == FORMAT_VERSION and length % ALIGNMENT_BYTES == 0
    return length if is_told and HEADER_BYTES <= length <= MAX_HEADER_BYTES else HEADER_BYTES


def decode_header(area: bytes | bytearray | memoryview) -> ChunkHeader | Damage:
    """Read a header, of any version that is known, from the first bytes of a file; does not mutate.

    Never raises, whatever the bytes are. Bytes behind the header are not looked at.
    """
    if len(area) < _START.size:
        return Damage.SHORT_HEADER
    magic, version, _ = _START.unpack_from(area)
    if magic != MAGIC:
        return Damage.NOT_A_CHUNK
    # Before anything else: a later version may have another header length and another checksum.
    if version not in (SINGLE_PIECE_VERSION, FORMAT_VERSION):
        return Damage.UNKNOWN_VERSION
    length = told_header_bytes(area)
    if len(area) < length:
        return Damage.SHORT_HEADER
    view = memoryview(area)[:length]
    if checksum(view[:-CHECKSUM_BYTES]) != view[-CHECKSUM_BYTES:]:
        return Damage.HEADER_CHECKSUM
    return _decode_fields(view)


def _decode_fields(view: memoryview) -> ChunkHeader | Damage:
    (
        _,
        version,
        length,
        digest,
        family,
        layout_version,
        key_bytes,
        payload_checksum,
        payload,
        padded,
        created,
    ) = _FIELDS.unpack_from(view)
    if length != len(view) or not 0 < key_bytes <= MAX_KEY_BYTES or padded != padded_bytes(payload):
        return Damage.HEADER_FIELDS
    if version == SINGLE_PIECE_VERSION:
        piece_bytes, table = fitting_piece_bytes(payload), payload_checksum
    else:
        piece_bytes, table = _decode_table(view, payload)
        if not piece_bytes or checksum(table) != payload_checksum:
            return Damage.HEADER_FIELDS
    try:
        family_text = family.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        return Damage.HEADER_FIELDS
    return ChunkHeader(
        ChunkIdentity(digest, family_text, layout_version),
        OffloadKey(bytes(view[_KEY_OFFSET : _KEY_OFFSET + key_bytes])),
        payload,
        piece_bytes,
        table,
        created,
        version,
    )


def _decode_table(view: memoryview, payload_bytes: int) -> tuple[int, bytes]:
    """(length of a piece, checksums); no length if that makes no sense."""
    piece_bytes, pieces = _PIECES.unpack_from(view, _PIECES_OFFSET)
    end = _TABLE_OFFSET + pieces * CHECKSUM_BYTES
    is_sound = (
        piece_bytes >= ALIGNMENT_BYTES
        and piece_bytes % ALIGNMENT_BYTES == 0
        and pieces == -(-payload_bytes // piece_bytes)
        # (It is that many pages, and no more.)
        and end + CHECKSUM_BYTES <= len(view) < end + CHECKSUM_BYTES + ALIGNMENT_BYTES
    )
    return (piece_bytes, bytes(view[_TABLE_OFFSET:end])) if is_sound else (0, b"")


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
    size = found.payload_bytes
    view = memoryview(payload)[:size]
    if len(view) < size:
        return Damage.LENGTH
    sums = checksum(view) if size <= found.piece_bytes else piece_checksums(view, found.piece_bytes)
    return None if sums == found.checksums or not size else Damage.PAYLOAD_CHECKSUM


def check_pieces(
    found: ChunkHeader, payload: bytes | bytearray | memoryview, parts: Iterable[tuple[int, int]]
) -> Damage | None:
    """Whether parts of a payload are those the header speaks of; None if they are. Bytes elsewhere are not looked at.

    Args:
        found: The header.
        payload: The whole payload's place, whatever it holds outside of the parts; padding allowed behind it.
        parts: (start, end), each from the beginning of a piece to the end of one, or of the payload.
    """
    view = memoryview(payload)[: found.payload_bytes]
    if len(view) < found.payload_bytes:
        return Damage.LENGTH
    checks = (check_part(found, start, view[start:end]) for start, end in parts)
    return next((damage for damage in checks if damage is not None), None)


def check_part(found: ChunkHeader, start: int, data: bytes | bytearray | memoryview) -> Damage | None:
    """Whether bytes are those of a payload from `start` on, as the header speaks of them; None if they are.

    Args:
        found: The header.
        start: Where they begin in the payload: at the beginning of a piece.
        data: To the end of a piece or of the payload; padding allowed behind that.
    """
    size, table = found.piece_bytes, found.checksums
    view = memoryview(data)[: max(0, found.payload_bytes - start)]
    assert start % size == 0, (start, size)
    if len(view) % size and start + len(view) != found.payload_bytes:
        # It ends in the middle of a piece.
        return Damage.LENGTH
    for at in range(0, len(view), size):
        place = (start + at) // size * CHECKSUM_BYTES
        if checksum(view[at : at + size]) != table[place : place + CHECKSUM_BYTES]:
            return Damage.PAYLOAD_CHECKSUM
    return None
