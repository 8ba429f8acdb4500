"""What all processes of one engine must know to make or join its host region. Data only.

May live here: the frozen description of a region and its defaults. May not: sockets, descriptors, mappings.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvoffload.memory.limits import THIS_MACHINE, LimitRoots
from kvoffload.memory.plan import RegionPlan

_MAX_LABEL_CHARACTERS = 80


class MemoryKind(Enum):
    """What the region's memory is an open file of."""

    MEMFD = "memfd"
    """Anonymous memory: no name, no size limit of /dev/shm, cannot be shrunk under a mapping."""
    UNNAMED_FILE = "unnamed_file"
    """A file in `shm_dir` that never has a name."""
    NAMED_FILE = "named_file"
    """A file in `shm_dir` whose name is taken away before the file gets its size."""


class SocketKind(Enum):
    """Where rank 0 listens."""

    ABSTRACT = "abstract"
    """A name that vanishes with the process."""
    PATH = "path"
    """A socket file in a private directory below `socket_dir`."""


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """One engine's host region.

    Every process of the engine must use the same values. The kinds are tried in order: the first that works is
    taken; a joiner looks in all places.
    """

    engine_id: str
    """Any text; distinct for each engine (and each data-parallel rank) that lives at the same time."""
    plan: RegionPlan
    world_size: int
    """Number of workers of the engine on this machine: ranks 0 … world_size - 1."""
    timeout_s: float = 120.0
    """How long a worker waits for the others."""
    memory_kinds: tuple[MemoryKind, ...] = tuple(MemoryKind)
    shm_dir: Path = Path("/dev/shm")  # noqa: S108 — nothing with a name stays there
    socket_kinds: tuple[SocketKind, ...] = tuple(SocketKind)
    # Not from TMPDIR: that may differ between the processes, and then they would never meet.
    socket_dir: Path = Path("/tmp")  # noqa: S108 — only a directory of our own, mode 0700, below it is used
    limit_roots: LimitRoots = THIS_MACHINE

    def __post_init__(self) -> None:
        assert self.world_size >= 1, self.world_size
        assert self.memory_kinds, "no memory kind"
        assert self.socket_kinds, "no socket kind"
        assert self.plan.total_bytes > 0, self.plan

    @property
    def label(self) -> str:
        """The engine's name for people, quoted and not too long."""
        text = self.engine_id
        return repr(text if len(text) <= _MAX_LABEL_CHARACTERS else f"{text[:_MAX_LABEL_CHARACTERS]}…")

    @property
    def socket_name(self) -> str:
        """Name of the meeting place: the same for equal engine ids of one user, short whatever the id is.

        The user is part of it, so that two users with the same engine id are not in each other's way.
        """
        digest = hashlib.sha256(self.engine_id.encode("utf-8", "surrogatepass")).hexdigest()
        return f"kvoffload-{os.geteuid()}-{digest[:32]}"
