"""The replicated layout: all ranks hold identical bytes, so one copy is kept. The decision, in one place.

    configuration × platform                                        rows per chunk
    pure MLA, tensor parallelism only, one node, shared region      1 copy; elected writers, the others acknowledge
    the same, but every rank has a private buffer                   a copy per rank
    anything else                                                   a copy per rank (or the canonical layout)

The rows are those of `CanonicalLayout` with every rank a replica; nothing else is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvoffload.config.pages import LatentPage, LayerPage
from kvoffload.layout.geometry import ParallelSizes


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What is known of the memory that holds the rows."""

    platform_shares: bool
    """Whether the workers of a node map one region on this platform."""
    has_secondary_tiers: bool
    """A tiering spec reads rows in the scheduler's process, so it always has a shared region."""
    nodes: int = 1


def uses_shared_region(memory: HostMemory) -> bool:
    """Whether all ranks see one region. Decides the sizing and the allocation, so that they cannot disagree."""
    return memory.has_secondary_tiers or memory.platform_shares


def shared_rows_fault(memory: HostMemory) -> str | None:
    """Why ranks cannot write parts of one row for each other, in whatever layout; None if they can.

    The canonical layout needs this, too: what a rank reads may have been written by another.
    """
    if memory.nodes != 1:
        return f"the ranks are spread over {memory.nodes} nodes"
    if not uses_shared_region(memory):
        return "every rank has a private buffer: one rank's store would not reach the others"
    return None


def replicated_fault(pages: Sequence[LayerPage], sizes: ParallelSizes, memory: HostMemory) -> str | None:
    """Why one copy cannot stand for all ranks; None if it can."""
    if not pages or not all(isinstance(page, LatentPage) for page in pages):
        return "not all layers are latent (MLA)"
    if (sizes.pp, sizes.pcp, sizes.dcp) != (1, 1, 1):
        return "there is parallelism other than tensor parallelism"
    return shared_rows_fault(memory)


def copies_per_chunk(pages: Sequence[LayerPage], sizes: ParallelSizes, memory: HostMemory) -> int:
    """How many copies of the bytes one chunk takes in the direct layout: 1, or one per rank."""
    return 1 if replicated_fault(pages, sizes, memory) is None else sizes.world_size
