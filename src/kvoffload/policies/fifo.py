"""First in, first out: the key that came first goes first, used or not."""

from __future__ import annotations

from collections.abc import Iterable

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.lru import LRUPolicy


class FIFOPolicy(LRUPolicy):
    """Evicts the key that was inserted first. Cheapest of all, and the yardstick for the others."""

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy. Use does not count."""
