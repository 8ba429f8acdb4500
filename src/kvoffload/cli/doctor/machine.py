"""Checks of the machine: memory and who limits it, shared memory, locked memory, huge pages, open files."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvoffload.cli.doctor.check import Check, fail, ok, warn
from kvoffload.cli.store.output import size_text
from kvoffload.memory.limits import THIS_MACHINE, LimitRoots, available_memory, directory_limit

_MIN_OPEN_FILES = 1024
_SHARED_PAGES = "kernel/mm/transparent_hugepage/shmem_enabled"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where to look; tests give a machine of their own."""

    roots: LimitRoots = THIS_MACHINE
    sys_dir: Path = Path("/sys")
    dev_dir: Path = Path("/dev")
    limit_of: Callable[[int], tuple[int, int]] = resource.getrlimit
    make_memfd: Callable[[str], int] = os.memfd_create

    @property
    def shm_dir(self) -> Path:
        """The file system for shared memory with names."""
        return self.dev_dir / "shm"


def check_machine(machine: Machine, cpu_bytes: int | None) -> Iterator[Check]:
    """Everything about the machine.

    Args:
        machine: Where to look.
        cpu_bytes: Host memory that the engine shall get; None: not said.
    """
    yield check_memory(machine, cpu_bytes)
    yield check_shared_memory(machine, cpu_bytes)
    yield check_locked_memory(machine, cpu_bytes)
    yield check_huge_pages(machine)
    yield check_open_files(machine)


def check_memory(machine: Machine, cpu_bytes: int | None) -> Check:
    """Whether the tightest limit leaves what is wanted."""
    limit = available_memory(machine.roots)
    free = "unknown" if limit.available_bytes == sys.maxsize else size_text(limit.available_bytes)
    found = f"{free} available ({limit.source})"
    if cpu_bytes is None:
        return ok("host memory", f"{found}; compare with --cpu-bytes SIZE")
    found = f"{found}, wanted {size_text(cpu_bytes)}"
    if cpu_bytes > limit.available_bytes:
        return fail("host memory", found, f"give --cpu-bytes at most {limit.available_bytes}, or more memory")
    if cpu_bytes > limit.available_bytes * 0.9:
        return warn(
            "host memory", found, "leave some for the engine itself: the model's weights come on top on a CPU"
        )
    return ok("host memory", found)


def check_shared_memory(machine: Machine, cpu_bytes: int | None) -> Check:
    """Whether all workers can share one region: a nameless file in memory, or else a file in /dev/shm."""
    name = "shared memory"
    try:
        room = directory_limit(machine.shm_dir).available_bytes
    except OSError:
        room = None
    shm = f"{machine.shm_dir} {'missing' if room is None else f'has {size_text(room)} left'}"
    try:
        os.close(machine.make_memfd("kvoffload-doctor"))
    except OSError as error:
        found = f"memfd_create is refused ({error.strerror}); {shm}"
        mend = "allow memfd_create in this sandbox, or enlarge /dev/shm (a container: --shm-size)"
        if room is None or room < (cpu_bytes or 1):
            return fail(name, found, mend)
        return warn(name, found, mend)
    return ok(name, f"memfd works, so /dev/shm is not needed ({shm})")


def check_locked_memory(machine: Machine, cpu_bytes: int | None) -> Check:
    """Whether the region can be pinned for a device that copies by itself."""
    soft, _ = machine.limit_of(resource.RLIMIT_MEMLOCK)
    found = "unlimited" if soft == resource.RLIM_INFINITY else size_text(soft)
    has_gpu = any(machine.dev_dir.glob("nvidia[0-9]*")) or (machine.dev_dir / "kfd").exists()
    if not has_gpu:
        return ok("locked memory", f"{found}; no GPU found, so none is needed")
    if soft != resource.RLIM_INFINITY and soft < (cpu_bytes or 1):
        return warn("locked memory", found, "ulimit -l unlimited (a container: --ulimit memlock=-1)")
    return ok("locked memory", found)


def check_huge_pages(machine: Machine) -> Check:
    """What the kernel does with large shared regions. Never a reason not to start."""
    text = _text(machine.sys_dir / _SHARED_PAGES)
    if text is None:
        return ok("huge pages", "this kernel has no transparent huge pages")
    chosen = text.partition("[")[2].partition("]")[0] or text
    return ok("huge pages", f"for shared memory: {chosen} ({machine.sys_dir / _SHARED_PAGES})")


def check_open_files(machine: Machine) -> Check:
    """Whether an engine with many connections and a tier with many files fits."""
    soft, hard = machine.limit_of(resource.RLIMIT_NOFILE)
    found = f"{_count(soft)} (may be raised to {_count(hard)})"
    if soft != resource.RLIM_INFINITY and soft < _MIN_OPEN_FILES:
        return warn("open files", found, f"ulimit -n {max(_MIN_OPEN_FILES, 65536)}")
    return ok("open files", found)


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
