"""Requests with a deadline: repeated after a jittered pause, held back while the store is throttling, hedged, counted."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TypeVar

from kvoffload.clock import Clock
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.obj.client import ObjectClient, ObjectInfo
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.pace import Pacer, ReadTimes
from kvoffload.tiers.obj.pool import DaemonPool
from kvoffload.tiers.obj.trouble import PASSING, ObjectError, Trouble

T = TypeVar("T")

_DELETED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Bounds of requests."""

    deadline_s: float
    """With all repetitions."""
    request_timeout_s: float
    """Of the client: after it a request has ended."""
    max_retries: int
    hedge_after_s: float
    multipart_bytes: int
    threads: int

    @classmethod
    def of(cls, config: ObjTierConfig) -> CallLimits:
        """Those that the options say."""
        return cls(
            deadline_s=config.call_deadline_s,
            request_timeout_s=config.request_timeout_s,
            max_retries=config.call_retries,
            hedge_after_s=config.hedge_after_s,
            multipart_bytes=config.multipart_bytes,
            threads=config.threads,
        )


class Caller:
    """Makes requests. Safe for threads; every verb blocks, within the deadline, and raises ObjectError.

    Args:
        client: The store.
        limits: Bounds.
        clock: The time.
        counters: Requests, repetitions and troubles by kind.
        name: For threads.
    """

    def __init__(
        self, client: ObjectClient, limits: CallLimits, clock: Clock, counters: Counters, name: str
    ) -> None:
        self._client = client
        self._limits = limits
        self._clock = clock
        self._counters = counters
        self._pacer = Pacer(clock, random.Random())  # noqa: S311 - jitter
        self._times = ReadTimes(limits.hedge_after_s)
        # Twice: every read may have a late one beside it.
        self._pool = DaemonPool(2 * limits.threads, name)
        self._stopped = threading.Event()

    def put(self, name: str, parts: Sequence[memoryview], *, create: bool) -> bool:
        """Write an object; False if `create` and it is there already."""
        size = sum(len(part) for part in parts)
        try:
            if size > self._limits.multipart_bytes:
                return self._put_large(name, parts, create=create)
            self._ask("put", lambda: self._client.put(name, parts, create=create))
        except ObjectError as error:
            if error.trouble is not Trouble.EXISTS:
                raise
            return False
        self._counters.add("bytes_put", size)
        return True

    def _put_large(self, name: str, parts: Sequence[memoryview], *, create: bool) -> bool:
        # An upload in parts has no condition: it is asked before. Two who are as fast write the same bytes.
        if create and self.exists(name):
            return False
        self._ask("put_multipart", lambda: self._client.put_multipart(name, parts))
        self._counters.add("bytes_put", sum(len(part) for part in parts))
        return True

    def get(self, name: str, start: int, length: int) -> memoryview:
        """Bytes of an object; the first of two answers if one is late."""
        found = self._ask("get", lambda: self._hedged(lambda: self._client.get(name, start, length)))
        self._counters.add("bytes_got", len(found))
        return found

    def get_whole(self, name: str) -> memoryview:
        """All bytes of an object."""
        found = self._ask("get", lambda: self._hedged(lambda: self._client.get_whole(name)))
        self._counters.add("bytes_got", len(found))
        return found

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""
        try:
            self._ask("head", lambda: self._client.info(name))
        except ObjectError as error:
            if error.trouble is not Trouble.MISSING:
                raise
            return False
        return True

    def info(self, name: str) -> ObjectInfo:
        """What the store says about an object."""
        return self._ask("head", lambda: self._client.info(name))

    def list(self, prefix: str, after: str | None = None) -> list[ObjectInfo]:
        """What is below a prefix."""
        return self._ask("list", lambda: list(self._client.list(prefix, after)))

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error."""
        for first in range(0, len(names), _DELETED_AT_ONCE):
            part = names[first : first + _DELETED_AT_ONCE]
            self._ask("delete", lambda part=part: self._client.delete(part))  # type: ignore[misc]

    def stop(self) -> None:
        """Begin no request any more; who waits for a repetition gives up."""
        self._stopped.set()
        self._pool.stop()

    def _ask(self, verb: str, request: Callable[[], T]) -> T:
        # What is begun later would not end in time.
        give_up_s = self._clock.now_s() + self._limits.deadline_s - self._limits.request_timeout_s
        for attempt in range(self._limits.max_retries + 1):
            if self._stopped.is_set():
                raise ObjectError(Trouble.UNREACHABLE, "given up")
            self._wait(self._pacer.wait_s(), give_up_s, Trouble.THROTTLED)
            self._counters.add(f"requests_{verb}")
            try:
                answer = request()
            except ObjectError as error:
                self._note(verb, error)
                if error.trouble not in PASSING or attempt == self._limits.max_retries:
                    raise
                self._wait(self._pacer.pause_s(attempt), give_up_s, error.trouble)
                self._counters.add("retries")
            else:
                self._pacer.succeeded()
                return answer
        raise AssertionError("the last attempt returns or raises")

    def _note(self, verb: str, error: ObjectError) -> None:
        if error.trouble is Trouble.THROTTLED:
            self._pacer.throttled()
        if error.trouble in (Trouble.MISSING, Trouble.EXISTS):
            self._pacer.succeeded()
        self._counters.add(f"{verb}_{error.trouble.value}")

    def _wait(self, seconds: float, give_up_s: float, why: Trouble) -> None:
        if seconds <= 0:
            return
        if self._clock.now_s() + seconds >= give_up_s or self._stopped.wait(seconds):
            raise ObjectError(why, "given up")

    def _hedged(self, request: Callable[[], memoryview]) -> memoryview:
        if not self._limits.hedge_after_s:
            return request()
        began_s = self._clock.now_s()
        first = self._pool.start(request)
        if first is None:
            return request()
        wait([first], timeout=self._times.late_after_s())
        answer = first.result() if first.done() else self._first_of_two(first, request)
        self._times.add(self._clock.now_s() - began_s)
        return answer

    def _first_of_two(self, first: Future[memoryview], request: Callable[[], memoryview]) -> memoryview:
        """The answer that comes first; of two errors the later one. Requests end by the client's own time-out."""
        second = self._pool.start(request)
        if second is None:
            return first.result()
        self._counters.add("hedged_reads")
        self._counters.add("requests_get")
        ended, _ = wait([first, second], return_when=FIRST_COMPLETED)
        winner = next((future for future in ended if future.exception() is None), None)
        if winner is not None:
            self._counters.add("hedges_won", int(winner is second))
            return winner.result()
        other = second if first in ended else first
        return other.result()
