"""Who writes: an identity that other processes and hosts can ask "is it still alive?", and the names of its files."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TEMP_PATTERN = re.compile(r"tmp-([0-9a-f]{16})-([0-9]{1,10})-([0-9]{1,20})-([0-9]{1,10})-[0-9]{1,20}\.kvtmp")
_STATE_FIELD, _START_TIME_FIELD = 3, 22
_HOST_CHARS = 16
_instances = itertools.count(1)


@dataclass(frozen=True, slots=True)
class WriterId:
    """One tier of one process, told apart from every other one of any host and time.

    `host` stands for a boot of a machine and a process-number namespace (a container): process numbers mean
    something only inside of it. `started` tells a process from a later one with the same number.
    """

    host: str
    pid: int
    started: int
    instance: int
    """One process may have several tiers on the same directory."""

    @property
    def text(self) -> str:
        """As one word."""
        return f"{self.host}-{self.pid}-{self.started}-{self.instance}"

    def temp_name(self, number: int) -> str:
        """The name of a file that is being written."""
        return f"tmp-{self.text}-{number}.kvtmp"


def writer_of_temp(name: str) -> WriterId | None:
    """Who writes the temporary file of this name; None if it is no such file."""
    match = _TEMP_PATTERN.fullmatch(name)
    if match is None:
        return None
    host, *numbers = match.groups()
    return WriterId(host, *map(int, numbers))


def writer_of_text(text: str) -> WriterId | None:
    """The inverse of `WriterId.text`."""
    return writer_of_temp(f"tmp-{text}-0.kvtmp")


def new_writer() -> WriterId:
    """An identity for a new tier of this process."""
    pid = os.getpid()
    found = _process(pid)
    return WriterId(_this_host(), pid, found.started if found else 0, next(_instances))


def is_alive(writer: WriterId, here: WriterId) -> bool | None:
    """Whether a process lives, as seen from `here`; None if that cannot be said: another host, or another boot."""
    if writer.host != here.host:
        return None
    try:
        os.kill(writer.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it lives, and is another user's
    found = _process(writer.pid)
    if found is None:
        return True
    return not found.is_zombie and writer.started in (0, found.started)


def _this_host() -> str:
    parts = [os.uname().nodename]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with suppress(OSError):
        namespace = Path("/proc/self/ns/pid").stat()
        parts.append(f"{namespace.st_dev}:{namespace.st_ino}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_HOST_CHARS]


@dataclass(frozen=True, slots=True)
class _Process:
    started: int
    """Ticks since the boot."""
    is_zombie: bool
    """It has ended, and its parent has not noticed."""


def _process(pid: int) -> _Process | None:
    """What the system says about a process; None if it says nothing (it is gone, or hidden from us)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses and may itself contain blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return _Process(started=int(fields[_START_TIME_FIELD - _STATE_FIELD]), is_zombie=fields[0] in ("Z", "X"))
