"""The other side of the rendezvous: a worker that joins the barrier, a process that attaches after it.

May live here: what a joiner says and how long it waits. May not: who is admitted (`rendezvous.py`), how memory is
mapped (the caller brings that).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import TypeVar

from kvoffload.errors import RegionJoinError, RegionSizeError
from kvoffload.memory.deadline import Deadline
from kvoffload.memory.endpoint import connect, peer_of
from kvoffload.memory.region_spec import RegionSpec
from kvoffload.memory.terms import attach_message, join_message
from kvoffload.memory.wire import (
    Complete,
    Failed,
    Mapped,
    Message,
    Region,
    WireError,
    receive_with_descriptor,
    send,
)

VERDICT_S = 2.0
"""Rank 0 ends the barrier at the earliest deadline of all; a joiner waits this much longer to hear who was missing."""

T = TypeVar("T")


def join_barrier(spec: RegionSpec, rank: int, deadline: Deadline, map_memory: Callable[[int], T]) -> T:
    """Join as a worker; returns what `map_memory` made of the descriptor, when all workers have mapped.

    The descriptor is closed afterwards; `map_memory` must not keep it.

    Raises:
        RegionError: rank 0 is missing, another worker failed or is missing, or `map_memory` failed.
    """
    with connect(spec, deadline) as connection:
        talk = _Talk(spec, f"rank {rank}", connection, deadline.later(VERDICT_S))
        talk.say(join_message(spec, rank, deadline.remaining_s()))
        try:
            memory = talk.take_memory(map_memory)
            talk.say(Mapped())
            talk.expect(Complete)
        except BaseException as error:
            # The others are released at once, whatever went wrong here. After a Failed from rank 0 it is not read.
            with contextlib.suppress(OSError):
                is_size = isinstance(error, RegionSizeError)
                send(connection, Failed(str(error) or type(error).__name__, is_size))
            raise
        return memory


def attach_region(spec: RegionSpec, deadline: Deadline, map_memory: Callable[[int], T]) -> T:
    """Get the finished region as a process that is not a worker; waits for the end of the barrier.

    Raises:
        RegionError: no rank 0 before the deadline, no agreement, or `map_memory` failed.
    """
    with connect(spec, deadline) as connection:
        talk = _Talk(spec, "an attacher", connection, deadline)
        talk.say(attach_message(spec))
        return talk.take_memory(map_memory)


class _Talk:
    """A conversation with rank 0 that has a deadline."""

    def __init__(self, spec: RegionSpec, who: str, connection: socket.socket, deadline: Deadline) -> None:
        self._spec = spec
        self._who = who
        self._connection = connection
        self._deadline = deadline
        self._rank0 = f"rank 0 (pid {peer_of(connection).pid})"

    def say(self, message: Message) -> None:
        try:
            send(self._connection, message)
        except OSError:
            # Rank 0 hung up. If it said why, that is still there to be read.
            self.expect(Complete)

    def expect(self, kind: type[Complete | Region]) -> int | None:
        """Wait for a message of this kind; returns the descriptor that came with it."""
        message, descriptor = self._receive()
        if isinstance(message, kind):
            return descriptor
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(message, Failed):
            error = RegionSizeError if message.is_size else RegionJoinError
            raise error(
                f"host region of engine {self._spec.label}: {self._who} was released: {message.reason}"
            )
        if message is None:
            raise self._trouble(f"{self._rank0} died or closed the region before all workers had mapped it")
        raise self._trouble(f"{self._rank0} sent {type(message).__name__} where {kind.__name__} was due")

    def take_memory(self, map_memory: Callable[[int], T]) -> T:
        descriptor = self.expect(Region)
        assert descriptor is not None
        try:
            return map_memory(descriptor)
        finally:
            os.close(descriptor)

    def _receive(self) -> tuple[Message | None, int | None]:
        # A reset may come before the last words of rank 0, which are still in the queue: read once more.
        for _ in range(2):
            self._connection.settimeout(max(0.001, self._deadline.remaining_s()))
            try:
                return receive_with_descriptor(self._connection)
            except TimeoutError as error:
                raise self._trouble(f"{self._rank0} did not answer before the deadline") from error
            except ConnectionResetError:
                continue
            except (WireError, OSError) as error:
                raise self._trouble(f"{self._rank0}: {error}") from error
        return None, None

    def _trouble(self, what: str) -> RegionJoinError:
        return RegionJoinError(
            f"host region of engine {self._spec.label}: {self._who} gave up: {what}; see the log of rank 0"
        )
