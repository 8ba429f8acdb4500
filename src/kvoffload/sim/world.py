"""What outlives an engine: time, the meaning of names, the weights, and the record of what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvoffload.clock import ManualClock
from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.sim.event_log import EventLog
from kvoffload.sim.setups import Setup

EPOCH_S = 1_700_000_000.0
"""What virtual time zero is, in seconds since the epoch."""


class Meaning(NamedTuple):
    """What must be in a chunk."""

    group: int
    tokens: tuple[int, ...]
    chunk: int


class WallClock:
    """Virtual time as seconds since the epoch."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return EPOCH_S + self._clock.now_s()


class World:
    """See the module.

    Args:
        setup: The geometry, which all engines of a world share.
        log: Where events go; one that keeps nothing if not given.
    """

    def __init__(self, setup: Setup, log: EventLog | None = None) -> None:
        self.setup = setup
        self.clock = ManualClock()
        self.wall_clock = WallClock(self.clock)
        self.log = log or EventLog(self.clock)
        self.seen = Counter[str]()
        self.weights = 0
        self.lives = 0
        """Engines that were started."""
        self.requests = 0
        """Requests of all lives."""
        self.meanings: dict[OffloadKey, Meaning] = {}

    def note(self, event: str, count: int = 1) -> None:
        """Count something that happened."""
        self.seen[event] += count

    def name_chunks(self, hashes: Sequence[bytes], tokens: tuple[int, ...]) -> None:
        """Note what the chunks of a sequence must hold."""
        setup = self.setup
        for group, per_block in enumerate(setup.tokens_per_block):
            span = per_block * setup.blocks_per_chunk
            for chunk in range(len(hashes) * setup.tokens_per_hash // span):
                name = hashes[(chunk + 1) * span // setup.tokens_per_hash - 1]
                self.meanings.setdefault(
                    make_offload_key(name, setup.group_ids[group]), Meaning(group, tokens, chunk)
                )
