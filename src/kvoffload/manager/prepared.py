"""What a host tier says to an offer, and what it is told when the copies have ended: plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.types import SlotId

Writes = Mapping[OffloadKey, SlotId] | Iterable[tuple[OffloadKey, SlotId]]
"""Chunks, each with the slot that `prepare_store` or `reserve` gave it; of one offer, so no key comes twice."""


class PreparedStore(NamedTuple):
    """What `prepare_store` decided about an offer. A tuple: a frozen dataclass takes three times as long to make."""

    slots: dict[OffloadKey, SlotId]
    """To be written now, in the order of the offer."""
    evicted: tuple[OffloadKey, ...]
    """Made room; they are a miss from now on."""
    filtered: int
    """Offered, not there, and left out by admission."""
    rejected: int
    """Admitted, but no slot could be freed."""

    @property
    def stored(self) -> tuple[tuple[OffloadKey, SlotId], ...]:
        """`slots` as pairs."""
        return tuple(self.slots.items())
