"""How many tokens fit where, and what the next GiB is worth for recorded traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvoffload.config.units import parse_bytes
from kvoffload.errors import ConfigError
from kvoffload.sim.planning.model import ModelKv
from kvoffload.sim.replay.stack import lru_curve
from kvoffload.sim.traces.base import Trace

_GIB = 1024**3
_STEP_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a trace says of prompts, without their contents."""

    requests: int
    input_tokens: int
    span_s: float

    @property
    def mean_tokens(self) -> int:
        """Of a prompt."""
        return round(self.input_tokens / self.requests) if self.requests else 0


@dataclass(frozen=True, slots=True)
class Place:
    """One place for KV."""

    name: str
    size_bytes: int
    tokens: int
    """That fit, if every layer is stored for each of them."""
    prompts: float | None
    """Of the mean length of the trace."""
    hit_ratio: float | None
    """Prefix hits by tokens with LRU, if this place has all of its room for this traffic."""
    next_gib_tokens: float | None
    """Hit tokens that one more GiB would add over the whole trace: the slope over the next 5 %, at least one GiB."""


def parse_budget(text: str) -> dict[str, int]:
    """`host=64GiB,fs=1TiB` → bytes by name. Raises ConfigError."""
    budget = {}
    for entry in text.split(","):
        name, sign, size = entry.partition("=")
        if not sign or not name.strip() or name.strip() in budget:
            raise ConfigError(f"--budget: {entry!r} is not valid; give NAME=SIZE, each name once")
        budget[name.strip()] = parse_bytes(size.strip(), f"--budget: {name.strip()}")
    return budget


def traffic_of(trace: Trace) -> Traffic:
    """Read it once."""
    requests = tokens = 0
    last_s = 0.0
    for request in trace:
        requests += 1
        tokens += request.input_tokens
        last_s = request.arrival_s
    return Traffic(requests, tokens, last_s)


def places_of(
    model: ModelKv, budget: Mapping[str, int], trace: Trace | None, traffic: Traffic | None
) -> list[Place]:
    """What each place holds and is worth. A trace without blocks says nothing of hits."""
    sizes = list(budget.values())
    knows = trace is not None and trace.knows_blocks and model.bytes_per_token > 0
    slopes = _slopes(trace, sizes, model.bytes_per_token) if trace is not None and knows else None
    places = []
    for index, (name, size) in enumerate(budget.items()):
        tokens = size // model.bytes_per_token if model.bytes_per_token else 0
        ratio, slope = slopes[index] if slopes else (None, None)
        prompts = tokens / traffic.mean_tokens if traffic and traffic.mean_tokens else None
        worth = slope * traffic.input_tokens if slope is not None and traffic else None
        places.append(Place(name, size, tokens, prompts, ratio, worth))
    return places


def _slopes(trace: Trace, sizes: Sequence[int], bytes_per_token: int) -> list[tuple[float, float]]:
    """(hit ratio, what a GiB more adds to it) at each size."""
    chunk_bytes = trace.block_tokens * bytes_per_token
    larger = [size + max(_GIB, chunk_bytes, int(size * _STEP_SHARE)) for size in sizes]
    curve = lru_curve(trace, trace.block_tokens, [size // chunk_bytes for size in (*sizes, *larger)])
    here, there = (
        curve.prefix_hit_ratio[: len(sizes)],
        curve.prefix_hit_ratio[len(sizes) :],
    )
    return [
        (ratio, (more - ratio) * _GIB / (bigger - size))
        for ratio, more, size, bigger in zip(here, there, sizes, larger, strict=True)
    ]
