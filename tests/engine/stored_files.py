"""Chunk files of a store, as tests read and damage them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from kvoffload.layout.chunk_format import HEADER_BYTES, ChunkHeader, checksum, decode_header, encode_header


def payload_of(path: Path) -> np.ndarray:
    """The bytes of a chunk."""
    content = path.read_bytes()
    return np.frombuffer(content, np.uint8)[HEADER_BYTES : HEADER_BYTES + _header_of(content).payload_bytes]


def turn_signs(path: Path) -> None:
    """Damage it: the signs of all numbers turned, under a valid checksum."""
    content = bytearray(path.read_bytes())
    header = _header_of(content)
    payload = np.frombuffer(content, np.uint8)[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
    payload[1::2] ^= 0x80
    encode_header(
        dataclasses.replace(header, payload_checksum=checksum(payload.tobytes())),
        memoryview(content)[:HEADER_BYTES],
    )
    path.write_bytes(content)


def _header_of(content: bytes | bytearray) -> ChunkHeader:
    header = decode_header(content[:HEADER_BYTES])
    assert isinstance(header, ChunkHeader)
    return header
