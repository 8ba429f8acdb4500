"""vLLM's KV events as they come over the wire (msgpack) → `Batch`. Needs msgspec, not vLLM.

A batch is an array `[time, [event, …], data-parallel rank]`. An event is a map with its name under "type" (vLLM 0.32), or
an array that begins with its name (earlier versions). Tokens and extra keys are passed over without being decoded, and so
are fields that are not known here.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from kvoffload.connectors.events.batches import Batch, StoredBlocks

_NOTHING = msgspec.Raw(b"\xc0")
_NONSENSE = (msgspec.MsgspecError, ValueError, RecursionError)
"""The last one: of what is nested without end."""


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]


class _Stored(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[bytes | int]
    block_size: int
    parent_block_hash: bytes | int | None = None
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    pass


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _StoredArray(msgspec.Struct, tag="BlockStored", array_like=True):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: msgspec.Raw = _NOTHING
    medium: str | None = None
    lora_name: msgspec.Raw = _NOTHING
    extra_keys: msgspec.Raw = _NOTHING
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _RemovedArray(msgspec.Struct, tag="BlockRemoved", array_like=True):
    pass


class _ClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True):
    pass


_batches = msgspec.msgpack.Decoder(_Batch)
_maps = msgspec.msgpack.Decoder(_Stored | _Removed | _Cleared)
_arrays = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


def decode_batch(payload: bytes) -> Batch | None:
    """The batch in a message; None: it is none. A single event that is none is counted."""
    try:
        batch = _batches.decode(payload)
    except _NONSENSE:
        return None
    if not isfinite(batch.ts):
        return None
    stored, clears, unreadable = [], 0, 0
    for raw in batch.events:
        try:
            event = (_maps if _is_map(raw) else _arrays).decode(raw)
            if isinstance(event, (_Stored, _StoredArray)):
                stored.append(_plain(event))
            clears += isinstance(event, (_Cleared, _ClearedArray))
        except _NONSENSE:
            unreadable += 1
    return Batch(batch.ts, tuple(stored), clears, unreadable)


def _is_map(raw: msgspec.Raw) -> bool:
    first = memoryview(raw)[0]
    return first & 0xF0 == 0x80 or first in {0xDE, 0xDF}


def _plain(event: _Stored | _StoredArray) -> StoredBlocks:
    if event.block_size < 1:
        raise ValueError(f"blocks of {event.block_size} tokens")
    parent = event.parent_block_hash
    return StoredBlocks(
        hashes=tuple(map(_as_bytes, event.block_hashes)),
        parent=None if parent is None else _as_bytes(parent),
        block_tokens=event.block_size,
        group=event.group_idx or 0,
        kind=event.kv_cache_spec_kind,
        medium=event.medium,
    )


def _as_bytes(block_hash: bytes | int) -> bytes:
    return b"b" + block_hash if isinstance(block_hash, bytes) else b"i%d" % block_hash
