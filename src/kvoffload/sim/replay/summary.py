"""What a replay says: plain data, lines for a terminal, JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvoffload.config.units import format_bytes
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.sim.replay.engine import Outcome, Replay
from kvoffload.sim.replay.options import ReplayOptions
from kvoffload.sim.replay.shelf import Shelf
from kvoffload.sim.replay.stack import Curve, lru_curve, sampled_lru_curve
from kvoffload.sim.traces.base import Trace

_PERCENTILES = (50, 90, 99)
_GIB = 1024**3
EXACT_ACCESSES = 2_000_000
"""Above, a curve comes from a sample: the exact one takes some hundred bytes for each access."""
_SAMPLED_BLOCKS = 32_768


@dataclass(frozen=True, slots=True)
class TierResult:
    """One tier of a run."""

    name: str
    size_bytes: int
    chunks: int
    """That fit."""
    hit_ratio: float
    """Share of all tokens of prompts that were read from this tier."""
    read_bytes: int
    written_bytes: int
    evicted_chunks: int
    churn: float
    """Share of the evicted that nobody had read: written for nothing."""
    not_stored_chunks: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run: a policy and sizes of tiers."""

    policy: str
    requests: int
    block_accesses: int
    input_tokens: int
    hit_ratio: float
    """Token-weighted, prefix-contiguous, all tiers together."""
    prefill_load: float
    """Prefill time per second of the trace; above 1 the queue only grows, and times to first token say little."""
    ttft_s: dict[str, float]
    """Percentiles with the tiers."""
    ttft_saved_s: dict[str, float]
    """Percentiles, over requests, of what the tiers saved each of them; negative: it came later."""
    tiers: tuple[TierResult, ...]


def run_replays(trace: Trace, runs: Iterable[ReplayOptions]) -> list[RunResult]:
    """One after the other, each from an empty cache."""
    return [_result(options, Replay(options, trace.block_tokens).run(trace)) for options in runs]


def curve_of(trace: Trace, bytes_per_token: int) -> Curve:
    """LRU over sizes that double, from one GiB (or a few chunks) to the whole trace.

    Exact, which needs memory for every access; of a trace with more than `EXACT_ACCESSES` from a sample of its blocks.
    """
    chunk_bytes = trace.block_tokens * bytes_per_token
    blocks: set[OffloadKey] = set()
    accesses = 0
    for request in trace:
        blocks.update(request.keys)
        accesses += len(request.keys)
    unique = len(blocks)
    size = max(1, _GIB // chunk_bytes)
    capacities: list[int] = []
    while not capacities or capacities[-1] < unique:
        capacities.append(size)
        size *= 2
    if accesses > EXACT_ACCESSES:
        rate = min(1.0, _SAMPLED_BLOCKS / unique)
        return sampled_lru_curve(trace, trace.block_tokens, capacities, rate)
    return lru_curve(trace, trace.block_tokens, capacities)


def lines_of(results: Sequence[RunResult]) -> list[str]:
    """For a terminal."""
    lines = []
    for run in results:
        sizes = ", ".join(f"{tier.name}={_short(tier.size_bytes)}" for tier in run.tiers)
        lines.append(f"{run.policy}  {sizes}")
        lines.append(
            f"  prefix hits   {run.hit_ratio:.4f} of {run.input_tokens} tokens in {run.requests} requests"
        )
        lines.extend(
            f"  {tier.name:<12}  {tier.hit_ratio:.4f}   read {_short(tier.read_bytes)}, written {_short(tier.written_bytes)}, "
            f"evicted {tier.evicted_chunks} chunks ({tier.churn:.0%} never read), not stored {tier.not_stored_chunks}"
            for tier in run.tiers
        )
        saved = ", ".join(f"{name} {value:.3f} s" for name, value in run.ttft_saved_s.items())
        lines.append(f"  TTFT saved    {saved}   (prefill load {run.prefill_load:.2f})")
        if run.prefill_load > 1:
            lines.append("                the queue only grows: give a higher --prefill-rate")
    return lines


def curve_lines(curve: Curve, chunk_bytes: int) -> list[str]:
    """The curve for a terminal."""
    if curve.miss_ratio is None or curve.error is not None:
        return _sampled_lines(curve, chunk_bytes)
    lines = ["LRU by size   block misses   prefix hits (tokens)"]
    for blocks, misses, hits in zip(curve.capacities, curve.miss_ratio, curve.prefix_hit_ratio, strict=True):
        lines.append(f"{_short(blocks * chunk_bytes):>11}   {misses:12.4f}   {hits:.4f}")
    return lines


def _sampled_lines(curve: Curve, chunk_bytes: int) -> list[str]:
    lines = ["LRU by size   prefix hits (tokens), from a sample, ± two standard errors"]
    for blocks, hits, error in zip(curve.capacities, curve.prefix_hit_ratio, curve.error or (), strict=True):
        lines.append(f"{_short(blocks * chunk_bytes):>11}   {hits:.4f} ± {error:.4f}")
    return lines


def _result(options: ReplayOptions, outcome: Outcome) -> RunResult:
    with_tiers, without = np.array(outcome.ttft_s), np.array(outcome.ttft_without_s)
    tokens = max(1, outcome.input_tokens)
    computed_s = (outcome.input_tokens - outcome.hit_tokens) / options.prefill_tokens_per_s
    return RunResult(
        policy=options.policy,
        requests=outcome.requests,
        block_accesses=outcome.accesses,
        input_tokens=outcome.input_tokens,
        hit_ratio=outcome.hit_tokens / tokens,
        prefill_load=computed_s / outcome.last_arrival_s if outcome.last_arrival_s else 0.0,
        ttft_s=_percentiles(with_tiers),
        ttft_saved_s=_percentiles(without - with_tiers),
        tiers=tuple(_tier(shelf, tokens) for shelf in outcome.shelves),
    )


def _tier(shelf: Shelf, tokens: int) -> TierResult:
    counts = shelf.counts
    return TierResult(
        name=shelf.spec.name,
        size_bytes=shelf.spec.size_bytes,
        chunks=shelf.slots,
        hit_ratio=counts.hit_tokens / tokens,
        read_bytes=counts.read_bytes,
        written_bytes=counts.written_bytes,
        evicted_chunks=counts.evicted,
        churn=counts.evicted_unread / counts.evicted if counts.evicted else 0.0,
        not_stored_chunks=counts.not_stored,
    )


def _percentiles(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> dict[str, float]:
    if not len(values):
        return {}
    found = {f"p{number}": float(np.percentile(values, number)) for number in _PERCENTILES}
    return {"mean": float(values.mean()), **found}


def _short(size: int) -> str:
    return f"{size / 1024**4:.2f} TiB" if size >= 1024**4 else format_bytes(size).partition(" (")[0]
