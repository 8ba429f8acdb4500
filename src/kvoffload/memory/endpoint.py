"""The meeting place of one engine's processes: a Unix socket that only one process can hold.

May live here: names, binding, connecting, who is at the other end. May not: messages and what they mean.

Tried first is an abstract name: it is no file, and the kernel frees it with the process, however that dies. Where
there are none, a socket file in a private directory serves:

    <socket_dir>/kvoffload-<uid>/          mode 0700, ours or refused; locked while somebody binds
        kvoffload-<uid>-<digest>.sock      a socket nobody answers on is left over from a killed process: swept
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

from kvoffload.errors import RegionJoinError
from kvoffload.memory.deadline import Deadline
from kvoffload.memory.region_spec import RegionSpec, SocketKind

logger = logging.getLogger(__name__)

_RETRY_S = 0.02
_CREDENTIALS = struct.Struct("3i")
_NOBODY_LISTENS = (ConnectionRefusedError, FileNotFoundError, BlockingIOError)
_MAX_STALE_SOCKETS = 1000


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel knows it."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound, listening, non-blocking socket."""

    connection: socket.socket
    path: Path | None
    """The socket file, if it has one."""

    def close(self) -> None:
        """Stop listening and take the name away. Idempotent."""
        if self.path is not None and self.connection.fileno() != -1:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.connection.close()


def new_socket() -> socket.socket:
    """A Unix packet socket that forked children do not keep alive."""
    return private(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))


def private(connection: socket.socket) -> socket.socket:
    """Mark a socket as not for children: see `_close_in_child`."""
    _NOT_FOR_CHILDREN.add(connection)
    return connection


def peer_of(connection: socket.socket) -> Peer:
    """Who connected (or, for the joiner, who listens)."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return Peer(pid, uid)


def listen(spec: RegionSpec, deadline: Deadline) -> Listener:
    """Take the meeting place of an engine.

    Raises:
        RegionJoinError: another process has it, or no kind of socket works here.
    """
    failures = []
    for kind in spec.socket_kinds:
        connection = new_socket()
        try:
            path = _bind(connection, kind, spec, deadline)
            connection.listen(spec.world_size + 16)
        except OSError as error:
            connection.close()
            if error.errno == errno.EADDRINUSE:
                raise RegionJoinError(_in_use(kind, spec)) from error
            failures.append(f"{kind.value}: {error}")
            logger.info("host region of engine %s: no %s socket here (%s)", spec.label, kind.value, error)
        except BaseException:
            connection.close()
            raise
        else:
            connection.setblocking(False)
            return Listener(connection, path)
    raise RegionJoinError(
        f"host region of engine {spec.label}: rank 0 cannot listen ({'; '.join(failures)}); "
        f"allow Unix sockets in this sandbox or set socket_dir to a writable directory of a local file system"
    )


def connect(spec: RegionSpec, deadline: Deadline) -> socket.socket:
    """Connect to rank 0 of an engine, again and again until it listens.

    Raises:
        RegionJoinError: nobody listened before the deadline, or a process of another user does.
    """
    trouble = "nobody listened"
    while True:
        for kind in spec.socket_kinds:
            connection = new_socket()
            try:
                connection.settimeout(max(_RETRY_S, deadline.remaining_s()))
                with _address(kind, spec) as address:
                    connection.connect(address)
                _refuse_other_users(connection, spec)
            except _NOBODY_LISTENS:
                connection.close()
            except OSError as error:
                connection.close()
                trouble = str(error)
            except BaseException:
                connection.close()
                raise
            else:
                return connection
        if deadline.expired:
            raise RegionJoinError(
                f"host region of engine {spec.label}: rank 0 is missing ({trouble} at {spec.socket_name} before the "
                f"deadline); check that rank 0 runs on this machine, as the same user, in the same network namespace"
            )
        time.sleep(min(_RETRY_S, deadline.remaining_s()))


def _refuse_other_users(connection: socket.socket, spec: RegionSpec) -> None:
    peer = peer_of(connection)
    if peer.uid != os.geteuid():
        raise RegionJoinError(
            f"host region of engine {spec.label}: the meeting place {spec.socket_name} is held by pid {peer.pid} of user "
            f"{peer.uid}, this process is of user {os.geteuid()}; run all processes of an engine as one user"
        )


def _directory(spec: RegionSpec) -> Path:
    return spec.socket_dir / f"kvoffload-{os.geteuid()}"


def _file_name(spec: RegionSpec) -> str:
    return f"{spec.socket_name}.sock"


@contextlib.contextmanager
def _address(kind: SocketKind, spec: RegionSpec) -> Iterator[str]:
    """The address to bind or connect to, valid inside the block."""
    if kind is SocketKind.ABSTRACT:
        yield f"\0{spec.socket_name}"
        return
    # The path of a socket has at most 107 bytes; by way of the open directory it is short wherever that lies.
    descriptor = os.open(_directory(spec), os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}/{_file_name(spec)}"
    finally:
        os.close(descriptor)


def _bind(connection: socket.socket, kind: SocketKind, spec: RegionSpec, deadline: Deadline) -> Path | None:
    with contextlib.ExitStack() as lock:
        if kind is SocketKind.PATH:
            descriptor = lock.enter_context(_locked_directory(_directory(spec), deadline))
            _sweep(_directory(spec), descriptor)
        with _address(kind, spec) as address:
            connection.bind(address)
        # Listening before the lock is let go: a sweep would take a socket that nobody listens on for a dead one.
        connection.listen(spec.world_size + 16)
    return _directory(spec) / _file_name(spec) if kind is SocketKind.PATH else None


@contextlib.contextmanager
def _locked_directory(directory: Path, deadline: Deadline) -> Iterator[int]:
    """Make the private directory if need be, prove that it is private, and hold its lock; gives its descriptor."""
    directory.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(
                errno.EPERM, "not a private directory of this user (mode 0700)", str(directory)
            )
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if deadline.expired:
                    raise
                time.sleep(_RETRY_S)
        yield descriptor
    finally:
        os.close(descriptor)


def _sweep(directory: Path, descriptor: int) -> None:
    """Remove the sockets that killed processes left behind. The directory is locked and private."""
    for _, path in zip(range(_MAX_STALE_SOCKETS), directory.glob("kvoffload-*.sock"), strict=False):
        with new_socket() as probe:
            probe.setblocking(False)
            try:
                probe.connect(f"/proc/self/fd/{descriptor}/{path.name}")
            except ConnectionRefusedError:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            except OSError:
                continue


def _in_use(kind: SocketKind, spec: RegionSpec) -> str:
    """Says who holds the meeting place: connecting and leaving disturbs nobody."""
    holder = "another process"
    with contextlib.suppress(OSError), new_socket() as probe:
        probe.setblocking(False)
        with _address(kind, spec) as address:
            probe.connect(address)
        peer = peer_of(probe)
        holder = f"pid {peer.pid} of user {peer.uid}"
    return (
        f"host region of engine {spec.label}: the address is in use, {holder} is rank 0 of an engine with this id; "
        f"stop that process or give this engine another engine_id"
    )


# A forked child inherits open sockets. It would keep the name taken, and keep the connections of a dead process
# open, so that nobody would notice its death. Programs that are started (exec) never get them: Python marks
# every descriptor close-on-exec.
_NOT_FOR_CHILDREN: WeakSet[socket.socket] = WeakSet()


def _close_in_child() -> None:
    for connection in list(_NOT_FOR_CHILDREN):
        connection.close()
    _NOT_FOR_CHILDREN.clear()


os.register_at_fork(after_in_child=_close_in_child)
