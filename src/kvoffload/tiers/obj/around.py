"""What the parts of an obj tier share: the store, names, what is known, clocks, and which reset the present is after."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from kvoffload.clock import Clock
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.obj.caller import Caller
from kvoffload.tiers.obj.catalogue import Catalogue
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.place import ObjPlace

_STRIPES = 64


@dataclass(slots=True)
class Epoch:
    """Which clearing of the tier the present is after."""

    generation: int = 0
    is_clearing: bool = False
    """Objects are being deleted: until they are gone, the tier is empty and takes nothing."""
    not_before_s: float = float("-inf")
    """What was stored earlier (seconds since the epoch) counts as gone."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Whoever adds to the catalogue what others stored, checks the generation and adds under this lock."""


class NameLocks:
    """Who writes an object and who deletes it in one process take turns.

    Otherwise a store that finds the object there, and need not write it, would be told DONE just before it is deleted.
    """

    def __init__(self) -> None:
        self._locks = [threading.Lock() for _ in range(_STRIPES)]

    @contextmanager
    def holding(self, names: Iterable[str]) -> Iterator[None]:
        """Hold these names. Not to be nested."""
        with ExitStack() as stack:
            # In one order for everybody.
            for number in sorted({hash(name) % _STRIPES for name in names}):
                stack.enter_context(self._locks[number])
            yield


@dataclass(frozen=True, slots=True)
class Around:
    """Surroundings of the parts."""

    config: ObjTierConfig
    caller: Caller
    place: ObjPlace
    catalogue: Catalogue
    counters: Counters
    clock: Clock
    wall_clock: Clock
    """Seconds since the epoch; may be set back."""
    epoch: Epoch = field(default_factory=Epoch)
    names: NameLocks = field(default_factory=NameLocks)
