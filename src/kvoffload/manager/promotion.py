"""What is under way for one request between a tier and the host. Data only; `staging.py` moves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.lane import TierLane
from kvoffload.types import SlotId


class Phase(Enum):
    """How far a request's promotion has come."""

    ASKING = "asking"
    PROMOTING = "promoting"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Slice:
    """Chunks that one job will load; their host slots are reserved."""

    lane: TierLane
    group: int
    pairs: tuple[tuple[OffloadKey, SlotId], ...]


@dataclass(slots=True)
class Promotion:
    """What is under way for one request."""

    since_s: float
    asked_s: float
    """When the engine asked for the request last. It may pass a request over for a long time."""
    phase: Phase = Phase.ASKING
    jobs: set[tuple[str, int]] = field(default_factory=set)
    awaited: set[tuple[int, OffloadKey]] = field(default_factory=set)
    """Chunks that somebody else fetches or writes."""
    rest: list[Slice] = field(default_factory=list)
    """Slots are reserved; the loads are still to be handed over, a slice a call."""
    held: list[tuple[int, SlotId]] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)
    """Tiers whose answer is still out."""
