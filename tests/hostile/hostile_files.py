"""A folder of hostile files: everything that may stand where a chunk is expected, made from a good file.

Each case puts something at a path; `expected` says what a reader may answer. Nothing but a good file may be served.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvoffload.layout.chunk_format import checksum

HEADER_BYTES = 4096


@dataclass(frozen=True)
class Hostile:
    """One case."""

    name: str
    make: Callable[[Path, bytes], None]
    """(path, bytes of the good file for this path)."""
    outcome: str
    """"corrupt": it is removed. "missing": it is not ours, or not damage, and stays."""


def _bytes(name: str, change: Callable[[bytearray], bytes | bytearray], outcome: str = "corrupt") -> Hostile:
    return Hostile(name, lambda path, good: _write(path, bytes(change(bytearray(good)))), outcome)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _flip(offset: int) -> Callable[[bytearray], bytearray]:
    def change(good: bytearray) -> bytearray:
        good[offset] ^= 0x10
        return good

    return change


def _sealed(offset: int, value: bytes) -> Callable[[bytearray], bytearray]:
    """A header with another field and a right checksum: the work of somebody who knows the format."""

    def change(good: bytearray) -> bytearray:
        good[offset : offset + len(value)] = value
        good[HEADER_BYTES - 16 : HEADER_BYTES] = checksum(bytes(good[: HEADER_BYTES - 16]))
        return good

    return change


def _resummed(good: bytearray) -> bytearray:
    """All checksums of the header agree with each other, and not with the payload."""
    _sealed(384, bytes(16))(good)
    return _sealed(72, checksum(bytes(16)))(good)


def _sparse(path: Path, _good: bytes) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 50 if os.statvfs(path).f_bsize >= 65536 else 1 << 40)


def _socket(path: Path, _good: bytes) -> None:
    # The path of a socket may have 108 bytes only, so it is made beside and moved.
    short = Path(f"/tmp/kvoffload-{os.getpid()}.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(short))
    try:
        short.rename(path)
    except OSError:
        short.unlink()
        raise


def _link_to(target_of: Callable[[Path], Path]) -> Callable[[Path, bytes], None]:
    def make(path: Path, good: bytes) -> None:
        target = target_of(path)
        if target != path and target.suffix == ".good":
            target.write_bytes(good)
        path.symlink_to(target)

    return make


FIELDS = {
    "magic": 0,
    "version": 8,
    "header length": 12,
    "namespace": 20,
    "layout family": 48,
    "layout version": 64,
    "key length": 68,
    "payload checksum": 72,
    "payload length": 88,
    "padded length": 96,
    "creation time": 104,
    "key": 112,
    "length of a piece": 369,
    "number of pieces": 376,
    "checksum of a piece": 384,
    "unused": 2000,
    "header checksum": 4090,
    "payload begin": HEADER_BYTES,
    "payload end": -1,
}
"""Field → offset of one of its bytes. (The good file's payload fills its last page.)"""

CASES = [
    _bytes("empty", lambda good: b""),
    _bytes("one byte", lambda good: good[:1]),
    _bytes("short header", lambda good: good[:2000]),
    _bytes("header alone", lambda good: good[:HEADER_BYTES]),
    _bytes("short payload", lambda good: good[:-4096]),
    _bytes("short by one byte", lambda good: good[:-1]),
    _bytes("longer by one byte", lambda good: good + b"\0"),
    _bytes("longer by a page", lambda good: good + bytes(4096)),
    _bytes("twice", lambda good: good + good),
    _bytes("all zeros", lambda good: bytes(len(good))),
    _bytes("a text", lambda good: (b"hello, world\n" * len(good))[: len(good)]),
    _bytes("payload of zeros", lambda good: good[:HEADER_BYTES] + bytes(len(good) - HEADER_BYTES)),
    *(
        _bytes(f"bit flip: {name}", _flip(offset), "missing" if name == "version" else "corrupt")
        for name, offset in FIELDS.items()
    ),
    _bytes("a later version", lambda good: good[:8] + struct.pack("<I", 3) + good[12:], "missing"),
    _bytes(
        "a later version, shorter", lambda good: (good[:8] + struct.pack("<I", 9) + good[12:])[:64], "missing"
    ),
    _bytes("sealed: huge payload", _sealed(88, struct.pack("<QQ", 2**63, 2**63))),
    _bytes("sealed: largest payload", _sealed(88, struct.pack("<QQ", 2**64 - 1, 2**64 - 1))),
    _bytes("sealed: payload of nothing", _sealed(88, struct.pack("<QQ", 0, 0))),
    _bytes("sealed: lengths that do not agree", _sealed(96, struct.pack("<Q", 4096))),
    _bytes("sealed: huge key", _sealed(68, struct.pack("<I", 2**32 - 1))),
    _bytes("sealed: no key", _sealed(68, struct.pack("<I", 0))),
    _bytes("sealed: another key", _sealed(112, b"\x01\x02\x03\x04")),
    _bytes("sealed: another namespace", _sealed(16, b"\x00" * 32)),
    _bytes("sealed: another layout", _sealed(48, b"canonical\0\0\0\0\0\0\0")),
    _bytes("sealed: layout of no text", _sealed(48, b"\xff" * 16)),
    _bytes("sealed: another layout version", _sealed(64, struct.pack("<I", 2))),
    _bytes("sealed: another header length", _sealed(12, struct.pack("<I", 512))),
    _bytes("sealed: the version before pieces", _sealed(8, struct.pack("<I", 1))),
    _bytes("sealed: pieces of nothing", _sealed(368, struct.pack("<Q", 0))),
    _bytes("sealed: pieces of no whole page", _sealed(368, struct.pack("<Q", 8191))),
    _bytes("sealed: pieces of the largest length", _sealed(368, struct.pack("<Q", 2**64 - 1))),
    _bytes("sealed: pieces that do not fill the payload", _sealed(368, struct.pack("<Q", 4096))),
    _bytes("sealed: more pieces than there can be", _sealed(376, struct.pack("<Q", 2**64 - 1))),
    _bytes("sealed: another checksum of a piece", _sealed(384, bytes(16))),
    _bytes("sealed: other checksums throughout", _resummed),
    Hostile("huge and sparse", _sparse, "corrupt"),
    Hostile("directory", lambda path, good: path.mkdir(), "missing"),
    Hostile("FIFO", lambda path, good: os.mkfifo(path), "missing"),
    Hostile("socket", _socket, "missing"),
    Hostile("link to a good file", _link_to(lambda path: path.with_suffix(".good")), "missing"),
    Hostile("link to itself", _link_to(lambda path: path), "missing"),
    Hostile("dangling link", _link_to(lambda path: path.with_suffix(".nowhere")), "missing"),
    Hostile("link to an endless device", _link_to(lambda path: Path("/dev/zero")), "missing"),
]
