"""Chunks in the real file format on a medium that trusts nobody's word: what it gives back may be damaged.

The format (layout/chunk_format.py) and the wrappers are the production ones; the medium and its damage are modelled.
"""

from __future__ import annotations

import random
from typing import ClassVar

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout import chunk_format
from kvoffload.layout.chunk_format import HEADER_BYTES, ChunkHeader, ChunkIdentity
from kvoffload.tiers.base import Outcome, Tier, TierEntry, Verb
from kvoffload.tiers.memory import MemoryMedium, MemoryTier
from kvoffload.tiers.wrappers.checksummed import ChecksumConfig, ChecksummedTier


class BareMedium(MemoryMedium):
    """A medium without checksums of its own, as disks are: it hands out whatever is there."""

    def read(self, key: OffloadKey, buffer: memoryview) -> Outcome:
        """DONE or MISSING; of what is shorter than the buffer, the rest stays as it was."""
        chunk = self._chunks.get(key)
        if chunk is None:
            return Outcome.MISSING
        length = min(len(chunk.data), buffer.nbytes)
        buffer[:length] = chunk.data[:length]
        return Outcome.DONE

    def swap(self, one: OffloadKey, other: OffloadKey) -> None:
        """A misdirected write: what is stored under two keys changes places."""
        chunks = self._chunks
        chunks[one].data, chunks[other].data = chunks[other].data, chunks[one].data

    @property
    def keys(self) -> list[OffloadKey]:
        """All keys, the least recently used first."""
        return list(self._chunks)


class MortalMemoryTier(MemoryTier):
    """A memory tier whose process can be killed while it writes."""

    def die(self, rng: random.Random) -> int:
        """What is being stored may be half there; returns how many chunks are."""
        torn = 0
        for pending in self._jobs.values():
            # What was stored before a reset is void in any case.
            is_store = pending.job.verb is Verb.STORE and pending.generation == self.medium.generation
            for entry in pending.job.entries if is_store else ():
                if rng.random() < 0.5:
                    half = entry.buffer[: rng.randrange(entry.buffer.nbytes)]
                    torn += self.medium.put(entry.key, half, self._clock.now_s(), ()) is not None
        self._jobs.clear()
        return torn


class ChunkFileTier(ChecksummedTier):
    """As ChecksummedTier, with the chunk format instead of a seal."""

    adds: ClassVar[str] = "as chunk files"

    def __init__(self, inner: Tier, config: ChecksumConfig, identity: ChunkIdentity) -> None:
        super().__init__(inner, config)
        self._identity = identity

    def _seal(self, verb: Verb, entry: TierEntry) -> TierEntry:
        size = entry.buffer.nbytes
        file = memoryview(bytearray(chunk_format.file_bytes(size)))
        if verb is Verb.STORE:
            header = chunk_format.header_for(self._identity, entry.key, entry.buffer, 0)
            chunk_format.encode_header(header, file[:HEADER_BYTES])
            file[HEADER_BYTES : HEADER_BYTES + size] = entry.buffer
        return TierEntry(entry.key, file)

    def _unseal(self, row: TierEntry, buffer: memoryview) -> bool:
        header = chunk_format.decode_header(row.buffer[:HEADER_BYTES])
        if not isinstance(header, ChunkHeader):
            return False
        payload = row.buffer[HEADER_BYTES:]
        damage = chunk_format.check_header(header, self._identity, row.key, buffer.nbytes)
        if damage or chunk_format.check_payload(header, payload):
            return False
        buffer[:] = payload[: buffer.nbytes]
        return True
