"""Writes the fixtures of the present format version. Run once per version; what is committed is never rewritten.

python tests/format/make_fixtures.py
"""

import hashlib
from pathlib import Path

from kvoffload.keys.offload_key import make_offload_key
from kvoffload.layout.chunk_format import (
    FORMAT_VERSION,
    ChunkIdentity,
    encode_header,
    header_bytes,
    header_for,
    padded_bytes,
)

FIXTURES = Path(__file__).parent / "fixtures"
IDENTITY = ChunkIdentity(hashlib.sha256(b"a namespace").digest(), "direct", 1)
CREATED_NS = 1_700_000_000_123_456_789
CASES = {
    "plain": (make_offload_key(hashlib.sha256(b"plain").digest(), 0), 4096),
    "padded": (make_offload_key(hashlib.sha256(b"padded").digest(), 3), 5000),
    "long_key": (make_offload_key(b"\xab" * 120, 4_294_967_295), 100),
    "pieces": (make_offload_key(hashlib.sha256(b"pieces").digest(), 1), 21_000),
}
"""Name → (key, payload bytes)."""
PIECE_BYTES = {"pieces": 4096}
"""Of those that are not one piece."""
CASES_OF = {1: ("plain", "padded", "long_key"), 2: tuple(CASES)}
"""By version."""


def payload_of(name: str) -> bytes:
    """Bytes that anybody can make again: SHA-256 of a counter."""
    size = CASES[name][1]
    blocks = (hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(-(-size // 32)))
    return b"".join(blocks)[:size]


def make_file(name: str) -> bytes:
    """A whole file of the present version."""
    key, size = CASES[name]
    payload = payload_of(name)
    header = header_for(IDENTITY, key, payload, CREATED_NS, PIECE_BYTES.get(name, 0))
    area = bytearray(header_bytes(size, header.piece_bytes))
    encode_header(header, area)
    return bytes(area) + payload + bytes(padded_bytes(size) - size)


if __name__ == "__main__":
    for case in CASES:
        path = FIXTURES / f"v{FORMAT_VERSION}_{case}.kv"
        if not path.exists():
            path.write_bytes(make_file(case))
