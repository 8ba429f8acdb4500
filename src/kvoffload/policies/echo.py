"""GDSF whose counts outlive eviction: our own, for prompts that come back after they were evicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.gdsf import GDSFPolicy

_REMEMBERED = 3
"""Times as many evicted keys as were ever here at once."""


class EchoPolicy(GDSFPolicy):
    """GDSF, and an evicted key that comes back goes on counting its uses where it stopped.

    Conversations come back late: where memory is short they were evicted meanwhile, and a policy that starts to count
    anew takes their third turn for a first one. ARC knows that from its ghosts; here the ghosts keep the count, and
    GDSF's ageing sees to it that old fame passes.

    Both constants were chosen on the first half of one trace; what that gave on the rest and on another one is in
    `docs/design/007-policies.md`. The prompt's length counts a quarter of what GDSF gives it.
    """

    chunks_that_double: ClassVar[int] = 256

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._gone: OrderedDict[OffloadKey, int] = OrderedDict()
        self._most = 0

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        super().insert(keys)
        self._most = max(self._most, len(self))

    def clear(self) -> None:
        """See EvictionPolicy."""
        super().clear()
        self._gone.clear()

    def _first_uses(self, key: OffloadKey) -> int:
        return self._gone.pop(key, 0) + 1

    def _evicted(self, keys: Sequence[OffloadKey]) -> None:
        for key in keys:
            self._gone[key] = self._uses[key]
        while len(self._gone) > _REMEMBERED * self._most:
            self._gone.popitem(last=False)
