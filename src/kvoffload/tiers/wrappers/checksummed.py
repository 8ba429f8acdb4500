"""Checksums for a tier that has none: a page behind every payload with the digest of key and payload.

   row that the tier inside sees:  | payload | xxh3_128(key, payload): 16 bytes | zeros to a full memory page |

The digest travels with the bytes, so it holds after a restart and for other processes, which an index in this
process's memory would not. It costs one copy, made on the thread that drives the tier; a tier with threads of its own
and much to move had better check there. Make the tier inside for rows that are `SEAL_BYTES` longer.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar

import xxhash

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome, Tier, TierEntry, TierJob, TierReport, Verb
from kvoffload.tiers.wrappers.base import HoldingTier

SEAL_BYTES = mmap.PAGESIZE
"""What a stored chunk is longer than its payload: a whole page, so that rows stay multiples of it."""


def _seal(key: OffloadKey, payload: memoryview) -> bytes:
    digest = xxhash.xxh3_128(key)
    digest.update(payload)
    return digest.digest().ljust(SEAL_BYTES, b"\0")


@dataclass(frozen=True, slots=True)
class ChecksumConfig:
    """Bounds."""

    max_held_jobs: int = 64
    """Jobs that were taken and have not ended, each with a copy of its bytes. More are refused."""


@dataclass(slots=True, eq=False)
class _Sealed:
    job: TierJob
    entries: tuple[TierEntry, ...]
    """As the tier inside sees them."""
    report: TierReport | None = None
    deleting: set[OffloadKey] = field(default_factory=set)


class ChecksummedTier(HoldingTier):
    """What does not match its digest is CORRUPT, deleted inside, and never gets into a caller's buffer."""

    adds: ClassVar[str] = "checksummed"

    def __init__(
        self, inner: Tier, config: ChecksumConfig, pause: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(inner, config.max_held_jobs, pause)
        # Ids of its own for the tier inside, since it adds jobs.
        self._ids = count(1)
        self._inside: dict[int, _Sealed] = {}
        self._undeleted: list[_Sealed] = []
        self._is_full = False
        self._counters.update({"checksum_errors": 0})
