"""Whether a file that cannot be read is to be given up, so that the next store replaces it.

One bad file among good ones heals by being written anew. A disk that fails as a whole must not have everything that it
holds written anew for ever: it is no evidence against a file if nothing can be read, and there is a bound for the rest.
"""

from __future__ import annotations

import errno
import threading

from kvoffload.clock import Clock

OF_ONE_FILE = frozenset({errno.EIO, errno.EACCES})
"""What can be the matter with a single file."""
_MAX_GIVEN_UP = 100
_WINDOW_S = 3600.0


class Unreadable:
    """Judges. Safe for threads.

    Args:
        clock: For how many files are given up in an hour.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._works = False
        """Whether the last read that ended was one that worked."""
        self._given_up = 0
        self._since_s = clock.now_s()

    def read_well(self) -> None:
        """A file was read."""
        self._works = True

    def is_given_up(self) -> bool:
        """A file could not be read; returns whether it is the file, and not the disk, and one may be given up now."""
        with self._lock:
            works, self._works = self._works, False
            now_s = self._clock.now_s()
            if now_s - self._since_s >= _WINDOW_S:
                self._since_s, self._given_up = now_s, 0
            if not works or self._given_up >= _MAX_GIVEN_UP:
                return False
            self._given_up += 1
            return True
