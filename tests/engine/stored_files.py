"""Chunk files of a store, as tests read and damage them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvoffload.layout.chunk_format import (
    ChunkHeader,
    decode_header,
    encode_header,
    header_bytes,
    piece_checksums,
)


def payload_of(path: Path) -> np.ndarray:
    """The bytes of a chunk: shape (payload_bytes,), uint8."""
    content = path.read_bytes()
    header, begin = _header_of(content)
    return np.frombuffer(content, np.uint8)[begin : begin + header.payload_bytes]


def turn_signs(path: Path) -> None:
    """Damage it: the signs of all numbers turned."""

    def turn(payload: np.ndarray) -> None:
        payload[1::2] ^= 0x80

    _rewrite(path, turn)


def swap_halves_of_all_blocks(path: Path, layers: int) -> None:
    """What a reader with another idea of the heads would get: valid numbers, the wrong heads."""

    def swap(payload: np.ndarray) -> None:
        blocks = payload.reshape(layers, 2, -1)
        blocks[:] = blocks[:, ::-1].copy()

    _rewrite(path, swap)


def _rewrite(path: Path, change: Callable[[np.ndarray], None]) -> None:
    """Change the payload in place, under valid checksums."""
    content = bytearray(path.read_bytes())
    header, begin = _header_of(content)
    payload = np.frombuffer(content, np.uint8)[begin : begin + header.payload_bytes]
    change(payload)
    encode_header(
        dataclasses.replace(header, checksums=piece_checksums(payload.tobytes(), header.piece_bytes)),
        memoryview(content)[:begin],
    )
    path.write_bytes(content)


def _header_of(content: bytes | bytearray) -> tuple[ChunkHeader, int]:
    header = decode_header(content)
    assert isinstance(header, ChunkHeader)
    return header, header_bytes(header.payload_bytes, header.piece_bytes)
