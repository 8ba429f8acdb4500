"""Every policy that ships passes the shipped suite, and each does what its paper says where they differ."""

from __future__ import annotations

import random

import pytest

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.echo import EchoPolicy
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.policies.gdsf import GDSFPolicy
from kvoffload.policies.prefix import PrefixPolicy
from kvoffload.policies.wtinylfu import FrequencySketch
from kvoffload.sim.replay.counting import UnitCache
from kvoffload.testing.policy_tests import PolicyTests, key
from kvoffload.tiers.fs.options import FsTierConfig

NAMES = ("fifo", "lru", "lfu", "arc", "s3fifo", "sieve", "wtinylfu", "gdsf", "echo", "prefix")


def nobody(_: OffloadKey) -> bool:
    return False


def keys(*numbers: int) -> list[OffloadKey]:
    return [key(number) for number in numbers]


@pytest.mark.parametrize("name", NAMES)
class TestAll(PolicyTests):
    seeds = range(10)

    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def make(self, capacity: int) -> EvictionPolicy:
        return EVICTION_POLICIES.resolve(self.name)(capacity)


def test_these_are_all_that_ship() -> None:
    assert tuple(sorted(NAMES)) == EVICTION_POLICIES.names()


@pytest.mark.parametrize("name", NAMES)
def test_the_fs_tier_takes_each(name: str) -> None:
    assert FsTierConfig("/kv", eviction_policy=name).eviction_policy == name


@pytest.mark.parametrize("name", NAMES)
def test_a_tier_without_a_bound_costs_no_memory_for_what_it_might_hold(name: str) -> None:
    # The fs tier without a cap says 2**32 keys a part; what is remembered must follow what is there.
    policy = EVICTION_POLICIES.resolve(name)(2**32)
    for number in range(400):
        policy.expect(keys(number))
        if number >= 10:
            assert len(policy.evict(1, nobody)) == 1
        policy.insert(keys(number))
    remembered = sum(
        len(part) for part in vars(policy).values() if hasattr(part, "__len__") and not isinstance(part, str)
    )
    assert remembered < 120


@pytest.mark.parametrize(
    ("name", "victim"),
    # Four keys in order, then 0 twice and 1 once. Where use does not save the first, what is special shows.
    [
        ("fifo", 0),
        ("lru", 2),
        ("lfu", 2),
        ("arc", 2),
        ("sieve", 2),
        ("s3fifo", 2),
        ("prefix", 2),
        ("gdsf", 2),
    ],
)
def test_the_first_victim_after_some_uses(name: str, victim: int) -> None:
    policy = EVICTION_POLICIES.resolve(name)(4)
    for number in range(4):
        policy.insert(keys(number))
    for number in (0, 1, 0):
        policy.touch(keys(number))
    assert list(policy.evict(1, nobody)) == keys(victim)


def test_sieve_spares_in_place_and_lfu_counts() -> None:
    sieve, lfu = (EVICTION_POLICIES.resolve(name)(3) for name in ("sieve", "lfu"))
    for policy in (sieve, lfu):
        policy.insert(keys(0, 1, 2))
        policy.touch(keys(0, 0, 1))
        assert list(policy.evict(1, nobody)) == keys(2)
        policy.insert(keys(3))
        policy.touch(keys(3))
    # SIEVE's bits of 0 and 1 are spent; LFU sees three uses of 0 and two of 1 and of 3.
    assert list(sieve.evict(2, nobody)) == keys(0, 1)
    assert list(lfu.evict(2, nobody)) == keys(1, 3)


def test_s3fifo_sends_a_key_that_comes_back_to_main() -> None:
    policy = EVICTION_POLICIES.resolve("s3fifo")(10)
    for number in range(10):
        policy.insert(keys(number))
    assert list(policy.evict(1, nobody)) == keys(0)
    policy.expect(keys(0))
    policy.insert(keys(0))
    policy.insert(keys(20))
    # Nine keys of main (1 to 9 when it filled up) and 0: one too many, the first of main goes, not 0.
    assert list(policy.evict(1, nobody)) == keys(1)


def test_arc_moves_its_target_towards_what_was_evicted_too_early() -> None:
    policy = EVICTION_POLICIES.resolve("arc")(4)
    policy.insert(keys(0, 1, 2, 3))
    policy.touch(keys(0, 1))
    assert list(policy.evict(1, nobody)) == keys(2)
    policy.expect(keys(2))
    policy.insert(keys(2))
    assert policy._target == 1
    # T1 holds 3 alone, which is its target now: the room comes from those used again.
    assert list(policy.evict(1, nobody)) == keys(0)


def test_the_end_of_a_prompt_goes_before_its_beginning_whatever_was_used_when() -> None:
    policy = PrefixPolicy(8)
    policy.chain(keys(0, 1, 2))
    policy.chain(keys(0, 1, 3))
    policy.insert(keys(0, 1, 2, 3))
    policy.touch(keys(3, 2))
    assert list(policy.evict(4, nobody)) == keys(3, 2, 1, 0)


def test_what_has_lost_its_beginning_goes_first() -> None:
    policy = PrefixPolicy(8)
    policy.insert(keys(9))
    policy.chain(keys(0, 1, 2))
    policy.insert(keys(2, 1, 0))
    policy.remove(keys(0))
    assert list(policy.evict(2, nobody)) == keys(2, 1)
    assert len(policy) == 1


def test_a_kept_end_protects_its_beginning_while_others_can_go() -> None:
    policy = PrefixPolicy(8)
    policy.chain(keys(0, 1))
    policy.insert(keys(1, 0, 5))
    kept = set(keys(1))
    assert list(policy.evict(1, kept.__contains__)) == keys(5)
    assert list(policy.evict(2, kept.__contains__)) == keys(0)


def test_gdsf_gives_up_what_is_cheap_to_compute_again() -> None:
    policy = GDSFPolicy(8)
    policy.chain(keys(*range(100)))
    policy.insert(keys(99, 0))
    policy.insert(keys(200))
    assert list(policy.evict(3, nobody)) == keys(200, 99, 0)


def test_echo_goes_on_counting_where_an_evicted_key_stopped() -> None:
    policy = EVICTION_POLICIES.resolve("echo")(2)
    policy.insert(keys(0))
    policy.touch(keys(0, 0))
    assert list(policy.evict(1, nobody)) == keys(0)
    # Back with four uses on top of the age that its eviction has set; 1 is new.
    policy.insert(keys(0, 1))
    assert list(policy.evict(1, nobody)) == keys(1)
    policy.clear()
    policy.insert(keys(0, 1))
    assert list(policy.evict(1, nobody)) == keys(0)


class PlainEcho(EchoPolicy):
    """All uses count alike."""

    def _weight(self, uses: int) -> float:
        return uses


def hits_with_some_that_return(policy: EvictionPolicy) -> int:
    """Nine of ten keys are used once; the tenth four times, with 25 others in between."""
    rng = random.Random(3)
    due: dict[int, list[int]] = {}
    cache = UnitCache(policy)
    hits = 0
    for turn in range(6000):
        used = due.pop(turn, [turn])
        hits += sum(cache.access(keys(*used)))
        if used == [turn] and rng.random() < 0.1:
            for again in range(1, 4):
                due.setdefault(turn + 25 * again, []).append(turn)
    return hits


def test_echo_learns_where_new_keys_do_not_come_back_in_time() -> None:
    learned, plain = (hits_with_some_that_return(kind(12)) for kind in (EchoPolicy, PlainEcho))
    assert learned > 1.2 * plain > 0


def test_echo_learns_nothing_of_the_kind_where_all_come_back() -> None:
    policy = EchoPolicy(12)
    cache = UnitCache(policy)
    for turn in range(300):
        cache.access(keys(*range(turn, turn + 8)))
    assert policy._weight(1) == pytest.approx(1.0, abs=0.1)


def test_a_use_that_is_told_of_again_changes_the_order_and_no_count() -> None:
    for name in ("lfu", "gdsf", "echo", "arc"):
        policy = EVICTION_POLICIES.resolve(name)(4)
        policy.insert(keys(0, 1))
        for _ in range(3):
            policy.renew(keys(0))
        # Still used once, and now later than 1.
        policy.insert(keys(2))
        policy.touch(keys(2))
        assert list(policy.evict(3, nobody)) == keys(1, 0, 2), name


def test_a_sketch_counts_what_is_frequent_and_forgets_it_in_time() -> None:
    sketch = FrequencySketch()
    for _ in range(9):
        sketch.add(key(1))
    sketch.add(key(2))
    assert (sketch.count(key(1)), sketch.count(key(2)), sketch.count(key(3))) == (9, 1, 0)
    sketch.fit(1000)
    assert sketch.count(key(1)) == 9
    for number in range(11_000):
        sketch.add(key(1000 + number % 7))
    assert sketch.count(key(1)) < 9
