"""The options of the fs tier, with their defaults, and how texts become their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from kvoffload.config.units import optional_size_field, size_field
from kvoffload.errors import ConfigError
from kvoffload.policies.factory import EVICTION_POLICIES


class Durability(Enum):
    """What a finished store has survived. Whatever is chosen, a process that dies loses nothing it had stored."""

    NONE = "none"
    """A power failure may lose or damage the latest chunks; damage is found by the checksum and becomes a miss."""
    DATA = "data"
    """fsync of the file before it gets its name: no chunk is ever damaged, the latest ones may be missing."""
    FULL = "full"
    """fsync of the directory, too: what was reported is there."""


class DirectIo(Enum):
    """Whether files bypass the page cache (O_DIRECT)."""

    AUTO = "auto"
    """Where the file system takes it."""
    ON = "on"
    """Refuse to start where it does not."""
    OFF = "off"


_E = TypeVar("_E", bound=Enum)


def _choice(kind: type[_E]) -> Callable[[object, str], _E]:
    def parse(value: object, where: str) -> _E:
        try:
            return kind(value)
        except ValueError:
            valid = ", ".join(repr(member.value) for member in kind)
            raise ConfigError(f"{where}: {value!r} is not valid; give one of {valid}") from None

    return parse


@dataclass(frozen=True, slots=True)
class FsTierConfig:
    """Options of one fs tier. Raises ConfigError when made with a value out of range."""

    root_dir: str
    """The directory. Several models, processes and hosts may share it."""
    name: str = "fs"
    """For logs, metrics and filters; give each tier of an engine its own."""
    max_bytes: int | None = optional_size_field()
    """Cap of the whole directory: all models, processes and hosts that share it, temporary files counted.
    The smallest cap of those who write holds. None: only `min_free_bytes` bounds it."""
    min_free_bytes: int | None = optional_size_field()
    """Free space that is always left on the file system. None: 5 % of it, at most 20 GiB."""
    durability: Durability = field(default=Durability.NONE, metadata={"parse": _choice(Durability)})
    direct_io: DirectIo = field(default=DirectIo.AUTO, metadata={"parse": _choice(DirectIo)})
    read_only: bool = False
    """Load only; nothing in the directory is changed."""
    threads: int = 16
    """Threads that read and write. Stores leave a quarter of them to loads."""
    max_pending_jobs: int = 256
    """Jobs of one direction (loads; stores and deletions) that may wait or run. More are refused."""
    max_pending_bytes: int = size_field("4GiB")
    """The same in bytes. One job alone is always taken."""
    eviction_policy: str = "lru"
    touch_interval_s: float = 60.0
    """A used chunk's time on disk is renewed at most this often."""
    negative_ttl_s: float = 2.0
    """How long "not there" is believed before the disk is asked again: another process may have stored it."""
    scan_interval_s: float = 1800.0
    """How often the directory is walked to count what is really there and to sweep up after dead writers."""
    shutdown_timeout_s: float = 5.0
    """How long a shutdown waits for I/O that has begun."""

    def __post_init__(self) -> None:
        if not self.root_dir:
            raise ConfigError("fs tier: root_dir is empty; give a directory")
        if self.threads < 2:
            raise ConfigError(f"fs tier: threads={self.threads} must be at least 2")
        for name in ("max_bytes", "max_pending_jobs", "max_pending_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"fs tier: {name}={value} must be at least 1")
        for name in ("touch_interval_s", "negative_ttl_s", "scan_interval_s", "shutdown_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"fs tier: {name}={getattr(self, name)} must be above 0 seconds")
        EVICTION_POLICIES.find(self.eviction_policy, None, "fs tier: eviction_policy")
