"""What several policies are made of: a walk over a queue for victims, and a bounded memory of keys that have gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from kvoffload.keys.offload_key import OffloadKey

Queue = OrderedDict[OffloadKey, None]
"""Keys, the first to go in front."""


def first_free(queue: Iterable[OffloadKey], is_kept: Callable[[OffloadKey], bool]) -> OffloadKey | None:
    """The first key that is not kept. Does not mutate."""
    for key in queue:
        if not is_kept(key):
            return key
    return None


class Ghosts:
    """Keys without their chunks, the oldest forgotten first."""

    def __init__(self) -> None:
        self._keys: Queue = OrderedDict()

    def add(self, key: OffloadKey, max_keys: int) -> None:
        """Remember it as the newest, and no more than `max_keys` in all."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        while len(self._keys) > max_keys:
            self._keys.popitem(last=False)

    def take(self, key: OffloadKey) -> bool:
        """Forget it; returns whether it was remembered."""
        if key in self._keys:
            del self._keys[key]
            return True
        return False

    def forget_oldest(self) -> None:
        """Forget the oldest of at least one."""
        self._keys.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._keys.clear()

    def __contains__(self, key: OffloadKey) -> bool:
        """Whether it is remembered."""
        return key in self._keys

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._keys)
