"""The messages that make a rendezvous: one JSON object a packet, small, flat, and checked before use.

May live here: message types, encoding, decoding, sending and receiving one packet. May not: when which message
is sent (`rendezvous.py`, `joining.py`).

Packets, because the kernel then keeps the borders between messages (SOCK_SEQPACKET) and a descriptor
belongs to exactly one of them.
"""

from __future__ import annotations

import array
import json
import math
import os
import socket
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 1
MAX_PACKET_BYTES = 32 * 1024
MAX_TEXT_CHARACTERS = 2000
"""Worst case 12 bytes a character in ASCII JSON: still below a packet."""


class WireError(Exception):
    """A packet that is not a message of this protocol."""


@dataclass(frozen=True, slots=True)
class Join:
    """A worker wants in, and says what it expects."""

    rank: int
    world_size: int
    total_bytes: int
    fingerprint: str
    remaining_s: float
    """How long this worker is still going to wait: the barrier ends for all when the first one gives up."""


@dataclass(frozen=True, slots=True)
class Attach:
    """A process that is not a worker wants the finished region."""

    world_size: int
    total_bytes: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Region:
    """The memory; its descriptor travels with this packet."""

    total_bytes: int


@dataclass(frozen=True, slots=True)
class Mapped:
    """The sender has mapped the region."""


@dataclass(frozen=True, slots=True)
class Complete:
    """All workers have mapped the region."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The region will not come to be, or not for the receiver."""

    reason: str
    is_size: bool
    """Whether it does not fit (RegionSizeError) or could not be joined (RegionJoinError)."""


Message = Join | Attach | Region | Mapped | Complete | Failed

_FIELDS: dict[type[Message], dict[str, type]] = {
    Join: {"rank": int, "world_size": int, "total_bytes": int, "fingerprint": str, "remaining_s": float},
    Attach: {"world_size": int, "total_bytes": int, "fingerprint": str},
    Region: {"total_bytes": int},
    Mapped: {},
    Complete: {},
    Failed: {"reason": str, "is_size": bool},
}
_TYPES = {kind.__name__: kind for kind in _FIELDS}


def encode(message: Message) -> bytes:
    """The packet of a message; texts are cut to MAX_TEXT_CHARACTERS."""
    values = {
        name: value[:MAX_TEXT_CHARACTERS] if isinstance(value, str) else value
        for name, value in asdict(message).items()
    }
    packet = json.dumps({"kvoffload": VERSION, "kind": type(message).__name__, **values}).encode("ascii")
    assert len(packet) <= MAX_PACKET_BYTES, len(packet)
    return packet


def decode(packet: bytes) -> Message:
    """The message in a packet.

    Raises:
        WireError: anything but a message that this version would have sent.
    """
    try:
        values = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise WireError("no JSON") from error
    if not isinstance(values, dict) or "kvoffload" not in values:
        raise WireError("no message of kvoffload")
    version = values.pop("kvoffload")
    if version != VERSION:
        raise WireError(
            f"protocol version {version!r:.20}, this process speaks {VERSION}; use one version of kvoffload"
        )
    kind = _TYPES.get(str(values.pop("kind", "")))
    if kind is None:
        raise WireError("a message of an unknown kind")
    fields = _FIELDS[kind]
    if values.keys() != fields.keys():
        raise WireError(f"a {kind.__name__} message with other fields")
    for name, expected in fields.items():
        _check_value(name, values[name], expected)
    return kind(**values)


def send(connection: socket.socket, message: Message, descriptor: int | None = None) -> None:
    """Send one message, with a descriptor if given.

    Raises:
        OSError: the peer is gone or does not read.
    """
    packet = encode(message)
    if descriptor is None:
        connection.send(packet)
    else:
        socket.send_fds(connection, [packet], [descriptor])


def receive(connection: socket.socket) -> Message | None:
    """One message, None at the end of the connection. Descriptors that come with it are dropped by the kernel.

    Raises:
        WireError: not a message of this protocol.
        OSError: the connection failed, or nothing arrived in its timeout.
    """
    packet, _, flags, _ = connection.recvmsg(MAX_PACKET_BYTES)
    return _message(packet, flags)


def receive_with_descriptor(connection: socket.socket) -> tuple[Message | None, int | None]:
    """Like `receive`, and hands over the descriptor that came with a Region message; the caller closes it."""
    descriptors: list[int] = []
    try:
        # Not socket.recv_fds: up to Python 3.12 it loses the flags, and the descriptor would be inherited by
        # every program that this process starts.
        packet, ancillary, flags, _ = connection.recvmsg(
            MAX_PACKET_BYTES, socket.CMSG_LEN(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                descriptors += numbers
        message = _message(packet, flags)
        if isinstance(message, Region) != (len(descriptors) == 1) or flags & socket.MSG_CTRUNC:
            raise WireError(f"{len(descriptors)} descriptors or more with {type(message).__name__}")
        return message, descriptors.pop() if descriptors else None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _message(packet: bytes, flags: int) -> Message | None:
    if flags & socket.MSG_TRUNC:
        raise WireError(f"a packet of more than {MAX_PACKET_BYTES} bytes")
    return decode(packet) if packet else None


def _check_value(name: str, value: Any, expected: type) -> None:
    """Exact types (True is no integer here), no negative, infinite or endless value."""
    if type(value) is not expected:
        raise WireError(f"{name} is not of type {expected.__name__}")
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARACTERS:
        raise WireError(f"{name} is longer than {MAX_TEXT_CHARACTERS} characters")
    if isinstance(value, (int, float)) and not (math.isfinite(value) and 0 <= value < 2**63):
        raise WireError(f"{name} is out of range")
