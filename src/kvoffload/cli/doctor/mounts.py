"""Which file system a directory is on, and what that means for a store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kvoffload.cli.doctor.check import Check, ok, warn

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|ceph|lustre|glusterfs|beegfs|gpfs|afs|9p|virtiofs|fuse\..*|fuse"
)
_MEMORY = ("tmpfs", "ramfs")
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    point: str
    kind: str
    source: str


def mount_of(directory: str, table: str) -> Mount | None:
    """The mount that a directory is on.

    Args:
        directory: Absolute, without links.
        table: Content of /proc/self/mountinfo.
    """
    best: Mount | None = None
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 2:
            continue
        point = _plain(fields[4])
        is_above = directory == point or directory.startswith(point.rstrip("/") + "/")
        # Of two at the same place the later one hides the earlier one.
        if is_above and (best is None or len(point) >= len(best.point)):
            best = Mount(point, kind[0], _plain(kind[1]))
    return best


def check_mount(directory: str, proc: Path = Path("/proc")) -> Check:
    """What kind of file system a store would be on."""
    name = "file system"
    mount = mount_of(directory, (proc / "self" / "mountinfo").read_text(encoding="utf-8", errors="replace"))
    if mount is None:
        return warn(name, "not found in the mount table", "see what `df` says about the directory")
    found = f"{mount.kind} ({mount.source} at {mount.point})"
    if mount.kind in _MEMORY:
        return warn(
            name,
            f"{found}: in memory",
            "a store here is gone after a restart and takes host memory; give a disk",
        )
    if mount.kind == "overlay":
        return warn(
            name, f"{found}: a container's own layer", "it goes with the container; mount a volume there"
        )
    if _NETWORK.fullmatch(mount.kind):
        return ok(name, f"{found}: over a network, so several hosts may share it")
    return ok(name, f"{found}: local")


def _plain(text: str) -> str:
    """A path without the octal escapes of the mount table."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text)
