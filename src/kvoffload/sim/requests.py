"""What the engine model knows of a request and of a step. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kvoffload.manager.wishes import USUAL_STAY, Stay
from kvoffload.messages import CopyJob, JobOutcome, StepMessage
from kvoffload.types import RequestId


class Status(Enum):
    """Where a request is."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    PREEMPTED = "preempted"
    DONE = "done"


@dataclass(eq=False)
class Request:
    """A request; `tokens` holds the answer too, of which the scheduler knows the first `known` tokens only."""

    req_id: RequestId
    tokens: tuple[int, ...]
    prompt: int
    known: int
    hashes: list[bytes] = field(repr=False)
    tables: list[list[int]]
    status: Status = Status.WAITING
    computed: int = 0
    sampling: int = 0
    """Tokens that running steps will sample."""
    in_flight: int = 0
    """Tokens of steps whose results are not known yet."""
    life: int = 0
    """Number of times it was preempted."""
    pure: bool = True
    """No token of it was computed with older weights."""
    load_done: bool = False
    load_failed: bool = False


@dataclass(frozen=True)
class Wishes:
    """What a request may ask of the cache."""

    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None
    skip_load: bool = False
    stay: Stay = USUAL_STAY


class Run(NamedTuple):
    """The part that a request has in a step."""

    request: Request
    first: int
    last: int
    """Behind its last token."""
    samples: bool
    life: int
    tables: list[list[int]]


@dataclass(frozen=True)
class StepOptions:
    """How one step shall be."""

    budget: int
    """Tokens to be scheduled at most."""
    accept: int = 99
    """Of each answer of the manager the engine takes at most this many multiples of the alignment."""
    vanish: bool = False
    """The last chunk of each answer vanishes before it is loaded."""
    scratch: bool = False
    """The step also overwrites a free block that belongs to no request (a copy on write)."""


@dataclass
class Step:
    """One scheduled step, and later its results."""

    message: StepMessage
    runs: list[Run]
    scratch: list[int] = field(default_factory=list)
    polled: list[list[tuple[CopyJob, JobOutcome]]] = field(default_factory=list)
