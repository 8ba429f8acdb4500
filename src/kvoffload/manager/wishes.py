"""What a request may wish of the cache, beyond how much: which tiers, and how long its chunks stay. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvoffload.policies.ranked import Rank


class Priority(Enum):
    """Chunks of a higher priority are evicted later."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    @property
    def rank(self) -> Rank:
        """Its place in the order of eviction."""
        return _RANKS[self]


_RANKS = {Priority.LOW: Rank.LOW, Priority.NORMAL: Rank.NORMAL, Priority.HIGH: Rank.HIGH}


@dataclass(frozen=True, slots=True)
class Stay:
    """How long the chunks of a request stay in the host."""

    priority: Priority = Priority.NORMAL
    keep_s: float | None = None
    """They are not evicted for so long (the request's `pin`)."""
    ttl_s: float | None = None
    """They are forgotten after so long, unless another request wants them longer."""

    @property
    def is_usual(self) -> bool:
        """Whether it asks for nothing."""
        return self.priority is Priority.NORMAL and self.keep_s is None and self.ttl_s is None


USUAL_STAY = Stay()


@dataclass(frozen=True, slots=True)
class Wishes:
    """Of one request."""

    stay: Stay = USUAL_STAY
    load_tiers: frozenset[str] | None = None
    """The tiers below the host that it may load from; None: all."""
    store_tiers: frozenset[str] | None = None
    """The tiers below the host that its chunks go to; None: all."""

    @property
    def cascades_to(self) -> frozenset[str] | None:
        """As `store_tiers`; none if its chunks have a time to live, which tiers below do not know."""
        return self.store_tiers if self.stay.ttl_s is None else frozenset()


NO_WISHES = Wishes()
