"""The host region: one shared mapping for all workers of an engine on this machine, and its scheduler.

May live here: the life of a region in one process (open, attach, use, close). May not: what is kept in which row
(slots), copies, the protocol between processes (`rendezvous.py`, `joining.py`).
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import final

import numpy as np
import numpy.typing as npt

from kvoffload.config.units import format_bytes
from kvoffload.errors import RegionError, RegionJoinError
from kvoffload.memory.backing import check_fits, make_memory, map_memory
from kvoffload.memory.deadline import Deadline
from kvoffload.memory.endpoint import listen
from kvoffload.memory.joining import attach_region, join_barrier
from kvoffload.memory.plan import RegionPlan
from kvoffload.memory.populate import BackgroundPopulation
from kvoffload.memory.region_spec import RegionSpec
from kvoffload.memory.rendezvous import RendezvousServer

logger = logging.getLogger(__name__)


@final
class SharedOffloadRegion:
    """A mapping of host memory that several processes share. Made by `open` and `attach`.

    The memory has no name and lives as long as some process maps it or rank 0 serves it: however processes die,
    nothing stays behind.
    """

    def __init__(self, spec: RegionSpec, mapping: mmap.mmap, resources: ExitStack, is_creator: bool) -> None:
        self._spec = spec
        self._array: npt.NDArray[np.uint8] | None = np.frombuffer(mapping, dtype=np.uint8)
        self._resources = resources
        self._population: BackgroundPopulation | None = None
        self._is_creator = is_creator
        # Also when the region is forgotten without close(), and when the interpreter ends.
        self._finalizer = weakref.finalize(self, resources.close)

    @classmethod
    def open(cls, spec: RegionSpec, rank: int) -> SharedOffloadRegion:
        """Make (rank 0) or join (other ranks) the region of an engine; a barrier over all its workers.

        All ranks return when all have mapped the memory, or all raise as soon as one of them fails or dies.
        A rank that never comes makes all raise at the deadline.

        Raises:
            RegionSizeError: it does not fit this machine; raised by every rank.
            RegionJoinError: a worker failed, died, disagrees or is missing; the message says which and why.
            RegionError: the memory cannot be made or mapped here.
        """
        assert 0 <= rank < spec.world_size, (rank, spec.world_size)
        deadline = Deadline(spec.timeout_s)
        if rank == 0:
            with _os_errors_mapped(spec):
                return cls._create(spec, deadline)
        with _os_errors_mapped(spec), ExitStack() as resources:
            mapping = join_barrier(spec, rank, deadline, partial(_map, spec, resources))
            return cls(spec, mapping, resources.pop_all(), is_creator=False)

    @classmethod
    def attach(cls, spec: RegionSpec, timeout_s: float) -> SharedOffloadRegion:
        """Map the region of an engine from a process that is not one of its workers (the scheduler).

        Waits for rank 0 and for the end of its barrier. Whatever happens here, the workers do not notice.

        Raises:
            RegionError: no region before the deadline, another plan, or the memory cannot be mapped.
        """
        with _os_errors_mapped(spec), ExitStack() as resources:
            mapping = attach_region(spec, Deadline(timeout_s), partial(_map, spec, resources))
            return cls(spec, mapping, resources.pop_all(), is_creator=False)

    @classmethod
    def _create(cls, spec: RegionSpec, deadline: Deadline) -> SharedOffloadRegion:
        # Listening comes first: whatever goes wrong from here on, waiting workers hear of it at once.
        server = RendezvousServer(spec, listen(spec, deadline), deadline)
        with ExitStack() as resources:
            try:
                limit = check_fits(spec)
                memory = make_memory(spec)
                resources.callback(os.close, memory.descriptor)
                mapping = _map(spec, resources, memory.descriptor)
                server.wait_for_workers(memory.descriptor)
            except RegionError as error:
                server.fail(error)
                raise
            except BaseException as error:
                server.fail(RegionJoinError(f"rank 0 failed: {type(error).__name__}: {error}"))
                raise
            resources.callback(server.close)
            logger.info(
                "host region of engine %s: %s of %s for %d worker(s), rows x stride %s, limit was %s (%s)",
                spec.label,
                memory.kind.value,
                format_bytes(spec.plan.total_bytes),
                spec.world_size,
                spec.plan.fingerprint,
                format_bytes(limit.available_bytes),
                limit.source,
            )
            return cls(spec, mapping, resources.pop_all(), is_creator=True)

    @property
    def plan(self) -> RegionPlan:
        """Where the rows are."""
        return self._spec.plan

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The whole region: uint8, one dimension, `plan.total_bytes` long. A view: writing to it is seen by all."""
        assert self._array is not None, "the region is closed"
        return self._array

    def rows(self, group: int) -> npt.NDArray[np.uint8]:
        """The rows of one group: uint8 of shape (rows, row_stride_bytes). A view, no copy."""
        area = self.plan.groups[group]
        part = self.array[area.first_byte : area.first_byte + area.size_bytes]
        return part.reshape(area.rows, area.row_stride_bytes)

    def populate_in_background(self) -> None:
        """Touch all pages in a daemon thread, once; returns at once. Only rank 0 does it, for the others it does nothing.

        Bytes are not changed. If it cannot be done, that is one warning in the log: pages are then touched on first use.
        """
        if not self._is_creator or self._population is not None:
            return
        self._population = BackgroundPopulation(self.array, self._spec.label)
        self._resources.callback(self._population.stop)
        self._population.start()

    @property
    def populated_bytes(self) -> int:
        """How many bytes `populate_in_background` has touched so far; never falls."""
        return 0 if self._population is None else self._population.populated_bytes

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._array is None

    def close(self) -> None:
        """Stop serving and populating, give the address, descriptors and mapping back. Idempotent.

        Arrays that were handed out stay valid: as long as there is one, the mapping stays until the last is gone.
        """
        self._array = None
        self._finalizer()

    def __enter__(self) -> SharedOffloadRegion:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _os_errors_mapped(spec: RegionSpec) -> Iterator[None]:
    """What the kernel refuses in an unexpected place (no descriptor left, say) is the world's fault, too."""
    try:
        yield
    except OSError as error:
        raise RegionError(
            f"host region of engine {spec.label}: {error}; check the limits of this process (ulimit -a)"
        ) from error


def _map(spec: RegionSpec, resources: ExitStack, descriptor: int) -> mmap.mmap:
    """Map the memory, and unmap it with `resources`."""
    mapping = map_memory(descriptor, spec)
    resources.callback(_unmap, mapping)
    return mapping


def _unmap(mapping: mmap.mmap) -> None:
    # Arrays that are still in use keep the mapping: it goes with the last of them.
    with suppress(BufferError):
        mapping.close()
