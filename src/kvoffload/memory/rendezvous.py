"""Rank 0's side of the rendezvous: a barrier for the workers first, a counter for attachers after it.

May live here: who is admitted, told what, and when the barrier ends. May not: making or mapping memory, addresses.
Single-threaded and non-blocking: the thread that opens the region drives it to the end of the barrier, then
a daemon thread takes over.

    phase     a worker says Join            an attacher says Attach     ends when
    BARRIER   checked, gets the memory      waits                       all have mapped, one failed, deadline
    SERVING   refused: the region is whole  checked, gets the memory    close()
    FAILED    told the reason               told the reason             all ranks know, or nobody waits any more
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from enum import Enum

from kvoffload.errors import RegionError, RegionJoinError, RegionSizeError
from kvoffload.memory.barrier import WORKER_STAGES, Barrier, Connection, Stage
from kvoffload.memory.deadline import Deadline
from kvoffload.memory.endpoint import Listener, peer_of, private
from kvoffload.memory.region_spec import RegionSpec
from kvoffload.memory.terms import difference
from kvoffload.memory.wire import (
    Attach,
    Complete,
    Failed,
    Join,
    Mapped,
    Message,
    Region,
    WireError,
    receive,
    send,
)

logger = logging.getLogger(__name__)

GREETING_S = 5.0
"""A connection that says nothing for this long is dropped."""
FAREWELL_S = 1.0
"""How long a failing rank 0 waits for ranks that are about to connect, before it raises."""
LINGER_S = 10.0
"""How long after that a thread goes on telling late ranks why there is no region, if some do not know. No longer:
it holds the address, and the next attempt may come from this very process."""
_MAX_GUESTS = 64
"""Connections that have not said who they are, or wait to attach."""
_THREAD_EXIT_S = 5.0


class _Phase(Enum):
    BARRIER = "barrier"
    SERVING = "serving"
    FAILED = "failed"


class RendezvousServer:
    """Rank 0's end. Owns the listener; does not own the memory's descriptor."""

    def __init__(self, spec: RegionSpec, listener: Listener, deadline: Deadline) -> None:
        self._spec = spec
        self._listener = listener
        self._barrier = Barrier(spec.label, spec.world_size, deadline)
        self._phase = _Phase.BARRIER
        self._failure: RegionError | None = None
        self._memory_descriptor = -1
        self._connections: set[Connection] = set()
        self._selector = selectors.PollSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector.register(listener.connection, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def wait_for_workers(self, memory_descriptor: int) -> None:
        """Hand the memory to every other worker and return when all have mapped it; then serve attachers.

        Raises:
            RegionError: a worker failed, died, or does not agree with rank 0; or ranks are missing at the deadline.
        """
        self._memory_descriptor = memory_descriptor
        while self._failure is None and not self._barrier.is_complete():
            if self._barrier.deadline.expired:
                self._failure = self._barrier.missing_ranks()
            else:
                self._step(self._barrier.deadline.remaining_s())
        if self._failure is not None:
            raise self._failure
        self._phase = _Phase.SERVING
        for connection in list(self._connections):
            if connection.stage in WORKER_STAGES:
                self._dismiss(connection, Complete())
            elif connection.stage is Stage.QUEUED:
                self._hand_over(connection)
        self._run_in_background(self._serve)

    def fail(self, error: RegionError) -> None:
        """Tell every worker why there will be no region. Waits FAREWELL_S at most; late workers are told by a thread."""
        self._phase = _Phase.FAILED
        self._failure = error
        for connection in list(self._connections):
            if connection.stage is not Stage.GREETING:
                self._tell_failure(connection)
        if not self._barrier.deadline.expired:
            self._linger(Deadline(FAREWELL_S))
        if self._barrier.all_informed():
            self.close()
        else:
            last_call = Deadline(LINGER_S)
            self._run_in_background(lambda: self._linger(last_call))

    def close(self) -> None:
        """Stop serving, free the address. Idempotent; callable from any thread."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"x")
        if self._thread is None:
            self._release()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout=_THREAD_EXIT_S)

    # -- the loop ------------------------------------------------------------------------------------------

    def _run_in_background(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception:
                logger.exception("host region of engine %s: stopped serving attachers", self._spec.label)
            finally:
                self._release()

        thread = threading.Thread(target=run, name="kvoffload-rendezvous", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The workers have what they need; only processes that would come later are turned away.
            logger.warning("host region of engine %s: cannot serve attachers (%s)", self._spec.label, error)
            self._release()
        else:
            self._thread = thread

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._step(None)

    def _linger(self, deadline: Deadline) -> None:
        while not (self._closing.is_set() or deadline.expired or self._barrier.all_informed()):
            self._step(deadline.remaining_s())

    def _step(self, timeout_s: float | None) -> None:
        """Wait for something to happen, at most `timeout_s`, and deal with it."""
        greeting = [c.patience.remaining_s() for c in self._connections if c.stage is Stage.GREETING]
        limits = [*greeting, *([] if timeout_s is None else [timeout_s])]
        for key, _ in self._selector.select(min(limits) if limits else None):
            if isinstance(key.data, Connection):
                if key.data in self._connections:
                    self._hear(key.data)
            elif key.fileobj is self._listener.connection:
                self._accept()
        for connection in list(self._connections):
            if connection.stage is Stage.GREETING and connection.patience.expired:
                self._drop(connection)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.connection.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # No descriptor left, most likely. The connection stays in the queue: do not spin on it.
            logger.warning(
                "host region of engine %s: cannot accept a connection (%s)", self._spec.label, error
            )
            self._closing.wait(0.1)
            return
        private(accepted).setblocking(False)
        peer = peer_of(accepted)
        if peer.uid != os.geteuid() or not self._has_room():
            logger.warning(
                "host region of engine %s: refused pid %d of user %d", self._spec.label, peer.pid, peer.uid
            )
            accepted.close()
            return
        connection = Connection(accepted, peer, Deadline(GREETING_S))
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _has_room(self) -> bool:
        """Whether one more guest can be taken in; of too many, the one that was silent for the longest time goes."""
        guests = [connection for connection in self._connections if connection.stage not in WORKER_STAGES]
        if len(guests) < _MAX_GUESTS:
            return True
        silent = [connection for connection in guests if connection.stage is Stage.GREETING]
        if silent:
            self._drop(min(silent, key=lambda connection: connection.patience.remaining_s()))
        return bool(silent)

    def _hear(self, connection: Connection) -> None:
        try:
            message = receive(connection.socket)
        except BlockingIOError:
            return
        except WireError as error:
            self._lost(connection, f"sent something that is not understood ({error})")
        except OSError as error:
            self._lost(connection, f"broke its connection ({error})")
        else:
            if message is None:
                self._lost(connection, "died or left before all workers had mapped the region")
            else:
                self._on_message(connection, message)

    # -- what messages mean --------------------------------------------------------------------------------

    def _on_message(self, connection: Connection, message: Message) -> None:
        match connection.stage, message:
            case Stage.GREETING, Join():
                self._on_join(connection, message)
            case Stage.GREETING, Attach():
                self._on_attach(connection, message)
            case Stage.MAPPING, Mapped():
                connection.stage = Stage.MAPPED
                self._barrier.mapped.add(connection.rank)
            case ((Stage.MAPPING | Stage.MAPPED), Failed(reason, is_size)):
                self._barrier.inform(connection.rank)
                kind = RegionSizeError if is_size else RegionJoinError
                self._failure = kind(f"{connection.name} failed: {reason}")
                self._drop(connection)
            case _:
                self._lost(connection, f"sent {type(message).__name__} out of turn")

    def _on_join(self, connection: Connection, join: Join) -> None:
        connection.rank = join.rank
        if self._phase is _Phase.FAILED:
            self._tell_failure(connection)
            return
        disagreement = difference(self._spec, join)
        if self._phase is _Phase.SERVING:
            self._refuse(
                connection, "the region is complete already; another engine with this engine_id is running"
            )
        elif join.rank in self._barrier.present:
            self._refuse(
                connection, f"there is a rank {join.rank} already; give each worker a rank of its own"
            )
        elif disagreement is None and join.rank >= self._barrier.world_size:
            self._refuse(connection, f"ranks go from 0 to {self._barrier.world_size - 1}")
        else:
            connection.stage = Stage.MAPPING
            self._barrier.present.add(join.rank)
            self._barrier.shorten(join.remaining_s)
            if disagreement is None:
                self._send_memory(connection)
            else:
                # Its rank will never come in another way: waiting on would only delay the news.
                self._failure = RegionJoinError(
                    f"{connection.name} does not agree with rank 0: {disagreement}"
                )

    def _on_attach(self, connection: Connection, attach: Attach) -> None:
        if self._phase is _Phase.FAILED:
            self._tell_failure(connection)
            return
        disagreement = difference(self._spec, attach)
        if disagreement is not None:
            self._dismiss(connection, Failed(f"does not agree with rank 0: {disagreement}", is_size=False))
        elif self._phase is _Phase.SERVING:
            self._hand_over(connection)
        else:
            connection.stage = Stage.QUEUED

    def _send_memory(self, connection: Connection) -> None:
        try:
            send(connection.socket, Region(self._spec.plan.total_bytes), self._memory_descriptor)
        except OSError as error:
            self._lost(connection, f"broke its connection ({error})")

    def _hand_over(self, connection: Connection) -> None:
        self._send_memory(connection)
        self._drop(connection)

    def _refuse(self, connection: Connection, reason: str) -> None:
        """Turn a worker away; the others go on waiting."""
        logger.warning("host region of engine %s: %s refused: %s", self._spec.label, connection.name, reason)
        self._barrier.note(f"{connection.name}: {reason}")
        self._dismiss(connection, Failed(reason, is_size=False))

    def _tell_failure(self, connection: Connection) -> None:
        assert self._failure is not None
        self._barrier.inform(connection.rank)
        self._dismiss(connection, Failed(str(self._failure), isinstance(self._failure, RegionSizeError)))

    def _lost(self, connection: Connection, why: str) -> None:
        """A connection ended or cannot be trusted; for a worker in the barrier this is the end of the barrier."""
        if connection.stage in WORKER_STAGES and self._phase is _Phase.BARRIER and self._failure is None:
            self._barrier.inform(connection.rank)
            self._failure = RegionJoinError(f"{connection.name} {why}")
        self._dismiss(connection, Failed(f"this process {why}", is_size=False))

    def _dismiss(self, connection: Connection, last_word: Message) -> None:
        with contextlib.suppress(OSError):
            send(connection.socket, last_word)
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def _release(self) -> None:
        for connection in list(self._connections):
            self._drop(connection)
        self._listener.close()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()
