"""The memory behind a region: made by rank 0 as a file without a name, mapped by everybody from its descriptor.

May live here: checking limits, making the file, sealing it, mapping it. May not: who gets it and when.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass

from kvoffload.config.units import format_bytes
from kvoffload.errors import RegionError, RegionSizeError
from kvoffload.memory.limits import MemoryLimit, available_memory, directory_limit
from kvoffload.memory.region_spec import MemoryKind, RegionSpec

logger = logging.getLogger(__name__)

MEMORY_NAME = "kvoffload"
"""What /proc/<pid>/maps shows: `/memfd:kvoffload (deleted)`."""
# Not in the standard library. Kernels before 6.3 do not know it, hardened ones insist on it.
_MFD_NOEXEC_SEAL = 0x8
_RESERVE_STEP_BYTES = 1024**3


@dataclass(frozen=True, slots=True)
class Memory:
    """An open, nameless file of the right size. The owner closes the descriptor."""

    descriptor: int
    kind: MemoryKind


def check_fits(spec: RegionSpec) -> MemoryLimit:
    """Compare the plan with what the machine allows, before anything is made.

    Raises:
        RegionSizeError: it does not fit; names needed, available, where the limit comes from, and the remedy.
    """
    limit = available_memory(spec.limit_roots)
    _check(spec, limit, "give this machine or container more memory")
    return limit


def make_memory(spec: RegionSpec) -> Memory:
    """Make the region's memory with the first kind that works. No page is touched yet, except for files in shm_dir.

    Raises:
        RegionSizeError: `shm_dir` is too small, and nothing else works.
        RegionError: no kind works.
    """
    failures: list[str] = []
    too_small: RegionSizeError | None = None
    for kind in spec.memory_kinds:
        try:
            return Memory(_open_sized(kind, spec), kind)
        except RegionSizeError as error:
            too_small = error
        except OSError as error:
            failures.append(f"{kind.value}: {error}")
            logger.info("host region of engine %s: no %s here (%s)", spec.label, kind.value, error)
    if too_small is not None:
        raise too_small
    raise RegionError(
        f"host region of engine {spec.label}: no shared memory of {format_bytes(spec.plan.total_bytes)} can be made "
        f"({'; '.join(failures)}); allow memfd_create in this sandbox, or make {spec.shm_dir} writable and large enough"
    )


def map_memory(descriptor: int, spec: RegionSpec) -> mmap.mmap:
    """Map the whole region, shared, for reading and writing. The descriptor may be closed afterwards.

    Raises:
        RegionError: not a file of exactly the planned size (mapping it could kill this process), or no address space.
    """
    total_bytes = spec.plan.total_bytes
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != total_bytes:
            raise RegionError(
                f"host region of engine {spec.label}: the memory has {format_bytes(status.st_size)}, expected are "
                f"{format_bytes(total_bytes)}; start all processes of an engine with the same configuration"
            )
        mapping = mmap.mmap(descriptor, total_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError) as error:
        raise RegionError(
            f"host region of engine {spec.label}: cannot map {format_bytes(total_bytes)} ({error}); "
            f"lower cpu_bytes_to_use, or raise the limit on address space (ulimit -v)"
        ) from error
    with contextlib.suppress(OSError):
        # A crash shall not write the whole host tier into a core file.
        mapping.madvise(mmap.MADV_DONTDUMP)
    return mapping


def _check(spec: RegionSpec, limit: MemoryLimit, other_remedy: str) -> None:
    needed_bytes = spec.plan.total_bytes
    if needed_bytes > limit.available_bytes:
        raise RegionSizeError(
            f"host region of engine {spec.label} does not fit: needed {format_bytes(needed_bytes)}, "
            f"available {format_bytes(limit.available_bytes)} ({limit.source}); "
            f"lower cpu_bytes_to_use to at most {limit.available_bytes} bytes, or {other_remedy}"
        )


def _open_memfd(spec: RegionSpec) -> int:
    del spec
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(MEMORY_NAME, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(MEMORY_NAME, flags)


def _open_unnamed_file(spec: RegionSpec) -> int:
    return os.open(spec.shm_dir, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _open_named_file(spec: RegionSpec) -> int:
    path = spec.shm_dir / f"{MEMORY_NAME}-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    # Nobody else needs the name: it goes while the file is still empty.
    path.unlink()
    return descriptor


_OPEN: dict[MemoryKind, Callable[[RegionSpec], int]] = {
    MemoryKind.MEMFD: _open_memfd,
    MemoryKind.UNNAMED_FILE: _open_unnamed_file,
    MemoryKind.NAMED_FILE: _open_named_file,
}


def _open_sized(kind: MemoryKind, spec: RegionSpec) -> int:
    descriptor = _OPEN[kind](spec)
    try:
        _give_size(descriptor, kind, spec)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _give_size(descriptor: int, kind: MemoryKind, spec: RegionSpec) -> None:
    """Set the size once and for all.

    A memfd is sealed: nobody can shrink it under a mapping, which would kill whoever touches the lost pages. A file in
    shm_dir competes with other files for the space of its file system, and a page that finds none kills its toucher
    just the same: its space is reserved here, at the price of a slower start.
    """
    total_bytes = spec.plan.total_bytes
    os.ftruncate(descriptor, total_bytes)
    if kind is MemoryKind.MEMFD:
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return
    _check(spec, directory_limit(spec.shm_dir), f"enlarge {spec.shm_dir} (a container: --shm-size)")
    for first_byte in range(0, total_bytes, _RESERVE_STEP_BYTES):
        os.posix_fallocate(descriptor, first_byte, min(_RESERVE_STEP_BYTES, total_bytes - first_byte))
