"""The contract of an eviction policy: it orders keys and owns nothing else (no slots, no pins, no bytes)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from kvoffload.keys.offload_key import OffloadKey


class EvictionPolicy(ABC):
    """Orders the keys of one tier. Batches, because the scheduler's time is short.

    `expect` and `chain` are hints: a policy must keep its contract if nobody gives them (the fs tier does not).

    Args:
        capacity: How many keys the tier can hold.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """New keys, none of them known. The last one counts as the most recent."""

    @abstractmethod
    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """Known keys were used. The last one counts as the most recent."""

    @abstractmethod
    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """Known keys have gone for another reason than eviction."""

    @abstractmethod
    def evict(self, count: int, is_kept: Callable[[OffloadKey], bool]) -> Sequence[OffloadKey]:
        """Remove and return up to `count` keys, the least valuable first; never one that `is_kept`."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    def renew(self, keys: Iterable[OffloadKey]) -> None:  # noqa: B027 - most policies count uses
        """Known keys once more, for a use that `touch` or `insert` has told of or will tell of. As in `touch`, in order.

        For policies that go by time: a request that begins, runs and ends names its keys at each time, and counts once.
        """

    def expect(self, keys: Iterable[OffloadKey]) -> None:  # noqa: B027 - most policies need not know
        """Unknown keys that are wanted; most of them will be inserted soon. Told before room is made for them.

        For policies whose choice of a victim depends on who needs the room.
        """

    def chain(self, keys: Sequence[OffloadKey]) -> None:  # noqa: B027 - most policies need not know
        """Keys of one prompt, in its order, known or not: each is worth nothing without those before it."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of known keys."""
