"""Integer equality with implementations that are not ours: on a sample, on a stream, and on the whole traces where they are.

KVOFFLOAD_TRACES=DIRECTORY pytest tests/sim/test_reference_misses.py
"""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.policies.lru import LRUPolicy
from kvoffload.sim.replay.belady import count_belady_misses
from kvoffload.sim.replay.counting import count_misses, count_prefix_hits
from kvoffload.sim.replay.stack import lru_curve, sampled_lru_curve
from kvoffload.sim.traces.base import Trace
from kvoffload.sim.traces.opening import open_trace

FIXTURES = Path(__file__).parent / "fixtures"
SAMPLE = FIXTURES / "mooncake_synthetic_160.jsonl"
TRACES = os.environ.get("KVOFFLOAD_TRACES")
FILES = {"mooncake_conversation": "conversation_trace.jsonl", "mooncake_synthetic": "synthetic_trace.jsonl"}
whole_traces = pytest.mark.skipif(TRACES is None, reason="KVOFFLOAD_TRACES names no directory")
with (FIXTURES / "reference_misses.csv").open() as file:
    REFERENCE = list(csv.DictReader(file))


@cache
def whole(name: str) -> Trace:
    assert TRACES is not None
    return open_trace(Path(TRACES) / FILES[name])


@cache
def stream_of(trace: Trace) -> list[OffloadKey]:
    return [key for request in trace for key in request.keys]


@cache
def zipf_stream() -> list[OffloadKey]:
    """Two populations one after the other: where SIEVE and LFU differ, which they do not on either trace."""
    rng = np.random.default_rng(1)
    parts = [(rng.zipf(1.2, 100_000) % 5000) + first for first in (1, 7001)]
    return [make_offload_key(int(number).to_bytes(8, "big"), 0) for number in np.concatenate(parts)]


def misses_of(policy: str, stream: list[OffloadKey], capacity: int) -> int:
    return count_misses(stream, EVICTION_POLICIES.resolve(policy)(capacity))


# The figures of the next two tests are those of libCacheSim 0.3.
@pytest.mark.parametrize(
    ("policy", "misses"),
    [
        ("lru", (4230, 4215, 4160)),
        ("fifo", (4230, 4220, 4165)),
        ("lfu", (4202, 4187, 4132)),
        ("arc", (4202, 4187, 4132)),
        ("s3fifo", (4175, 4210, 4125)),
        ("sieve", (4202, 4187, 4132)),
    ],
)
def test_misses_on_a_sample_of_real_traffic_are_those_of_others(
    policy: str, misses: tuple[int, int, int]
) -> None:
    stream = stream_of(open_trace(SAMPLE))
    assert tuple(misses_of(policy, stream, capacity) for capacity in (300, 1000, 1500)) == misses


@pytest.mark.parametrize(
    ("policy", "at_500", "at_100"),
    [
        ("lru", 12557, 18411),
        ("fifo", 13906, 20353),
        ("lfu", 14455, 21484),
        ("arc", 11619, 15267),
        ("s3fifo", 11676, 15175),
        ("sieve", 13610, 15524),
    ],
)
def test_misses_where_the_load_changes_are_those_of_others(policy: str, at_500: int, at_100: int) -> None:
    stream = zipf_stream()[80_000:120_000]
    assert (misses_of(policy, stream, 500), misses_of(policy, stream, 100)) == (at_500, at_100)


def test_sieve_is_not_lfu() -> None:
    assert misses_of("sieve", zipf_stream(), 500) == 54_441
    assert misses_of("lfu", zipf_stream(), 500) == 87_831


def test_no_policy_beats_belady_and_one_pass_counts_as_lru_does() -> None:
    trace = open_trace(SAMPLE)
    stream = stream_of(trace)
    fewest = count_belady_misses(stream, 1000)
    assert all(misses_of(name, stream, 1000) >= fewest for name in EVICTION_POLICIES.names())
    curve = lru_curve(trace, trace.block_tokens, (300, 1000, 1500))
    assert [round(ratio * len(stream)) for ratio in curve.miss_ratio] == [4230, 4215, 4160]
    for capacity, ratio in zip(curve.capacities, curve.prefix_hit_ratio, strict=True):
        assert ratio == count_prefix_hits(trace, trace.block_tokens, LRUPolicy(capacity)).ratio


@whole_traces
@pytest.mark.parametrize(
    "line", REFERENCE, ids=["-".join((x["trace"], x["policy"], x["capacity_blocks"])) for x in REFERENCE]
)
def test_misses_on_the_whole_traces_are_those_of_the_reference(line: dict[str, str]) -> None:
    stream = stream_of(whole(line["trace"]))
    capacity, policy = int(line["capacity_blocks"]), line["policy"].lower()
    found = (
        count_belady_misses(stream, capacity) if policy == "belady" else misses_of(policy, stream, capacity)
    )
    assert (found, len(stream)) == (int(line["misses"]), int(line["accesses"]))


@whole_traces
@pytest.mark.parametrize(
    ("name", "ratios"),
    # The reference cuts the second figure off: it is 0.21575.
    [("mooncake_conversation", (0.0454, 0.2157, 0.3736)), ("mooncake_synthetic", (0.0857, 0.4318, 0.6512))],
)
def test_prefix_hits_on_the_whole_traces_are_those_of_the_reference(
    name: str, ratios: tuple[float, float, float]
) -> None:
    trace = whole(name)
    curve = lru_curve(trace, trace.block_tokens, (1000, 10_000, 10**9))
    assert curve.prefix_hit_ratio == pytest.approx(ratios, abs=0.0001)
    for capacity, ratio in zip(curve.capacities[:2], curve.prefix_hit_ratio, strict=False):
        assert ratio == count_prefix_hits(trace, trace.block_tokens, LRUPolicy(capacity)).ratio


@whole_traces
@pytest.mark.parametrize("name", FILES)
def test_a_sampled_curve_of_a_whole_trace_is_right_within_its_error(name: str) -> None:
    trace, capacities = whole(name), (500, 1000, 2500, 5000, 10_000, 20_000, 50_000)
    exact = lru_curve(trace, trace.block_tokens, capacities)
    rate = 8192 / len(set(stream_of(trace)))
    found = sampled_lru_curve(trace, trace.block_tokens, capacities, rate)
    assert found.error is not None
    for right, ratio, error in zip(exact.prefix_hit_ratio, found.prefix_hit_ratio, found.error, strict=True):
        assert error < 0.045
        assert abs(ratio - right) < 1.5 * error
