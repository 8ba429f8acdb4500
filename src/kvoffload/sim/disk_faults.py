"""What goes wrong on the simulated disk: errors by seed, lies, a process that dies within a call, a power failure."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

from kvoffload.sim.disk import Node, SimDisk
from kvoffload.sim.world import World
from kvoffload.tiers.fs.directory import SHARED_DIRECTORY, USAGE_FILE
from kvoffload.tiers.fs.usage import decode_usage

_ERRORS: Mapping[str, tuple[int, ...]] = {
    "open": (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENOSPC, errno.EROFS),
    "close": (errno.EIO, errno.EDQUOT),
    "fstat": (errno.EIO, errno.ESTALE),
    "lstat": (errno.EIO, errno.ESTALE),
    "stat_entry": (errno.EIO, errno.ESTALE),
    "read_into": (errno.EIO, errno.ESTALE),
    "write_from": (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT),
    "truncate": (errno.EIO,),
    "fsync": (errno.EIO, errno.ENOSPC),
    "set_times": (errno.EIO, errno.EROFS),
    "rename": (errno.EIO, errno.ESTALE, errno.EROFS),
    "unlink": (errno.EIO, errno.EROFS),
    "rmdir": (errno.EIO,),
    "mkdir": (errno.ENOSPC, errno.EIO, errno.EROFS),
    "scandir": (errno.EIO, errno.ESTALE),
    "statvfs": (errno.EIO,),
    "try_lock": (errno.ENOLCK,),
}
"""What each call may say. A call that fails has done nothing, except that a write may have written a part."""
_LIE_RATE = 0.2
"""Share of a write's faults that are not reported: a part was written, and the disk says that all is well."""


class ProcessDiedError(BaseException):
    """The engine was killed within a call. Nobody may catch it but the simulation."""


class FaultyDisk(SimDisk):
    """A disk on which things go wrong.

    Args:
        world: Gives the time, and is told what happened.
        rng: Decides.
    """

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world.wall_clock)
        self._world = world
        self._rng = rng
        self.error_rate = 0.0
        """Per call."""
        self.calls_to_live: int | None = None
        """The engine dies within the call after so many; None: it does not."""
        self._is_dead = False
        self.may_miscount = False
        """Whether a listing failed while nobody had counted the directory (a fresh record, or one that was lost).

        Then the fs tier takes what it can count: the only case in which its cap does not hold."""

    def fails(self, call: str) -> int | None:
        """Begin a call: None if it succeeds, else the error. Raises ProcessDiedError."""
        if self.calls_to_live is not None:
            self._is_dead = self._is_dead or self.calls_to_live == 0
            self.calls_to_live -= 1
        if self._is_dead:
            raise ProcessDiedError
        if self.error_rate and self._rng.random() < self.error_rate:
            return self._rng.choice(_ERRORS[call])
        return None

    def note(self, call: str, number: int) -> None:
        """Write a fault down."""
        if call in ("scandir", "stat_entry"):
            self.may_miscount = self.may_miscount or self._is_uncounted()
        name = errno.errorcode[number]
        self._world.note(f"disk {name}")
        self._world.log.add(f"disk: {call} fails with {name}")

    def write_from(self, fd: int, buffers: Sequence[memoryview], offset: int = 0) -> None:
        """See DiskIO. A fault leaves a part of what was written."""
        node, content = self.descriptors[fd].node, b"".join(buffers)
        try:
            number = self.fails("write_from")
        except ProcessDiedError:
            self._world.note("died while writing")
            self.put(node, content[: self._rng.randrange(len(content) + 1)], offset)
            raise
        if number is None:
            self.put(node, content, offset)
            return
        self.put(node, content[: self._rng.randrange(len(content))], offset)
        if self._rng.random() < _LIE_RATE:
            self._world.note("disk torn write")
            self._world.log.add("disk: a write is torn and reported as done")
            return
        self.note("write_from", number)
        raise OSError(number, os.strerror(number))

    def die(self, *, loses_power: bool) -> None:
        """The engine is gone: no open files any more; without power, what was not synced may be torn."""
        self.descriptors.clear()
        self.calls_to_live, self._is_dead = None, False
        if not loses_power:
            return
        for _, node in self.files():
            if node.is_dirty:
                self._tear(node)

    def damage(self, suffix: str) -> str | None:
        """Harm one stored file whose name ends like this; returns how, None if there is none."""
        files = [(path, node) for path, node in self.files() if path.endswith(suffix)]
        if not files:
            return None
        path, node = self._rng.choice(files)
        kind = self._rng.choice(("bit flip", "bit flip", "truncated", "vanished", "misdirected"))
        if kind == "vanished":
            SimDisk.unlink(self, path)
        elif kind == "misdirected":
            other = self._rng.choice(files)[1]
            node.data, other.data = other.data, node.data
        elif node.data and kind == "bit flip":
            _flip(node, self._rng)
        else:
            del node.data[self._rng.randrange(len(node.data) + 1) :]
        return kind

    def _is_uncounted(self) -> bool:
        records = [node for path, node in self.files() if path.endswith(f"/{SHARED_DIRECTORY}/{USAGE_FILE}")]
        usage = decode_usage(bytes(records[0].data)) if records else None
        return usage is None or usage.used_bytes is None

    def _tear(self, node: Node) -> None:
        kind = self._rng.choice(("whole", "whole", "prefix", "zeros", "empty"))
        self._world.note(f"power failure: {kind}")
        node.is_dirty = False
        if kind == "empty":
            node.data.clear()
        elif kind != "whole":
            length = self._rng.randrange(len(node.data) + 1)
            lost = len(node.data) - length
            # "zeros": the length had reached the disk, the content had not.
            node.data[length:] = bytes(lost) if kind == "zeros" else b""


def _flip(node: Node, rng: random.Random) -> None:
    # Headers are mostly zeros and payloads small: half of the flips hit the fields, half hit anything.
    bit = rng.randrange(8 * len(node.data))
    if rng.random() < 0.5:
        bit %= 8 * 160
    node.data[bit // 8 % len(node.data)] ^= 1 << bit % 8


def _with_faults(call: str) -> Any:
    real = getattr(SimDisk, call)

    def faulty(self: FaultyDisk, *arguments: Any, **options: Any) -> Any:
        number = self.fails(call)
        if number is not None:
            self.note(call, number)
            if call == "close":
                # A descriptor is closed, whatever the call says.
                real(self, *arguments, **options)
            raise OSError(number, os.strerror(number))
        return real(self, *arguments, **options)

    return faulty


for _call in _ERRORS.keys() - {"write_from"}:
    setattr(FaultyDisk, _call, _with_faults(_call))
