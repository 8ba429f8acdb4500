"""What all wrappers share: they hand everything through that they do not change."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import StoredChunk, Tier, TierContext, TierJob, TierReport, TierStats
from kvoffload.types import LookupResult


class TierWrapper(Tier):
    """Hands everything through to the tier inside; a subclass overrides what it changes.

    It has the name of the tier inside, so that metrics, filters and logs stay as they were.
    """

    options_type: ClassVar[type[Any]] = type(None)
    adds: ClassVar[str]
    """One word for `describe`: what is different with it."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner
        self.name = inner.name
        self.medium_name = inner.medium_name
        self._counters: Counter[str] = Counter()

    @classmethod
    def open(cls, options: Any, context: TierContext) -> Tier:
        """Raises ConfigError: a wrapper has no place of its own."""
        del options, context
        raise ConfigError(f"{cls.__name__} is not a tier of its own; open a tier and put it around that")

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """See Tier."""
        return self.inner.lookup(keys)

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        return self.inner.submit(job)

    def poll(self) -> list[TierReport]:
        """See Tier."""
        return self.inner.poll()

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See Tier."""
        self.inner.touch(keys)

    def scan(self) -> Iterator[StoredChunk]:
        """See Tier."""
        return self.inner.scan()

    def stats(self) -> TierStats:
        """See Tier. The wrapper's counters are added to those of the tier inside."""
        stats = self.inner.stats()
        counters = Counter(stats.counters)
        counters.update(self._counters)
        return dataclasses.replace(stats, counters=dict(counters))

    def describe(self) -> str:
        """See Tier."""
        return f"{self.inner.describe()}, {self.adds}"

    def clear(self) -> bool:
        """See Tier."""
        return self.inner.clear()

    def drain(self, timeout_s: float) -> bool:
        """See Tier."""
        return self.inner.drain(timeout_s)

    def shutdown(self) -> None:
        """See Tier."""
        self.inner.shutdown()
