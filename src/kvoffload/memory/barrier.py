"""What rank 0 knows about the processes that take part in a rendezvous. State only: no I/O, no decisions.

A connection goes through these stages; anything out of turn ends it:

    GREETING --Join---> MAPPING --Mapped--> MAPPED --Complete--> gone
    GREETING --Attach-> QUEUED --Region--> gone
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from enum import Enum

from kvoffload.errors import RegionJoinError
from kvoffload.memory.deadline import Deadline
from kvoffload.memory.endpoint import Peer

_MAX_NOTES = 8


class Stage(Enum):
    """What a connection is waiting for."""

    GREETING = "its first message"
    QUEUED = "the end of the barrier, to attach"
    MAPPING = "its worker to map the memory"
    MAPPED = "the end of the barrier"


WORKER_STAGES = (Stage.MAPPING, Stage.MAPPED)


@dataclass(slots=True, eq=False)
class Connection:
    """One process that is connected to rank 0."""

    socket: socket.socket
    peer: Peer
    patience: Deadline
    """When it must have said who it is."""
    stage: Stage = Stage.GREETING
    rank: int = -1
    """What it says it is; -1 for one that has not said anything, and for an attacher."""

    @property
    def name(self) -> str:
        """For people."""
        return f"rank {self.rank} (pid {self.peer.pid})"


@dataclass(slots=True)
class Barrier:
    """Which workers are here, have mapped the memory, and know how it ended. Rank 0 always does."""

    label: str
    world_size: int
    deadline: Deadline
    mapped: set[int] = field(default_factory=lambda: {0})
    present: set[int] = field(default_factory=lambda: {0})
    informed: set[int] = field(default_factory=lambda: {0})
    """Ranks that know how it ended, or are gone."""
    notes: list[str] = field(default_factory=list)

    def is_complete(self) -> bool:
        """Whether all workers have mapped the memory."""
        return len(self.mapped) == self.world_size

    def all_informed(self) -> bool:
        """Whether nobody is left who would wait in vain."""
        return len(self.informed) == self.world_size

    def inform(self, rank: int) -> None:
        """This rank knows, or is gone; what is no rank of this world is passed over."""
        if 0 <= rank < self.world_size:
            self.informed.add(rank)

    def shorten(self, remaining_s: float) -> None:
        """End the barrier in `remaining_s` at the latest: one worker waits no longer than that."""
        if remaining_s < self.deadline.remaining_s():
            self.deadline = Deadline(remaining_s)

    def note(self, refusal: str) -> None:
        """Remember who was refused: often the explanation for a missing rank."""
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(refusal)

    def missing_ranks(self) -> RegionJoinError:
        """The error for a barrier whose deadline has come."""
        absent = sorted(set(range(self.world_size)) - self.present)
        slow = sorted(self.present - self.mapped)
        parts = [f"missing at the deadline: {_listing(absent)}"] if absent else []
        parts += [f"not done mapping at the deadline: {_listing(slow)}"] if slow else []
        parts += [f"refused meanwhile: {note}" for note in self.notes]
        return RegionJoinError(
            f"host region of engine {self.label}: {'; '.join(parts)} (world size {self.world_size}); "
            f"look for their errors in the log, or give them more time (timeout_s)"
        )


def _listing(ranks: list[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)
