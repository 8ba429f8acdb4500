"""The sockets to a publisher of KV events: subscribe, notice what is lost, ask for it again. Needs pyzmq.

Frames of a message: topic, number (8 bytes, big-endian), payload. The replay socket takes a number and sends all that it still
has from there on, then the number -1.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from kvoffload.connectors.events.sequence import Restart, Sequence
from kvoffload.errors import ConfigError

_ENDPOINT = re.compile(r"(tcp://[^\s:/]+|tcp://\[[0-9A-Fa-f:.%\w]+\]):\d{1,5}|ipc://\S+")
_QUEUE_MESSAGES = 100_000
_MAX_MESSAGE_BYTES = 64 << 20
_MAX_AT_ONCE = 1000
_REPLAY_TIMEOUT_S = 5.0
_END = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message."""

    payload: bytes
    follows_gap: bool
    """Whether messages are missing before it, or another engine has begun."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where events come from."""

    endpoint: str
    """tcp://HOST:PORT or ipc://PATH."""
    is_ours: bool = False
    """We listen there and the engine connects, which is what vLLM does with an endpoint without `*`."""
    replay: str | None = None
    """The engine's replay socket."""

    def __post_init__(self) -> None:
        _check(self.endpoint, "--events", may_be_any=self.is_ours)
        if self.replay is not None:
            _check(self.replay, "--replay", may_be_any=False)


class Subscription:
    """Subscribed until `close`. Not for several threads.

    Args:
        source: Where from.
        tell: Takes a line that the user should see.

    Raises:
        ConfigError: ZeroMQ does not take the endpoint.
    """

    def __init__(self, source: Source, tell: Callable[[str], None]) -> None:
        self.lost = 0
        """Messages that never came, not even when asked for again."""
        self.malformed = 0
        """Messages that are none of a publisher of KV events."""
        self.was_connected = False
        self._source = source
        self._tell = tell
        self._sequence = Sequence()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        try:
            self._open()
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"--events {source.endpoint}: {error.strerror}") from error

    def _open(self) -> None:
        self._socket.set_hwm(_QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        if self._source.is_ours:
            self._socket.bind(self._source.endpoint)
        else:
            self._socket.connect(self._source.endpoint)

    def receive(self, timeout_ms: int) -> list[Delivery]:
        """What has come, in order; waits for it, but not longer than this (and a little more where something is lost)."""
        is_there = self._socket.poll(timeout_ms)
        self._watch()
        if not is_there:
            return []
        found: list[Delivery] = []
        while len(found) < _MAX_AT_ONCE:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            found += self._deliveries(frames)
        return found

    def close(self) -> None:
        """Leave nothing behind. Idempotent."""
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def _watch(self) -> None:
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.was_connected = True
                self._tell(f"connected with {self._source.endpoint}")
            else:
                self._tell(f"{self._source.endpoint} is gone; waiting for it to come back")

    def _deliveries(self, frames: list[bytes]) -> Iterator[Delivery]:
        if len(frames) != 3 or len(frames[1]) != 8:
            self.malformed += 1
            return
        missing = self._sequence.take(int.from_bytes(frames[1], "big"))
        if isinstance(missing, Restart):
            self._tell("the engine has begun anew")
            yield Delivery(frames[2], follows_gap=True)
            return
        found = self._replayed(missing) if missing and self._source.replay is not None else {}
        self._count_lost(missing, found)
        last = missing.start - 1
        # Over what was found, not over what is missing: a number that makes no sense would be counted up to.
        for number in sorted(found):
            yield Delivery(found[number], follows_gap=number > last + 1)
            last = number
        yield Delivery(frames[2], follows_gap=missing.stop > last + 1)

    def _count_lost(self, missing: range, found: dict[int, bytes]) -> None:
        lost = missing.stop - missing.start - len(found)
        if lost and not self.lost:
            self._tell(
                f"{lost} messages are lost: their blocks are missing in the trace (all are counted at the end)"
            )
        self.lost += lost

    def _replayed(self, missing: range) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        end_s = time.monotonic() + _REPLAY_TIMEOUT_S
        with self._context.socket(zmq.DEALER) as socket, contextlib.suppress(zmq.ZMQError):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.IPV6, 1)
            socket.connect(self._source.replay or "")
            socket.send_multipart((b"", missing.start.to_bytes(8, "big")))
            while (left_s := end_s - time.monotonic()) > 0 and socket.poll(int(left_s * 1000)):
                frames = socket.recv_multipart()
                if len(frames) < 3 or frames[-2] == _END:
                    break
                number = int.from_bytes(frames[-2], "big")
                if number in missing:
                    found[number] = frames[-1]
        return found


def _check(endpoint: str, option: str, *, may_be_any: bool) -> None:
    if "*" in endpoint and not may_be_any:
        raise ConfigError(
            f"{option} {endpoint}: '*' is where an engine listens; give a host, such as {endpoint.replace('*', '127.0.0.1')}"
        )
    if _ENDPOINT.fullmatch(endpoint) is None:
        raise ConfigError(
            f"{option}: {endpoint[:200]!r} is not an endpoint; give tcp://HOST:PORT or ipc://PATH"
        )
