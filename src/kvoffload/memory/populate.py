"""Touches the pages of a region in the background, so that the first stores need not wait for the kernel.

May live here: the thread and what it asks the kernel. May not: anything that writes to the region.

Only MADV_POPULATE_WRITE is used: it makes pages present without changing a byte, so other processes may store
meanwhile. Reading a byte and writing it back would lose what a peer writes between the two; where the kernel lacks the call
(before 5.14) pages are therefore left to be touched on first use.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvoffload.config.units import format_bytes

logger = logging.getLogger(__name__)

PIECE_BYTES = 64 * 1024**2
_PAUSE_S = 0.001
_STOP_TIMEOUT_S = 5.0
_MADV_POPULATE_WRITE = 23
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS)
_AGAIN = (errno.EINTR, errno.EAGAIN)
_MAX_TRIES = 100


def populate_write(address: int, size_bytes: int) -> int:
    """Make pages present and writable without changing them; returns 0 or an errno.

    Through ctypes because `mmap.madvise` keeps the interpreter lock: every other thread would stand still for
    about 0.1 s a piece.
    """
    if _LIBC.madvise(address, size_bytes, _MADV_POPULATE_WRITE) == 0:
        return 0
    return ctypes.get_errno()


class BackgroundPopulation:
    """A daemon thread that goes once through a region.

    Args:
        array: The region, uint8, one dimension. The thread keeps it mapped while it runs.
        label: Name of the engine, for the log.
        populate: What is asked of the kernel; replaced in tests.
        piece_bytes: How much at once; a multiple of the page size.
    """

    def __init__(
        self,
        array: npt.NDArray[np.uint8],
        label: str,
        populate: Callable[[int, int], int] = populate_write,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._label = label
        self._populate = populate
        self._piece_bytes = piece_bytes
        self._stop = threading.Event()
        self._done_bytes = 0
        # Daemon: a process that ends shall not wait for it. The array is an argument, not a field: it goes
        # when the thread ends.
        self._thread = threading.Thread(
            target=self._run, args=(array,), name="kvoffload-populate", daemon=True
        )

    @property
    def populated_bytes(self) -> int:
        """How far it got."""
        return self._done_bytes

    def start(self) -> None:
        """Begin. A thread that cannot be started is a warning: pages are then touched on first use."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._give_up(str(error))

    def stop(self) -> None:
        """End after the current piece, and wait for that. Idempotent."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self, array: npt.NDArray[np.uint8]) -> None:
        total_bytes = array.nbytes
        for first_byte in range(0, total_bytes, self._piece_bytes):
            if self._stop.is_set():
                return
            size_bytes = min(self._piece_bytes, total_bytes - first_byte)
            error = self._populate_piece(array.ctypes.data + first_byte, size_bytes)
            if error:
                self._give_up(_explain(error))
                return
            self._done_bytes += size_bytes
            # Mapping memory elsewhere in this process waits for the kernel's lock that populating holds.
            self._stop.wait(_PAUSE_S)
        logger.info("host region of engine %s: populated %s", self._label, format_bytes(total_bytes))

    def _populate_piece(self, address: int, size_bytes: int) -> int:
        error = 0
        for _ in range(_MAX_TRIES):
            error = self._populate(address, size_bytes)
            if error not in _AGAIN or self._stop.is_set():
                break
            self._stop.wait(_PAUSE_S)
        return error

    def _give_up(self, why: str) -> None:
        logger.warning(
            "host region of engine %s: populating stopped after %s: %s; the remaining pages are touched on first use, "
            "which makes the first stores slower",
            self._label,
            format_bytes(self._done_bytes),
            why,
        )


def _explain(error: int) -> str:
    text = os.strerror(error)
    if error in _UNSUPPORTED:
        return f"this kernel cannot do it (MADV_POPULATE_WRITE needs Linux 5.14: {text})"
    return f"the kernel found no memory for it ({text}; is the machine, its control group or /dev/shm full?)"


def _load_libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.madvise.restype = ctypes.c_int
    return libc


_LIBC = _load_libc()
