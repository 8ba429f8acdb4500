"""Sealed rows: a page behind every payload with the digest of key and payload.

   | payload | xxh3_128(key, payload): 16 bytes | zeros to a full memory page |

The digest travels with the bytes, so it holds after a restart and for other processes, which an index in this process's
memory would not; and bytes that belong to another key are no more this key's than damaged ones.
"""

from __future__ import annotations

import mmap

import xxhash

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import TierEntry, Verb

SEAL_BYTES = mmap.PAGESIZE
"""What a sealed row is longer than its payload: a whole page, so that rows stay multiples of it."""


def row_for(verb: Verb, entry: TierEntry) -> TierEntry:
    """A page-aligned row for the tier inside: sealed for a STORE, empty for a LOAD."""
    row = memoryview(mmap.mmap(-1, entry.buffer.nbytes + SEAL_BYTES))
    if verb is Verb.STORE:
        row[:-SEAL_BYTES] = entry.buffer
        row[-SEAL_BYTES:] = _seal(entry.key, entry.buffer)
    return TierEntry(entry.key, row)


def unseal(row: TierEntry, buffer: memoryview) -> bool:
    """Copy the payload of a row into a buffer; False, and the buffer is untouched, if the seal does not match."""
    payload = row.buffer[:-SEAL_BYTES]
    if bytes(row.buffer[-SEAL_BYTES:]) != _seal(row.key, payload):
        return False
    buffer[:] = payload
    return True


def _seal(key: OffloadKey, payload: memoryview) -> bytes:
    digest = xxhash.xxh3_128(key)
    digest.update(payload)
    return digest.digest().ljust(SEAL_BYTES, b"\0")
