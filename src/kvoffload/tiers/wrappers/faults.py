"""What can go wrong with a tier, how often or exactly when, and how a run of faults is written down for a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome, Verb


class Fault(Enum):
    """One thing that goes wrong, mostly with one chunk of a job."""

    REFUSE = "refuse"
    """The whole job is refused."""
    FAIL = "fail"
    """FAILED; the tier inside never hears of it."""
    REJECT = "reject"
    """REJECTED; the tier inside never hears of it."""
    MISS = "miss"
    """MISSING, though it may be there."""
    TORN_STORE = "torn_store"
    """The tier inside gets the first half of the bytes; the report says DONE."""
    FLIP_STORED = "flip_stored"
    """One bit of what is stored changes: after a store, before a load. The tier inside must find it."""
    FLIP_LOADED = "flip_loaded"
    """One bit changes after the tier inside has verified a load: who is above must find it."""
    VANISH = "vanish"
    """What is stored disappears: after a store, before a load."""


POSSIBLE: Mapping[Verb, frozenset[Fault]] = {
    Verb.STORE: frozenset(
        {Fault.REFUSE, Fault.FAIL, Fault.REJECT, Fault.TORN_STORE, Fault.FLIP_STORED, Fault.VANISH}
    ),
    Verb.LOAD: frozenset(
        {Fault.REFUSE, Fault.FAIL, Fault.MISS, Fault.FLIP_STORED, Fault.FLIP_LOADED, Fault.VANISH}
    ),
    Verb.DELETE: frozenset({Fault.REFUSE, Fault.FAIL}),
}
"""Which faults a verb can meet."""

ANSWERS: Mapping[Fault, Outcome] = {
    Fault.FAIL: Outcome.FAILED,
    Fault.REJECT: Outcome.REJECTED,
    Fault.MISS: Outcome.MISSING,
}
"""Faults that are an answer in place of the tier's own."""

ON_MEDIUM = frozenset({Fault.FLIP_STORED, Fault.VANISH})
"""Faults behind the back of the tier inside."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault at one place of a run. Its `repr` is Python."""

    submission: int
    """Number of the `submit`, refused ones included, from 0."""
    position: int
    """Of the chunk in the job; 0 for REFUSE."""
    fault: Fault
    bit: int = 0
    """Which bit a flip flips, modulo the size of the chunk in bits."""

    def __repr__(self) -> str:
        return f"PlannedFault({self.submission}, {self.position}, {self.fault}, {self.bit})"


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """How often (`rates`, drawn with `seed`) and exactly when (`schedule`). Raises ConfigError if that is not valid."""

    seed: int = 0
    rates: Mapping[Verb, Mapping[Fault, float]] = field(default_factory=dict)
    """Probability per chunk, of REFUSE per job; those of a verb's chunks add up to 1 at most."""
    schedule: tuple[PlannedFault, ...] = ()
    """Comes first: nothing is drawn for these places."""

    def __post_init__(self) -> None:
        for verb, rates in self.rates.items():
            wrong = rates.keys() - POSSIBLE[verb]
            if wrong:
                raise ConfigError(
                    f"faults: a {verb.value} cannot meet {', '.join(sorted(f.value for f in wrong))}"
                )
            together = sum(rate for fault, rate in rates.items() if fault is not Fault.REFUSE)
            if min(rates.values(), default=0) < 0 or max(together, rates.get(Fault.REFUSE, 0.0)) > 1:
                raise ConfigError(
                    f"faults: rates of {verb.value} must be at least 0 and at most 1 together: {rates}"
                )


class Medium(Protocol):
    """Where a tier keeps its bytes, reached behind its back."""

    def flip_bit(self, key: OffloadKey, bit: int) -> bool:
        """Change one bit of what is stored (bit number modulo its size); False if it is not there."""
        ...

    def remove(self, key: OffloadKey) -> bool:
        """Make it disappear; False if it was not there."""
        ...
