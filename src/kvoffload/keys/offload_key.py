"""`OffloadKey`: the chained block hash at a chunk's end plus the index of its group, packed as bytes.

Bytes and not a tuple: hashable, comparable, ready for a file name, and nothing for the garbage collector.
"""

from __future__ import annotations

from typing import NewType

OffloadKey = NewType("OffloadKey", bytes)

GROUP_BYTES = 4


def group_suffix(group_index: int) -> bytes:
    """The last bytes of every key of a group (big-endian, unsigned)."""
    return group_index.to_bytes(GROUP_BYTES, "big", signed=False)


def make_offload_key(block_hash: bytes, group_index: int) -> OffloadKey:
    """Pack a block hash (any length above 0) and a group index (0 to 2**32 - 1)."""
    assert block_hash, "an empty block hash names nothing"
    return OffloadKey(block_hash + group_suffix(group_index))


def block_hash_of(key: OffloadKey) -> bytes:
    """The block hash in a key."""
    return key[:-GROUP_BYTES]


def group_index_of(key: OffloadKey) -> int:
    """The group index in a key."""
    return int.from_bytes(key[-GROUP_BYTES:], "big", signed=False)
