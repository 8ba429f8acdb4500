"""The replay: times and bytes as a pencil gives them, and what must hold whatever the trace."""

from __future__ import annotations

import random
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.policies.lru import LRUPolicy
from kvoffload.sim.replay.belady import belady_answers
from kvoffload.sim.replay.counting import UnitCache, count_prefix_hits
from kvoffload.sim.replay.engine import Replay
from kvoffload.sim.replay.options import ReplayOptions, TierSpec, parse_sweep, parse_tiers, with_admission
from kvoffload.sim.replay.stack import NEVER, lru_curve, prefix_distances, stack_distances
from kvoffload.sim.traces.base import TraceRequest
from kvoffload.testing.policy_tests import key

BLOCK = 10
numbers = st.lists(st.integers(0, 12), max_size=60)


def request(arrival_s: float, *blocks: int, tokens: int | None = None) -> TraceRequest:
    return TraceRequest(arrival_s, tokens or BLOCK * len(blocks), 1, tuple(key(block) for block in blocks))


def options(*chunks: int, policy: str = "lru") -> ReplayOptions:
    """Tiers of so many chunks; a token is a byte, a chunk takes 1 s to read, 2 s to write, and 0.1 s to prefill."""
    tiers = tuple(
        TierSpec(f"t{number}", BLOCK * count, 10.0, 5.0, 0.0) for number, count in enumerate(chunks)
    )
    return ReplayOptions(tiers, policy, bytes_per_token=1, prefill_tokens_per_s=100.0, write_backlog_s=100.0)


def random_requests(seed: int, count: int = 40) -> list[TraceRequest]:
    """Prompts that branch off each other."""
    rng = random.Random(seed)
    prompts: list[tuple[int, ...]] = [()]
    fresh = iter(range(10_000))
    for _ in range(count):
        stem = rng.choice(prompts)
        prompts.append(
            stem[: rng.randint(0, len(stem))] + tuple(next(fresh) for _ in range(rng.randint(1, 4)))
        )
    arrivals = accumulate(rng.expovariate(2.0) for _ in prompts[1:])
    return [request(now_s, *prompt) for now_s, prompt in zip(arrivals, prompts[1:], strict=True)]


def test_a_prefix_is_loaded_and_only_the_rest_is_prefilled() -> None:
    outcome = Replay(options(9), BLOCK).run([request(0.0, 1, 2, 3), request(10.0, 1, 2, 4)])
    assert outcome.ttft_without_s == pytest.approx([0.3, 0.3])
    assert outcome.ttft_s == pytest.approx([0.3, 2.1])
    assert outcome.hit_tokens == 20
    counts = outcome.shelves[0].counts
    assert (counts.read_bytes, counts.written_bytes, counts.evicted) == (20, 40, 0)


def test_prefills_wait_for_each_other_and_nothing_is_there_before_it_is_computed() -> None:
    outcome = Replay(options(9), BLOCK).run([request(0.0, 1, 2), request(0.1, 1, 2)])
    assert outcome.ttft_s == pytest.approx([0.2, 0.3])
    assert outcome.hit_tokens == 0


def test_what_the_host_has_lost_comes_from_the_tier_below_once_it_is_written() -> None:
    requests = [request(0.0, 1, 2), request(1.0, 5, 6), request(3.0, 1, 2), request(20.0, 1, 2)]
    outcome = Replay(options(2, 9), BLOCK).run(requests)
    host, below = outcome.shelves
    # At 3 s the tier below has not yet written 1 and 2 (4 s); at 20 s the host has them, computed anew.
    assert (host.counts.hit_tokens, below.counts.hit_tokens) == (20, 0)
    requests[2:] = [request(20.0, 1, 2), request(40.0, 1, 2)]
    host, below = Replay(options(2, 9), BLOCK).run(requests).shelves
    assert (host.counts.hit_tokens, below.counts.hit_tokens) == (20, 20)
    assert below.counts.read_bytes == 20


def test_evictions_that_nobody_read_are_counted_as_churn() -> None:
    requests = [request(0.0, 1, 2), request(10.0, 1, 2), request(20.0, 3, 4), request(30.0, 5, 6)]
    counts = Replay(options(2), BLOCK).run(requests).shelves[0].counts
    assert (counts.evicted, counts.evicted_unread) == (4, 2)


def test_a_tier_that_falls_behind_leaves_chunks_out() -> None:
    slow = options(9, 9)
    slow = ReplayOptions(slow.tiers, "lru", 1, 100.0, 0, write_backlog_s=1.0)
    outcome = Replay(slow, BLOCK).run([request(0.0, 1, 2), request(0.3, 3), request(60.0, 3)])
    # The third is in the host; below nothing was ever said of 3 until the third came.
    assert outcome.shelves[1].counts.not_stored == 1


def test_admission_cuts_long_prompts_in_all_tiers_and_leaves_short_ones_out() -> None:
    limited = with_admission(options(9, 9), "store_min_prompt_tokens=20,store_max_tokens=25")
    outcome = Replay(limited, BLOCK).run([request(0.0, 1), request(10.0, 2, 3, 4), request(90.0, 2, 3, 4)])
    host, below = outcome.shelves
    assert (host.tier.ready_count, below.tier.ready_count, outcome.hit_tokens) == (2, 2, 20)
    assert host.counts.not_stored == 1 + 1 + 1


@pytest.mark.parametrize(
    "text", ["", "touch=2", "store_threshold", "store_threshold=2,store_threshold=3", "store_max_tokens=0"]
)
def test_what_is_no_admission_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--admission"):
        with_admission(options(9), text)


def test_the_last_block_counts_with_the_tokens_that_it_has() -> None:
    outcome = Replay(options(9), BLOCK).run([request(0.0, 1, 2, tokens=13), request(9.0, 1, 2, tokens=13)])
    assert (outcome.hit_tokens, outcome.input_tokens) == (13, 26)


@pytest.mark.parametrize("name", EVICTION_POLICIES.names())
def test_every_policy_keeps_the_tiers_whole(name: str) -> None:
    for seed in range(4):
        outcome = Replay(options(12, 30, policy=name), BLOCK).run(random_requests(seed))
        assert sum(shelf.counts.hit_tokens for shelf in outcome.shelves) == outcome.hit_tokens
        for shelf in outcome.shelves:
            shelf.tier.check(writing_slots=(), held_slots=())
        assert all(ttft > 0 for ttft in outcome.ttft_s)


def test_equal_runs_are_equal() -> None:
    one, two = (Replay(options(12, 30), BLOCK).run(random_requests(7)) for _ in range(2))
    assert one.ttft_s == two.ttft_s
    assert [shelf.counts for shelf in one.shelves] == [shelf.counts for shelf in two.shelves]


@settings(max_examples=60, deadline=None)
@given(numbers, st.integers(1, 8))
def test_a_stack_distance_below_the_capacity_is_exactly_an_lru_hit(
    accessed: list[int], capacity: int
) -> None:
    stream = [key(number) for number in accessed]
    hits = UnitCache(LRUPolicy(capacity)).access(stream)
    assert (stack_distances(stream) < capacity).tolist() == hits


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30))
def test_the_curve_is_what_lru_does_prompt_by_prompt(seed: int, capacity: int) -> None:
    requests = random_requests(seed, 15)
    curve = lru_curve(requests, BLOCK, [capacity])
    assert curve.prefix_hit_ratio[0] == count_prefix_hits(requests, BLOCK, LRUPolicy(capacity)).ratio


def test_no_accesses_are_no_distances() -> None:
    assert stack_distances([]).tolist() == []
    assert prefix_distances([(), (key(1),), ()]).tolist() == [NEVER]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=14), st.integers(1, 3))
def test_belady_has_the_fewest_misses_of_all_choices(accessed: list[int], capacity: int) -> None:
    def fewest(index: int, resident: frozenset[int]) -> int:
        if index == len(accessed):
            return 0
        now = accessed[index]
        if now in resident:
            return fewest(index + 1, resident)
        if len(resident) < capacity:
            return 1 + fewest(index + 1, resident | {now})
        return 1 + min(fewest(index + 1, resident - {victim} | {now}) for victim in resident)

    stream: list[OffloadKey] = [key(number) for number in accessed]
    assert np.count_nonzero(~np.array(belady_answers(stream, capacity), bool)) == fewest(0, frozenset())


def test_tiers_are_read_from_a_text() -> None:
    host, below = parse_tiers("host=64GiB, disk=1TiB@5GB/2GB/0.5ms")
    assert (host.name, host.size_bytes) == ("host", 64 * 2**30)
    assert (below.read_bytes_per_s, below.write_bytes_per_s, below.latency_s) == (5e9, 2e9, 0.0005)
    assert parse_tiers("host=1GiB@8GB")[0].write_bytes_per_s == 8e9
    sizes = parse_sweep("disk=1GiB,2GiB", (host, below))
    assert [tiers[1].size_bytes for tiers in sizes] == [2**30, 2**31]
    assert {tiers[0] for tiers in sizes} == {host}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host=",
        "host=many",
        "a=1GiB,a=1GiB",
        "a=1GiB@",
        "a=1GiB@0",
        "a=1GiB@1GB/1GB/soon",
        "a=1@1/1/1s/1",
    ],
)
def test_what_are_no_tiers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_tiers(text)


@pytest.mark.parametrize("text", ["", "host", "other=1GiB", "host=x"])
def test_what_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_sweep(text, parse_tiers("host=1GiB"))
