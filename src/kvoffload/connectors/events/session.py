"""One recording from its beginning to its end: messages in, a file out. Needs pyzmq and msgspec."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvoffload.connectors.events.runs import GAP_S
from kvoffload.connectors.events.subscription import Delivery, Source, Subscription
from kvoffload.connectors.events.trace import EventTrace
from kvoffload.connectors.events.wire import decode_batch
from kvoffload.errors import KvError

_POLL_MS = 200


class NothingRecordedError(KvError):
    """There is no engine, or nothing came from it."""


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What is asked for."""

    source: Source
    path: Path
    duration_s: float | None
    """None: until it is stopped."""
    max_bytes: int
    wait_s: float
    """For an engine to answer; and for its first event, before the user is told that none comes."""


class Session:
    """Records until it is stopped, the time is over or the file is full.

    Args:
        options: What is asked for.
        is_stopped: Asked some times a second.
        tell: Takes a line that the user should see.
        show: Called some times a second, to show how far it is.
    """

    def __init__(
        self,
        options: RecordOptions,
        is_stopped: Callable[[], bool],
        tell: Callable[[str], None],
        show: Callable[[Session], None],
    ) -> None:
        self.lost = 0
        """Messages that never came."""
        self.malformed = 0
        """Messages that were not understood."""
        self._undecoded = 0
        self._options = options
        self._is_stopped = is_stopped
        self._tell = tell
        self._show = show
        self._start_s = self._heard_s = time.monotonic()
        self._is_silence_told = False
        self.trace = EventTrace(options.path, options.max_bytes)

    def run(self) -> None:
        """Record.

        Raises:
            NothingRecordedError: nobody answers, or nothing came that belongs into a trace; there is no file then.
            TraceFileError: the file can be written no further.
            ConfigError: ZeroMQ does not take the endpoint.
        """
        try:
            subscription = Subscription(self._options.source, self._tell)
            try:
                while not self._is_over():
                    self._turn(subscription)
            finally:
                subscription.close()
        finally:
            self.trace.close()
        if not self.trace.counts.runs:
            raise NothingRecordedError(self._why_nothing())

    def _is_over(self) -> bool:
        duration_s = self._options.duration_s
        is_late = duration_s is not None and time.monotonic() - self._start_s >= duration_s
        return is_late or self.trace.is_full or self._is_stopped()

    def _turn(self, subscription: Subscription) -> None:
        deliveries = subscription.receive(_POLL_MS)
        for delivery in deliveries:
            self._take(delivery)
        self.lost, self.malformed = subscription.lost, subscription.malformed + self._undecoded
        if deliveries:
            self._heard_s = time.monotonic()
        else:
            self._be_patient(subscription)
        self._show(self)

    def _take(self, delivery: Delivery) -> None:
        if delivery.follows_gap:
            self.trace.close_runs()
        batch = decode_batch(delivery.payload)
        if batch is None:
            self._undecoded += 1
        else:
            self.trace.add(batch)

    def _be_patient(self, subscription: Subscription) -> None:
        silent_s = time.monotonic() - self._heard_s
        if silent_s > GAP_S:
            self.trace.close_runs()
        if silent_s <= self._options.wait_s:
            return
        if not subscription.was_connected:
            raise NothingRecordedError(self._why_nobody())
        if self._heard_s == self._start_s and not self._is_silence_told:
            self._is_silence_told = True
            self._tell(
                f"connected, but no event for {self._options.wait_s:g} s: does anybody send prompts, and are prefix caching "
                "and enable_kv_cache_events on? Still listening"
            )

    def _why_nobody(self) -> str:
        source, waited = self._options.source, f"within {self._options.wait_s:g} s"
        if source.is_ours:
            return f"no engine has connected to {source.endpoint} {waited}; start it with this endpoint in --kv-events-config"
        return (
            f"nobody publishes at {source.endpoint} {waited}; start the engine with --kv-events-config "
            '\'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}\' '
            "(with a host instead of '*', vLLM connects there instead of listening: then give --listen)"
        )

    def _why_nothing(self) -> str:
        trace = self.trace
        left_out = ", ".join(
            f"{count} blocks: {reason}" for reason, count in trace.selection.left_out.items()
        )
        if trace.is_full:
            return (
                f"--max-bytes {self._options.max_bytes} is too small for a single record; nothing is written"
            )
        if left_out:
            return f"nothing is written: only blocks that do not belong into a trace came ({left_out})"
        if self.malformed or trace.counts.unreadable:
            return f"nothing is written: what comes from {self._options.source.endpoint} is not understood; are these vLLM's KV events?"
        return (
            f"nothing is written: no blocks were stored while {self._options.source.endpoint} was listened to"
        )
