"""What everything of a tier needs, in one hand. Nothing else lives here."""

from __future__ import annotations

from dataclasses import dataclass

from kvoffload.clock import Clock
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.place import StorePlace


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The disk, the names on it, the counters and the clocks."""

    disk: DiskIO
    place: StorePlace
    counters: Counters
    clock: Clock
    """For intervals."""
    wall_clock: Clock
    """For times on the disk: seconds since the epoch."""
