"""What this machine, its control group and a directory really allow; asked before anything is allocated.

May live here: reading limits. May not: deciding what to do about them, and any allocation.
The roots of the two kernel file systems are arguments, so that tests read fake trees.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvoffload.config.units import format_bytes

logger = logging.getLogger(__name__)

_STRICT_OVERCOMMIT = "2"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """How much may still be allocated, and who says so."""

    available_bytes: int
    source: str
    """Readable: the file and the figure that the limit comes from."""


@dataclass(frozen=True, slots=True)
class LimitRoots:
    """Where the kernel's file systems are mounted."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")


THIS_MACHINE = LimitRoots()


@dataclass(frozen=True, slots=True)
class _CgroupFiles:
    """Names that differ between the two versions of control groups."""

    limit: str
    usage: str
    reclaimable: str


_V1 = _CgroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _CgroupFiles("memory.max", "memory.current", "inactive_file")


def available_memory(roots: LimitRoots = THIS_MACHINE) -> MemoryLimit:
    """The tightest of all limits that hold for this process.

    Looks at the memory the machine has left, at the commit limit where overcommitting is forbidden, and at every
    control group (version 2 and 1) from the process's own up to the root. File cache that can be dropped
    at once counts as free. A limit that cannot be read is left out.
    """
    limits = [*_machine_limits(roots.proc), *_cgroup_limits(roots)]
    if not limits:
        logger.warning("no memory limit could be read below %s and %s", roots.proc, roots.cgroup)
        return MemoryLimit(sys.maxsize, f"no limit could be read below {roots.proc} and {roots.cgroup}")
    return min(limits, key=lambda limit: limit.available_bytes)


def directory_limit(directory: Path) -> MemoryLimit:
    """Space left for files in `directory` (a tmpfs has a size of its own: 64 MB in a container by default).

    Raises:
        OSError: the directory cannot be asked.
    """
    stat = os.statvfs(directory)
    # A tmpfs mounted with size=0 has no limit and reports no blocks at all.
    free_bytes = stat.f_bavail * stat.f_frsize if stat.f_blocks else sys.maxsize
    return MemoryLimit(free_bytes, f"space left in {directory}")


def _machine_limits(proc: Path) -> Iterator[MemoryLimit]:
    figures = _figures(proc / "meminfo")
    # /proc/meminfo says kB and means KiB.
    if "MemAvailable" in figures:
        yield MemoryLimit(figures["MemAvailable"] * 1024, f"{proc}/meminfo MemAvailable")
    is_strict = _text(proc / "sys" / "vm" / "overcommit_memory") == _STRICT_OVERCOMMIT
    if is_strict and {"CommitLimit", "Committed_AS"} <= figures.keys():
        left_bytes = (figures["CommitLimit"] - figures["Committed_AS"]) * 1024
        yield MemoryLimit(max(0, left_bytes), f"{proc}/meminfo CommitLimit (vm.overcommit_memory is 2)")


def _cgroup_limits(roots: LimitRoots) -> Iterator[MemoryLimit]:
    for line in (_text(roots.proc / "self" / "cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            # The second place is where a hybrid machine mounts version 2.
            for mount in (roots.cgroup, roots.cgroup / "unified"):
                yield from _hierarchy_limits(mount, path, _V2)
        elif "memory" in controllers.split(","):
            yield from _hierarchy_limits(roots.cgroup / "memory", path, _V1)


def _hierarchy_limits(mount: Path, own_path: str, files: _CgroupFiles) -> Iterator[MemoryLimit]:
    """Limits of one hierarchy, from the process's group up to the mount.

    In a container the path is often that of the host while the mount shows the container's part only: groups that
    are not there are passed over, and the mount itself carries the container's limit.
    """
    parts = [part for part in PurePosixPath(own_path).parts if part not in {"/", ".."}]
    for depth in range(len(parts), -1, -1):
        directory = mount.joinpath(*parts[:depth])
        limit_bytes = _integer(directory / files.limit)
        usage_bytes = _integer(directory / files.usage)
        if limit_bytes is None or usage_bytes is None:
            continue
        reclaimable_bytes = _figures(directory / "memory.stat").get(files.reclaimable, 0)
        free_bytes = limit_bytes - usage_bytes + reclaimable_bytes
        yield MemoryLimit(
            min(limit_bytes, max(0, free_bytes)), f"{directory / files.limit} is {format_bytes(limit_bytes)}"
        )


def _figures(path: Path) -> dict[str, int]:
    """Lines `name 123` or `name: 123 kB` of a file; lines of another kind are left out."""
    figures = {}
    for line in (_text(path) or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            figures[words[0]] = int(words[1])
    return figures


def _integer(path: Path) -> int | None:
    """The number in a file; None if there is none ("max") or no such file."""
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
