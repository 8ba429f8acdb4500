"""How requests are repeated: jittered pauses, one common pause when the store asks for fewer, and when to ask twice."""

from __future__ import annotations

import random
import threading
from collections import deque

from kvoffload.clock import Clock

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_REMEMBERED = 64
_FEW = 8


class Pacer:
    """A pause that all requests share, after the store has said that they are too many.

    It doubles with every such answer and is forgotten after a success. Safe for threads.

    Args:
        clock: The time.
        rng: For the jitter.
    """

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._lock = threading.Lock()
        self._steps = 0
        self._until_s = float("-inf")

    def wait_s(self) -> float:
        """How long a request must wait before it is sent; 0 for not at all."""
        return max(0.0, self._until_s - self._clock.now_s())

    def throttled(self) -> None:
        """The store asked for fewer requests. Several answers to requests that were sent together count once."""
        with self._lock:
            now_s = self._clock.now_s()
            if now_s >= self._until_s:
                self._until_s = now_s + self.pause_s(self._steps)
                self._steps += 1

    def succeeded(self) -> None:
        """A request was answered."""
        # Without the lock: nearly every request comes here, and finds nothing to do.
        if self._steps and self._clock.now_s() >= self._until_s:
            with self._lock:
                self._steps = 0

    def pause_s(self, step: int) -> float:
        """A jittered pause before repetition number `step` (from 0): half to all of 0.1 s · 2^step, at most 5 s."""
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(step, 16))
        return longest * (0.5 + 0.5 * self._rng.random())


class ReadTimes:
    """How long reads took lately, for the question when one is late. Safe for threads.

    Args:
        least_s: A read is never late before this time.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._times: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, seconds: float) -> None:
        """One read was answered."""
        self._times.append(seconds)

    def late_after_s(self) -> float:
        """After which time a read is late: longer than `least_s`, and than twice what nine of ten took."""
        times = sorted(self._times.copy())
        if len(times) < _FEW:
            return self._least_s
        return max(self._least_s, 2 * times[len(times) * 9 // 10])
