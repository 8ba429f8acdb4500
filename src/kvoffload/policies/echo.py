"""GDSF whose counts outlive eviction, and that learns what a chunk of one use is worth: our own, for prompts that come back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.gdsf import GDSFPolicy

_REMEMBERED = 3
"""Times as many evicted keys as were ever here at once."""
_WINDOW = 4
"""Times as many ends of waits: then what was learned before counts half."""
_LEAST = 0.05
"""So much of the chance of the others a new key has at least, whatever was learned."""


class EchoPolicy(GDSFPolicy):
    """GDSF with two changes.

    An evicted key that comes back goes on counting its uses where it stopped. Conversations come back late: where memory
    is short they were evicted meanwhile, and a policy that starts to count anew takes their third turn for a first
    one. ARC knows that from its ghosts; here the ghosts keep the count, and GDSF's ageing sees to it that old fame passes.

    A key that was used once counts less than one use, by what the ghosts tell: after each use a key is waited for until
    it comes or is forgotten. From that the chances of those used once and of those used more often are
    known, for just the time that this much memory can wait; the square of their ratio is the weight of a first use (a
    key that has less of a chance also takes longer to come, and what counts is hits per time in memory).
    Where memory is short most prompts will not come back in time, and those that came twice are kept; where it is
    plenty all are equal.

    The constants and the square were chosen on the first half of one trace; what that gave on the rest and on another
    one is in `docs/design/007-policies.md`. The prompt's length counts a quarter of what GDSF gives it.
    """

    chunks_that_double: ClassVar[int] = 256

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._gone: OrderedDict[OffloadKey, int] = OrderedDict()
        self._most = 0
        self._first, self._later = _Chance(), _Chance()
        self._first_weight = 1.0

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        super().insert(keys)
        self._most = max(self._most, len(self))

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        keys = list(keys)
        for key in keys:
            self._learn(self._uses[key], came=True)
        super().touch(keys)

    def clear(self) -> None:
        """See EvictionPolicy."""
        super().clear()
        self._gone.clear()

    def _weight(self, uses: int) -> float:
        return self._first_weight if uses == 1 else uses

    def _first_uses(self, key: OffloadKey) -> int:
        before = self._gone.pop(key, 0)
        if before:
            self._learn(before, came=True)
        return before + 1

    def _evicted(self, keys: Sequence[OffloadKey]) -> None:
        for key in keys:
            self._gone[key] = self._uses[key]
        while len(self._gone) > _REMEMBERED * self._most:
            self._learn(self._gone.popitem(last=False)[1], came=False)

    def _learn(self, uses: int, *, came: bool) -> None:
        """A key that had been used so often came again, or was not waited for any longer."""
        first, later = self._first, self._later
        (first if uses == 1 else later).count(came=came)
        if first.waits + later.waits > _WINDOW * self._most:
            first.halve()
            later.halve()
            ratio = first.ratio / later.ratio if later.ratio else 1.0
            self._first_weight = min(1.0, max(_LEAST, ratio)) ** 2


class _Chance:
    """How often keys came, of those that were waited for."""

    def __init__(self) -> None:
        self.waits = 1.0
        self._came = 1.0

    @property
    def ratio(self) -> float:
        """0 to 1; 1 while nothing is known."""
        return self._came / self.waits

    def count(self, *, came: bool) -> None:
        """One wait has ended."""
        self.waits += 1
        self._came += came

    def halve(self) -> None:
        """What was before counts half."""
        self.waits /= 2
        self._came /= 2
