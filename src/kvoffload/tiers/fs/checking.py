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

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import (
    HEADER_BYTES,
    ChunkHeader,
    ChunkIdentity,
    Damage,
    PieceSums,
    check_header,
    decode_header,
    file_bytes,
    header_bytes,
    told_header_bytes,
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
        buffer: For its bytes, MAX_HEADER_BYTES or more; mutated.
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
        header = _read_header(disk, fd, buffer, will_read)
        if not isinstance(header, ChunkHeader):
            return ChunkCheck(found, header, None)
        damage = _check_place(header, expected)
        if damage is None and found.st_size != file_bytes(header.payload_bytes, header.piece_bytes):
            damage = Damage.LENGTH
        return ChunkCheck(found, damage or _check_payload(disk, fd, header, buffer, will_read), header)
    finally:
        with suppress(OSError):
            disk.close(fd)


def _read_header(
    disk: DiskIO, fd: int, buffer: memoryview, will_read: Callable[[int], None]
) -> ChunkHeader | Damage:
    done = disk.read_into(fd, [buffer[:HEADER_BYTES]])
    length = told_header_bytes(buffer[:done])
    if done == HEADER_BYTES < length:
        will_read(length - done)
        done += disk.read_into(fd, [buffer[done:length]], done)
    return decode_header(buffer[:done])


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
    # In parts: a chunk may be larger than this machine's memory.
    sums = PieceSums(header.piece_bytes)
    begin = header_bytes(header.payload_bytes, header.piece_bytes)
    done = 0
    while done < header.payload_bytes:
        part = buffer[: min(len(buffer), header.payload_bytes - done)]
        will_read(len(part))
        if disk.read_into(fd, [part], begin + done) < len(part):
            return Damage.LENGTH
        sums.update(part)
        done += len(part)
    is_right = not done or sums.checksums() == header.checksums
    return None if is_right else Damage.PAYLOAD_CHECKSUM
