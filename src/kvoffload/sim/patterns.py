"""What right KV looks like: every token's entry is derived from all tokens before it, so that wrong KV is seen.

One entry of 8 bytes per token, layer and worker. `salt` makes the entries of two layers, groups or workers differ.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

ENTRY_BYTES = 8
START = 0x243F6A8885A308D3
_MASK = 2**64 - 1


def mix(previous: int, token: int, weights: int) -> int:
    """The entry after `previous` for a token, computed with the weights of that number."""
    x = (previous ^ (token + 1) * 0x9E3779B97F4A7C15 ^ (weights + 1) * 0xC2B2AE3D27D4EB4F) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    return x ^ (x >> 27)


@lru_cache(maxsize=4096)
def chain(tokens: tuple[int, ...], weights: int) -> NDArray[np.uint64]:
    """The right entries of a whole sequence, without salt: shape (len(tokens),). Do not mutate."""
    entries, previous = [], START
    for token in tokens:
        previous = mix(previous, token, weights)
        entries.append(previous)
    return np.array(entries, dtype=np.uint64)


def state_page(state: int | np.uint64, tokens_per_block: int) -> NDArray[np.uint64]:
    """What a block with a recurrent state holds: shape (tokens_per_block,), all of it from one entry, which comes first."""
    return np.uint64(state) ^ (np.arange(tokens_per_block, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


@lru_cache(maxsize=256)
def salt(worker: int, group: int, layer: int) -> np.uint64:
    """What the entries of one layer of one worker are combined with."""
    return np.uint64(mix(START ^ 0x5A17, (worker * 16 + group) * 16 + layer, 0))


@lru_cache(maxsize=4096)
def block_hashes(tokens: tuple[int, ...], tokens_per_hash: int) -> tuple[bytes, ...]:
    """The chained hashes of all whole hash units of a sequence."""
    hashes, parent = [], b"root"
    for end in range(tokens_per_hash, len(tokens) + 1, tokens_per_hash):
        unit = np.array(tokens[end - tokens_per_hash : end], dtype=np.int64).tobytes()
        parent = hashlib.blake2b(parent + unit, digest_size=8).digest()
        hashes.append(parent)
    return tuple(hashes)


def document(number: int, length: int) -> list[int]:
    """Token `i` of a document depends on its number only from some place on: documents share their beginnings."""
    return [i % 5 if i < 4 * number else 10 * (number + 1) + i % 3 for i in range(length)]
