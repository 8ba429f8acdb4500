"""What is below the host in a simulation: media that survive the engine, and the tiers that an engine opens on them."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from kvoffload.keys.fingerprint import Namespace
from kvoffload.sim.chunk_files import BareMedium, ChunkFileTier, MortalMemoryTier
from kvoffload.sim.directory import SteppedFsTier
from kvoffload.sim.disk_faults import FaultyDisk
from kvoffload.sim.double import StepTier
from kvoffload.sim.world import World
from kvoffload.tiers.base import Tier, Verb
from kvoffload.tiers.fs.directory import DIRECTORY_BYTES
from kvoffload.tiers.fs.options import DirectIo, Durability, FsTierConfig
from kvoffload.tiers.fs.store_root import describe
from kvoffload.tiers.memory import MemoryTierConfig
from kvoffload.tiers.namespace_text import identity_of
from kvoffload.tiers.wrappers.checksummed import ChecksumConfig, ChecksummedTier
from kvoffload.tiers.wrappers.delayed import DelayConfig, DelayedTier, Distribution
from kvoffload.tiers.wrappers.faults import Fault, FaultConfig
from kvoffload.tiers.wrappers.faulty import FaultyTier
from kvoffload.tiers.wrappers.metered import MeterConfig, MeteredTier
from kvoffload.tiers.wrappers.retrying import RetryConfig, RetryingTier
from kvoffload.tiers.wrappers.throttled import ThrottleConfig, ThrottledTier

MEDIUM_BYTES = 24 * 8192
DIRECTORY_CAP_BYTES = 176 * 1024
_ROOT = "/kv"
_STORM_RATE = 0.04
_DURABILITIES = (Durability.NONE, Durability.NONE, Durability.DATA, Durability.FULL)


def namespace_of_weights(weights: int) -> Namespace:
    """What an engine that starts with these weights calls its bytes."""
    fields = {"layout_family": "direct", "layout_version": 1, "model": "sim", "revision": str(weights)}
    return Namespace("sim", json.dumps(fields, sort_keys=True, separators=(",", ":")))


class Medium(ABC):
    """What survives the engine.

    Args:
        world: Time, and the record of what happened.
        rng: Decides what goes wrong.
        row_bytes: Bytes of a row, for every group.
    """

    def __init__(self, world: World, rng: random.Random, row_bytes: Sequence[int]) -> None:
        self.world = world
        self.rng = rng
        self.row_bytes = tuple(row_bytes)
        self.is_stuck = False
        """Jobs that the tier has make no progress."""

    @abstractmethod
    def open(self, name: str) -> Tier:
        """The tier of an engine that starts now."""

    @abstractmethod
    def work(self) -> None:
        """Some of what the tier's threads would do."""

    @abstractmethod
    def calm(self) -> None:
        """From now on nothing goes wrong; what has gone wrong stays."""

    @abstractmethod
    def damage(self) -> None:
        """Harm something that is stored."""

    @abstractmethod
    def die(self, *, loses_power: bool) -> None:
        """The engine has been killed."""

    def check_deeply(self) -> None:
        """As `check`, for what takes long."""

    def die_soon(self) -> None:
        """Let the engine be killed within one of the next calls, where that is possible."""

    def check(self) -> None:
        """Raise AssertionError if the tier contradicts itself."""

    def check_left(self) -> None:
        """Raise AssertionError if a tier that has nothing to do has left something behind."""

    def note_counters(self) -> None:
        """Add what the tier has counted to the record."""


class MemoryMediumBelow(Medium):
    """The wrappers over a memory tier: chunk files, or sealed rows.

    Args:
        world: See Medium.
        rng: See Medium.
        row_bytes: See Medium.
        seal: Puts the checksums around the tier.
    """

    def __init__(
        self,
        world: World,
        rng: random.Random,
        row_bytes: Sequence[int],
        seal: Callable[[Tier, World], Tier],
    ) -> None:
        super().__init__(world, rng, row_bytes)
        self._medium = BareMedium(MEDIUM_BYTES)
        self._seal = seal
        self._rates = _rates(rng)

    def open(self, name: str) -> Tier:
        """See Medium."""
        world, clock = self.world, self.world.clock
        self._tier = MortalMemoryTier(
            MemoryTierConfig(MEDIUM_BYTES, name, max_pending_jobs=16),
            clock,
            medium=self._medium,
            pause=clock.advance,
        )
        faults = FaultConfig(self.rng.randrange(2**32), self._rates)
        delay = DelayConfig(self.rng.choice((0.0, 0.1, 1.0)), Distribution.EXPONENTIAL)
        faulty = FaultyTier(self._tier, faults, self._medium)
        self._delayed = DelayedTier(faulty, delay, clock, self.rng, clock.advance)
        retrying = RetryingTier(
            self._seal(self._delayed, world), RetryConfig(1), clock, self.rng, clock.advance
        )
        self._top = ThrottledTier(
            MeteredTier(retrying, MeterConfig(), clock), ThrottleConfig(max_jobs=6), clock
        )
        return self._top

    def work(self) -> None:
        """See Medium. The tiers work when they are polled."""
        if self.is_stuck:
            self._delayed.stall()
        else:
            self._delayed.release()

    def calm(self) -> None:
        """See Medium."""
        self._rates.clear()

    def damage(self) -> None:
        """See Medium."""
        keys = self._medium.keys
        if not keys:
            return
        one, other = self.rng.choice(keys), self.rng.choice(keys)
        kind = self.rng.choice(("bit flip", "bit flip", "vanished", "misdirected"))
        if kind == "bit flip":
            self._medium.flip_bit(one, self.rng.randrange(8 * 4096))
        elif kind == "vanished":
            self._medium.remove(one)
        else:
            self._medium.swap(one, other)
        self.world.note(f"damage: {kind}")
        self.world.log.add(f"damage: {kind} of {one.hex()}")

    def die(self, *, loses_power: bool) -> None:
        """See Medium. Written is written: the medium is another machine's."""
        del loses_power
        self.note_counters()
        self.world.note("torn by a death", self._tier.die(self.rng))

    def check(self) -> None:
        """See Medium."""
        assert self._medium.size_bytes <= self._medium.max_bytes, self._medium.size_bytes

    def check_left(self) -> None:
        """See Medium."""
        stats = self._top.stats()
        assert (stats.queued_jobs, stats.queued_bytes) == (0, 0), f"LEAK: {stats}"

    def note_counters(self) -> None:
        """See Medium."""
        for name, count in self._top.stats().counters.items():
            self.world.note(f"tier {name}", count)


class DirectoryBelow(Medium):
    """The fs tier on a disk of its own."""

    def __init__(self, world: World, rng: random.Random, row_bytes: Sequence[int]) -> None:
        super().__init__(world, rng, row_bytes)
        self.disk = FaultyDisk(world, rng)
        self._error_rate = rng.choice((0.0, 0.003, _STORM_RATE))
        self._durability = rng.choice(_DURABILITIES)

    def open(self, name: str) -> Tier:
        """See Medium. Its opening meets no errors: those are refusals to start, which tests of its own show."""
        config = FsTierConfig(
            root_dir=_ROOT,
            name=name,
            max_bytes=DIRECTORY_CAP_BYTES,
            min_free_bytes=0,
            durability=self._durability,
            direct_io=DirectIo.OFF,
            threads=2,
            max_pending_jobs=8,
            scan_interval_s=self.rng.choice((20.0, 1800.0)),
        )
        self.disk.error_rate = 0.0
        namespace = namespace_of_weights(self.world.weights)
        self._tier = SteppedFsTier(config, namespace, self.row_bytes, world=self.world, disk=self.disk)
        self.disk.error_rate = self._error_rate
        return self._tier

    def work(self) -> None:
        """See Medium."""
        if not self.is_stuck:
            self._tier.work(self.rng)

    def calm(self) -> None:
        """See Medium."""
        self._error_rate = self.disk.error_rate = 0.0
        self.disk.calls_to_live = None

    def damage(self) -> None:
        """See Medium."""
        kind = self.disk.damage(".kv")
        if kind is not None:
            self.world.note(f"damage: {kind}")
            self.world.log.add(f"damage: {kind} in the directory")

    def die_soon(self) -> None:
        """See Medium."""
        self.disk.calls_to_live = self.rng.randrange(30)

    def die(self, *, loses_power: bool) -> None:
        """See Medium."""
        self.note_counters()
        self.disk.die(loses_power=loses_power)
        self.world.note("temporary files at a death", sum(p.endswith(".kvtmp") for p, _ in self.disk.files()))

    def check(self) -> None:
        """See Medium."""
        used = self.disk.used_bytes(DIRECTORY_BYTES)
        assert used <= DIRECTORY_CAP_BYTES or self.disk.may_miscount, (
            f"OVER THE CAP: {used} of {DIRECTORY_CAP_BYTES} bytes"
        )

    def check_deeply(self) -> None:
        """See Medium."""
        self._tier.check_index()

    def check_left(self) -> None:
        """See Medium. After the hour that a silent writer of another host gets, nothing of the dead is left."""
        jobs = self._tier.stats().queued_jobs
        assert jobs == 0, f"LEAK: {jobs} jobs in the tier"
        self.world.clock.advance(2 * 3600.0)
        self._tier.tidy_up()
        temps = [path for path, _ in self.disk.files() if path.endswith(".kvtmp") and self._is_ours(path)]
        # What a living writer could not take away again stays until it ends.
        assert len(temps) <= self._tier.temps_left, f"LEAK: {temps}"
        assert not self.disk.descriptors, f"LEAK: {self.disk.descriptors}"
        self.check()
        self.check_deeply()
        used, recorded = self.disk.used_bytes(DIRECTORY_BYTES), self._tier.leave()
        assert recorded is not None, "nobody has counted the directory"
        assert used <= recorded or self.disk.may_miscount, (
            f"UNCOUNTED: {used} bytes on the disk, the usage record says {recorded}"
        )

    def note_counters(self) -> None:
        """See Medium."""
        for name, count in self._tier.stats().counters.items():
            self.world.note(f"fs {name}", count)

    def _is_ours(self, path: str) -> bool:
        """Nothing is deleted in a directory that does not prove whose it is: a power failure may have torn its description."""
        return describe(self.disk, _ROOT, path.split("/")[2]).is_ours


class DoubleBelow(Medium):
    """A double, for setups that state machines run."""

    def open(self, name: str) -> Tier:
        """See Medium."""
        self._tier = StepTier(name)
        return self._tier

    def work(self) -> None:
        """See Medium."""
        self._tier.refuses, self._tier.unsure = self.rng.random() < 0.1, self.rng.random() < 0.1
        self._tier.run(self.rng.randrange(8), self.rng.choice((0, 0, 0, 0, 1, 2)))

    def calm(self) -> None:
        """See Medium."""

    def damage(self) -> None:
        """See Medium. A double is in order."""

    def die(self, *, loses_power: bool) -> None:
        """See Medium. It lives in the engine."""


def open_media(world: World, rng: random.Random, row_bytes: Sequence[int]) -> list[Medium]:
    """The media of a setup."""
    return [_KINDS[kind](world, random.Random(rng.randrange(2**32)), row_bytes) for kind in world.setup.below]


def _as_chunk_files(inner: Tier, world: World) -> Tier:
    return ChunkFileTier(inner, ChecksumConfig(), identity_of(namespace_of_weights(world.weights)))


def _sealed(inner: Tier, world: World) -> Tier:
    del world
    return ChecksummedTier(inner, ChecksumConfig())


def _rates(rng: random.Random) -> dict[Verb, dict[Fault, float]]:
    rate = rng.choice((0.0, 0.02, 0.08))
    stores = (Fault.REFUSE, Fault.FAIL, Fault.REJECT, Fault.TORN_STORE, Fault.FLIP_STORED, Fault.VANISH)
    loads = (Fault.REFUSE, Fault.FAIL, Fault.MISS, Fault.FLIP_STORED, Fault.FLIP_LOADED, Fault.VANISH)
    return {
        Verb.STORE: dict.fromkeys(stores, rate),
        Verb.LOAD: dict.fromkeys(loads, rate),
        Verb.DELETE: dict.fromkeys((Fault.REFUSE, Fault.FAIL), rate),
    }


_KINDS: Mapping[str, Callable[[World, random.Random, Sequence[int]], Medium]] = {
    "chunks": lambda world, rng, rows: MemoryMediumBelow(world, rng, rows, _as_chunk_files),
    "sealed": lambda world, rng, rows: MemoryMediumBelow(world, rng, rows, _sealed),
    "fs": DirectoryBelow,
    "double": DoubleBelow,
}
