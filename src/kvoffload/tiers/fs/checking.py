"""Reads one chunk file and says whether it is whole, knowing its name and its namespace but no engine's configuration.

The bytes pass through a small buffer, so a file that says it is enormous costs time and no memory. How long a chunk must be
is not known here: the header says it, and the header has a checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import (
    HEADER_BYTES,
    ChunkHeader,
    ChunkIdentity,
    Damage,
    check_header,
    decode_header,
    file_bytes,
)
from kvoffload.tiers.fs.directory import GONE
from kvoffload.tiers.fs.disk import DiskIO, is_plain_file

PIECE_BYTES = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class Expected:
    """What a chunk must be."""

    key: OffloadKey
    """By its file's name."""
    identity: ChunkIdentity | None
    """By the namespace's description; None if there is none that can be trusted."""
    digest_start: str
    """By the name of the namespace's directory."""


class ChunkCheck(NamedTuple):
    """What was found."""

    found: os.stat_result
    damage: Damage | None
    header: ChunkHeader | None


def check_chunk(
    disk: DiskIO, path: str, expected: Expected, buffer: memoryview, will_read: Callable[[int], None]
) -> ChunkCheck | None:
    """Check a chunk file; None if there is none (any more), or something that is no plain file.

    Args:
        disk: The disk.
        path: Where it is.
        expected: What it must be.
        buffer: For its bytes, HEADER_BYTES or more; mutated.
        will_read: Told before so many bytes are read; may wait.

    Raises:
        OSError: it cannot be read.
    """
    try:
        fd = disk.open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    try:
        found = disk.fstat(fd)
        if not is_plain_file(found):
            return None
        will_read(min(HEADER_BYTES, found.st_size))
        header = decode_header(buffer[: disk.read_into(fd, [buffer[:HEADER_BYTES]])])
        if not isinstance(header, ChunkHeader):
            return ChunkCheck(found, header, None)
        damage = _check_place(header, expected)
        if damage is None and found.st_size != file_bytes(header.payload_bytes):
            damage = Damage.LENGTH
        return ChunkCheck(found, damage or _check_payload(disk, fd, header, buffer, will_read), header)
    finally:
        with suppress(OSError):
            disk.close(fd)


def _check_place(header: ChunkHeader, expected: Expected) -> Damage | None:
    identity = expected.identity
    if identity is None:
        if not header.identity.namespace_digest.hex().startswith(expected.digest_start):
            return Damage.OTHER_NAMESPACE
        identity = header.identity
    return check_header(header, identity, expected.key, header.payload_bytes)


def _check_payload(
    disk: DiskIO, fd: int, header: ChunkHeader, buffer: memoryview, will_read: Callable[[int], None]
) -> Damage | None:
    # Piece by piece, which `chunk_format.checksum` does not offer: a chunk may be larger than this machine's memory.
    state = xxhash.xxh3_128()
    done = 0
    while done < header.payload_bytes:
        piece = buffer[: min(len(buffer), header.payload_bytes - done)]
        will_read(len(piece))
        if disk.read_into(fd, [piece], HEADER_BYTES + done) < len(piece):
            return Damage.LENGTH
        state.update(piece)
        done += len(piece)
    return None if state.digest() == header.payload_checksum else Damage.PAYLOAD_CHECKSUM
