"""Integers that must not be mixed, and the few enumerations that every floor uses. No behaviour lives here."""

from __future__ import annotations

from enum import Enum
from typing import NewType

BlockId = NewType("BlockId", int)
"""Number of a block in the engine's device memory."""

SlotId = NewType("SlotId", int)
"""Number of a slot (the place of one chunk) in the host region."""

JobId = NewType("JobId", int)
"""Number of a transfer, unique in the life of one scheduler process."""

RequestId = NewType("RequestId", str)
"""The engine's name of a request."""


class LookupResult(Enum):
    """What a tier says about a key."""

    MISS = "miss"
    HIT = "hit"
    HIT_PENDING = "hit_pending"
    """There, but not readable yet: ask again."""
    RETRY = "retry"
    """A slower tier was asked: ask again."""


class Direction(Enum):
    """Direction of a transfer between device and host."""

    STORE = "store"
    LOAD = "load"
