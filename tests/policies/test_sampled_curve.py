"""The sampled curve: exact if all keys are sampled, within its stated error if not, and bounded in memory."""

from __future__ import annotations

import hashlib
import random

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.policies.curve import (
    SampledCurve,
    Sampler,
    digest_sampler,
    first_bytes,
    hash_places,
    hash_sampler,
)
from kvoffload.testing.policy_tests import key

CAPACITIES = (1, 2, 3, 5, 8)


def hits_of(prompts: list[list[int]], capacity: int) -> int:
    """LRU by the book: looked up as a whole, used from tail to head."""
    stack: list[int] = []
    hits = 0
    for prompt in prompts:
        held = stack[-capacity:]
        broken = [number not in held for number in prompt]
        hits += broken.index(True) if True in broken else len(prompt)
        for number in reversed(prompt):
            if number in stack:
                stack.remove(number)
            stack.append(number)
    return hits


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), unique=True, max_size=6), max_size=25))
def test_with_all_keys_in_the_sample_it_is_what_lru_does(prompts: list[list[int]]) -> None:
    curve = SampledCurve(CAPACITIES, list, 1.0)
    for prompt in prompts:
        curve.use([key(number) for number in prompt])
        assert len(curve) <= CAPACITIES[-1] + 1
    asked = sum(map(len, prompts))
    for estimate in curve.estimates():
        assert estimate.hit_ratio * asked == pytest.approx(hits_of(prompts, estimate.capacity))
        assert estimate.error == 0


def random_prompts(turns: int) -> list[list[OffloadKey]]:
    """Conversations that grow, and come back the later the rarer."""
    rng = random.Random(0)
    talks: list[list[OffloadKey]] = []
    prompts = []
    for turn in range(turns):
        if not talks or rng.random() < 0.4:
            talks.append([key(0)])
        talk = talks[-1 - min(int(rng.expovariate(0.01)), len(talks) - 1)]
        talk.extend(key(1000 * turn + number + 1) for number in range(rng.randint(1, 12)))
        prompts.append(list(talk))
    return prompts


def salted_sampler(salt: int, rate: float) -> Sampler:
    limit = int(rate * 2**64)
    return lambda keys: [one for one in keys if xxhash.xxh3_64_intdigest(one, salt) < limit]


def test_samples_are_right_within_their_errors_as_often_as_they_say() -> None:
    capacities, rate, prompts = (500, 1000, 2000, 4000), 0.2, random_prompts(1000)
    exact = SampledCurve(capacities, list, 1.0)
    for prompt in prompts:
        exact.use(prompt)
    right = [estimate.hit_ratio for estimate in exact.estimates()]
    assert right[0] < right[-1] - 0.2, "the sizes do not differ"
    deviations: list[float] = []
    for salt in range(8):
        sampled = SampledCurve(capacities, salted_sampler(salt, rate), rate)
        for prompt in prompts:
            sampled.use(prompt)
        assert len(sampled) < 900
        deviations += [
            abs(found.hit_ratio - hits) / found.error
            for found, hits in zip(sampled.estimates(), right, strict=True)
        ]
    # The unit is two standard errors. Many more keys than sub-samples are needed for them to hold.
    assert max(deviations) < 2.5
    assert sum(deviation > 1 for deviation in deviations) <= 0.15 * len(deviations)
    assert max(deviations) > 0.5, "the errors are far too large"


def test_old_traffic_counts_less_and_less() -> None:
    curve = SampledCurve([4], list, 1.0, window=20)
    for number in range(200):
        curve.use([key(number)])
    assert curve.estimates()[0].hit_ratio < 1e-9
    for _ in range(60):
        curve.use([key(0)])
    assert curve.estimates()[0].hit_ratio > 0.9


def test_after_a_reset_nothing_of_before_is_a_hit() -> None:
    curve = SampledCurve([4], list, 1.0)
    curve.use([key(1)])
    curve.clear()
    curve.use([key(1)])
    assert (curve.estimates()[0].hit_ratio, len(curve)) == (0.0, 1)


def test_the_last_chunk_counts_with_what_it_has() -> None:
    curve = SampledCurve([4], list, 1.0)
    curve.use([key(1), key(2)], last_weight=0.5)
    curve.use([key(1), key(3)], last_weight=0.5)
    assert curve.estimates()[0].hit_ratio == pytest.approx(1 / 3)


@pytest.mark.parametrize("wanted", [1.0, 0.3, 0.05, 0.004])
def test_samplers_take_the_share_that_they_say_and_always_the_same(wanted: float) -> None:
    keys = [make_offload_key(hashlib.sha256(str(number).encode()).digest(), 0) for number in range(40_000)]
    sampler, rate = hash_sampler(wanted)
    assert rate == pytest.approx(wanted, rel=0.05)
    for take, share in ((sampler, rate), (digest_sampler(wanted), wanted)):
        taken = take(keys)
        assert len(taken) == pytest.approx(share * len(keys), rel=0.25)
        assert take(keys[::-1]) == taken[::-1]


def test_of_nothing_there_is_no_curve() -> None:
    curve = SampledCurve([4], list, 1.0)
    curve.use([])
    assert [estimate.hit_ratio for estimate in curve.estimates()] == [0.0]


@pytest.mark.parametrize("rate", [1.0, 0.3, 0.02])
def test_to_be_told_what_is_in_the_sample_is_the_same_as_to_look(rate: float) -> None:
    (sampler, real), (places_of, same) = hash_sampler(rate), hash_places(rate)
    assert real == same
    looks, is_told = (SampledCurve((10, 40, 400), sampler, real, window=900) for _ in range(2))
    for prompt in random_prompts(100):
        keys = [make_offload_key(hashlib.sha256(name).digest(), 0) for name in prompt]
        looks.use(keys)
        is_told.use_sampled(len(keys), [keys[place] for place in places_of(keys, first_bytes(keys))])
    assert is_told.estimates() == looks.estimates()
    assert len(is_told) == len(looks)
