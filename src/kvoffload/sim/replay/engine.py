"""Replays a trace against tiers under virtual time: events, a prefill queue, loads and stores that take their time.

The model: one queue of prefills (`prefill_tokens_per_s`), a prefix that is found in the tiers is loaded before and
need not be prefilled, what was prefilled is stored in every tier. Decoding is not modelled, and the device keeps nothing
between requests: so the hits are those of the tiers alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.prepared import PreparedStore
from kvoffload.policies.admission import SizeLimit
from kvoffload.sim.replay.options import ReplayOptions
from kvoffload.sim.replay.shelf import Shelf
from kvoffload.sim.traces.base import TraceRequest
from kvoffload.types import SlotId


@dataclass(slots=True)
class Outcome:
    """What a replay found."""

    shelves: list[Shelf]
    requests: int = 0
    input_tokens: int = 0
    hit_tokens: int = 0
    accesses: int = 0
    """Blocks of prompts."""
    last_arrival_s: float = 0.0
    ttft_s: list[float] = field(default_factory=list)
    """By request, in the order of their arrival."""
    ttft_without_s: list[float] = field(default_factory=list)
    """The same requests without any tier."""


class Replay:
    """One run.

    Args:
        options: Tiers, policy, speeds.
        block_tokens: Tokens of a block of the trace, which is a chunk of the tiers.
    """

    def __init__(self, options: ReplayOptions, block_tokens: int) -> None:
        chunk_bytes = block_tokens * options.bytes_per_token
        thresholds = (options.store_threshold, *[0] * len(options.tiers))
        self._options = options
        self._rate = options.prefill_tokens_per_s
        self._block_tokens = block_tokens
        self._size_limit = SizeLimit(options.store_min_prompt_tokens, options.store_max_tokens)
        self._shelves = [
            Shelf(spec, options.policy, chunk_bytes, threshold)
            for spec, threshold in zip(options.tiers, thresholds, strict=False)
        ]
        self._host, *self._below = self._shelves
        self._chunk_bytes = chunk_bytes
        # When, in which order at the same time, what is called with what and the time.
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._turn = 0
        self._prefill_free_s = 0.0
        self._free_without_s = 0.0
        self.outcome = Outcome(self._shelves)

    def run(self, requests: Iterable[TraceRequest]) -> Outcome:
        """Replay all of these, in the order of their arrival."""
        for request in requests:
            self._advance(request.arrival_s)
            self._arrive(request)
        self._advance(float("inf"))
        return self.outcome

    def _at(self, when_s: float, act: Callable[..., None], *what: Any) -> None:
        self._turn += 1
        heapq.heappush(self._events, (when_s, self._turn, act, what))

    def _advance(self, until_s: float) -> None:
        events, pop = self._events, heapq.heappop
        while events and events[0][0] <= until_s:
            now_s, _, act, what = pop(events)
            act(*what, now_s)

    def _arrive(self, request: TraceRequest) -> None:
        now_s, keys, outcome = request.arrival_s, request.keys, self.outcome
        number = outcome.requests
        outcome.requests += 1
        outcome.last_arrival_s = now_s
        outcome.input_tokens += request.input_tokens
        outcome.accesses += len(keys)
        prefill_s = request.input_tokens / self._rate
        free_s = self._free_without_s
        self._free_without_s = free_s = max(free_s, now_s) + prefill_s
        outcome.ttft_without_s.append(free_s - now_s)
        outcome.ttft_s.append(0.0)
        loaded = self._load(keys, now_s)
        if loaded is None:
            self._prefill(number, request, prefill_s, now_s)
            return
        missing_s = (request.input_tokens - self._count_hits(request, loaded)) / self._rate
        self._at(loaded.end_s, self._loaded, number, request, loaded, missing_s)

    def _count_hits(self, request: TraceRequest, loaded: _Load) -> int:
        left = request.input_tokens
        for shelf, chunks in zip(self._shelves, loaded.chunks, strict=True):
            tokens = chunks * self._block_tokens
            tokens = min(tokens, left)
            shelf.counts.hit_tokens += tokens
            left -= tokens
        hit_tokens = request.input_tokens - left
        self.outcome.hit_tokens += hit_tokens
        return hit_tokens

    def _load(self, keys: Sequence[OffloadKey], now_s: float) -> _Load | None:
        """Begin to load the longest prefix that the tiers have together, each chunk from the fastest tier.

        None: they have nothing.
        """
        load = _Load(now_s, [], [])
        start = 0
        for shelf in self._shelves:
            run, _ = shelf.tier.lookup_prefix(keys[start:])
            load.chunks.append(run)
            if run:
                run_keys = keys[start : start + run]
                load.held.append((shelf, shelf.tier.prepare_load(run_keys)))
                end_s = shelf.read(run_keys, now_s)
                load.end_s = max(load.end_s, end_s)
                start += run
        if not start:
            return None
        if start > load.chunks[0]:
            load.promoted = self._host.promote(keys[load.chunks[0] : start], set(keys))
        return load

    def _loaded(
        self, number: int, request: TraceRequest, load: _Load, missing_s: float, now_s: float
    ) -> None:
        for shelf, slots in load.held:
            shelf.tier.complete_load(slots)  # type: ignore[arg-type]  # they were there, and nobody drops any
        if load.promoted is not None:
            self._host.publish(load.promoted)
        self._prefill(number, request, missing_s, now_s)

    def _prefill(self, number: int, request: TraceRequest, missing_s: float, now_s: float) -> None:
        free_s = self._prefill_free_s
        self._prefill_free_s = free_s = max(free_s, now_s) + missing_s
        self.outcome.ttft_s[number] = free_s - request.arrival_s
        self._at(free_s, self._store, request)

    def _store(self, request: TraceRequest, now_s: float) -> None:
        """The host has it at once (copies run beside the next prefill), the tiers below when it is written."""
        keys = request.keys
        most = self._size_limit.max_tokens(request.input_tokens)
        if most is not None and most < request.input_tokens:
            kept = most // self._block_tokens
            self._host.counts.not_stored += len(keys) - kept
            keys = keys[:kept]
        own = set(keys)
        self._host.publish(self._host.take(keys, own))
        for shelf in self._below:
            if shelf.writes.backlog_s(now_s) > self._options.write_backlog_s:
                shelf.counts.not_stored += sum(shelf.tier.has_none_of((key,)) for key in keys)
                continue
            prepared = shelf.take(keys, own)
            if prepared.slots:
                end_s = shelf.writes.send(now_s, len(prepared.slots) * self._chunk_bytes)
                self._at(end_s, shelf.publish, prepared)


@dataclass(slots=True)
class _Load:
    """A load that has begun."""

    end_s: float
    chunks: list[int]
    """Of each tier."""
    held: list[tuple[Shelf, list[SlotId | None]]]
    promoted: PreparedStore | None = None
