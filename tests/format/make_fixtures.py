"""Writes the fixtures of the present format version. Run once per version; what is committed is never rewritten.

python tests/format/make_fixtures.py
"""

import hashlib
from pathlib import Path

from kvoffload.keys.offload_key import make_offload_key
from kvoffload.layout.chunk_format import (
    FORMAT_VERSION,
    HEADER_BYTES,
    ChunkHeader,
    ChunkIdentity,
    checksum,
    encode_header,
    padded_bytes,
)

FIXTURES = Path(__file__).parent / "fixtures"
IDENTITY = ChunkIdentity(hashlib.sha256(b"a namespace").digest(), "direct", 1)
CREATED_NS = 1_700_000_000_123_456_789
CASES = {
    "plain": (make_offload_key(hashlib.sha256(b"plain").digest(), 0), 4096),
    "padded": (make_offload_key(hashlib.sha256(b"padded").digest(), 3), 5000),
    "long_key": (make_offload_key(b"\xab" * 120, 4_294_967_295), 100),
}
"""Name → (key, payload bytes)."""


def payload_of(name: str) -> bytes:
    """Bytes that anybody can make again: SHA-256 of a counter."""
    size = CASES[name][1]
    blocks = (hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(-(-size // 32)))
    return b"".join(blocks)[:size]


def make_file(name: str) -> bytes:
    """A whole file of the present version."""
    key, size = CASES[name]
    payload = payload_of(name)
    page = bytearray(HEADER_BYTES)
    encode_header(ChunkHeader(IDENTITY, key, size, checksum(payload), CREATED_NS), page)
    return bytes(page) + payload + bytes(padded_bytes(size) - size)


if __name__ == "__main__":
    for case in CASES:
        path = FIXTURES / f"v{FORMAT_VERSION}_{case}.kv"
        if not path.exists():
            path.write_bytes(make_file(case))
