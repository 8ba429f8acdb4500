"""A few daemon threads for requests that may be given up: one that hangs must not keep the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class DaemonPool:
    """Runs functions in at most `size` threads, which are made when they are first needed.

    Args:
        size: How many threads.
        name: For the threads.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0
        self._is_stopped = False

    def start(self, function: Callable[[], T]) -> Future[T] | None:
        """Run a function if there is a thread for it at once; None if all are busy, or after `stop`."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_stopped or self._busy >= self._size:
                return None
            self._busy += 1
            is_new = self._busy > self._threads
            self._threads += is_new
            # Under the lock: behind what `stop` puts there, nobody would ever take it.
            self._work.put(lambda: self._carry_out(function, future))
        if is_new:
            threading.Thread(target=self._run, name=f"kvoffload-{self._name}-get", daemon=True).start()
        return future

    def stop(self) -> None:
        """End the threads when they have nothing to do."""
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
            for _ in range(self._threads):
                self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _carry_out(self, function: Callable[[], T], future: Future[T]) -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._set_free()
            future.set_exception(error)
        else:
            self._set_free()
            future.set_result(result)

    def _set_free(self) -> None:
        with self._lock:
            self._busy -= 1
