"""The real fs tier without its threads: what they would do happens when the simulation says so, one after the other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

from kvoffload.keys.fingerprint import Namespace
from kvoffload.sim.disk_faults import FaultyDisk
from kvoffload.sim.world import World
from kvoffload.tiers.fs.options import FsTierConfig
from kvoffload.tiers.fs.tier import FsTier
from kvoffload.tiers.fs.writer import WriterId


class _WalkWhenWaitedFor(threading.Event):
    """Who waits for a walk would wait for another thread; there is none, so it is made at once."""

    def __init__(self, walk: Callable[[], None]) -> None:
        super().__init__()
        self._walk = walk

    def wait(self, timeout: float | None = None) -> bool:
        """Have the walk made."""
        del timeout
        if not self.is_set():
            self._walk()
        return self.is_set()


class SteppedFsTier(FsTier):
    """See the module.

    Args:
        config: Options; with `threads=2` there is one slice of a store at a time, as slices of one job wait for each
            other.
        namespace: What the engine's bytes mean.
        payload_bytes: Bytes of a chunk, for every group.
        world: Time, and the number of this life.
        disk: Where it all is.
    """

    has_threads: ClassVar[bool] = False

    def __init__(
        self,
        config: FsTierConfig,
        namespace: Namespace,
        payload_bytes: Sequence[int],
        *,
        world: World,
        disk: FaultyDisk,
    ) -> None:
        self._life = world.lives
        super().__init__(
            config, namespace, payload_bytes, clock=world.clock, wall_clock=world.wall_clock, disk=disk
        )
        self._room.walked = _WalkWhenWaitedFor(self._upkeep.tick)
        self._taken: list[Callable[[], None]] = []

    def work(self, rng: random.Random) -> None:
        """Do one thing that some thread might do now: begin a slice, carry one out, probe, or keep things up."""
        dice = rng.random()
        if dice < 0.1:
            self._upkeep.tick()
        elif dice < 0.4:
            self._prober.probe_some()
        else:
            taken = self._executor.take()
            if taken is not None:
                self._taken.append(taken)
            if self._taken and dice < 0.9:
                self._taken.pop(rng.randrange(len(self._taken)))()

    def finish(self) -> None:
        """Do all that there is to do."""
        self._upkeep.tick()
        while self._prober.probe_some():
            pass
        while True:
            taken = self._executor.take()
            if taken is not None:
                self._taken.append(taken)
            if not self._taken:
                return
            self._taken.pop(0)()

    def tidy_up(self) -> None:
        """The housekeeping that is due."""
        self._upkeep.tick()

    def check_index(self) -> None:
        """Raise AssertionError if its index contradicts itself."""
        self._index.check()
        counters = self._around.counters.snapshot()
        assert not counters.get("internal_errors"), "an internal error in the fs tier: see the log"

    @property
    def temps_left(self) -> int:
        """Temporary files that it could not take away again."""
        return self._around.counters.snapshot().get("temps_left", 0)

    def leave(self) -> int | None:
        """As a shutdown in good order; returns what the usage record says then."""
        self._share.close()
        usage = self._share.show()
        return usage.used_bytes

    def shutdown(self) -> None:
        """See Tier."""
        self._is_shut_down = True

    def _new_writer(self) -> WriterId:
        # Another host in each life, as containers are: whether an earlier one lives cannot be asked, only guessed.
        return WriterId(f"{self._life:016x}", 1, 0, 1)

    def _spawn(self, work: Callable[[], None], name: str) -> list[threading.Thread]:
        del name
        work()
        return []
