"""What a check says: plain data, and the guard that turns whatever goes wrong in a check into its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from kvoffload.errors import KvError


class Verdict(Enum):
    """How grave it is. In this order."""

    OK = "ok"
    WARN = "warn"
    """An engine starts, but something is slower, smaller or less safe than it could be."""
    FAIL = "fail"
    """It will not start, or not do what it shall."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table."""

    name: str
    found: str
    verdict: Verdict = Verdict.OK
    mend: str = ""
    """What to do; empty if nothing needs to be done."""

    @property
    def is_failed(self) -> bool:
        """Whether an engine must not be started like this."""
        return self.verdict is Verdict.FAIL


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name, found)


def warn(name: str, found: str, mend: str) -> Check:
    """It works, but."""
    return Check(name, found, Verdict.WARN, mend)


def fail(name: str, found: str, mend: str) -> Check:
    """It does not work."""
    return Check(name, found, Verdict.FAIL, mend)


def guarded(name: str, ask: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The answers of a check; what the system refuses to say is a warning and not the end."""
    try:
        yield from ask()
    except (OSError, KvError, ValueError) as error:
        yield warn(name, f"could not be found out: {error}", "look at it by hand")
