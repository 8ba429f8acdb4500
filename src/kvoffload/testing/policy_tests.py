"""The tests that every eviction policy passes. Needs pytest or anything else that calls `test_…` methods.

class TestMyPolicy(PolicyTests):
    def make(self, capacity):
        return MyPolicy(capacity)
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator

from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.policies.base import EvictionPolicy

_CAPACITY = 12


def key(number: int) -> OffloadKey:
    """A key of group 0."""
    return make_offload_key(number.to_bytes(8, "big"), 0)


class PolicyTests(ABC):
    """Subclass it, give `make`, and run it."""

    seeds: Iterable[int] = range(40)
    """Random lives; a failure names its seed, and `seeds = (that,)` replays it."""

    @abstractmethod
    def make(self, capacity: int) -> EvictionPolicy:
        """A new, empty policy for a tier of `capacity` keys."""

    def test_a_new_policy_knows_nothing_and_evicts_nothing(self) -> None:
        """Nothing in, nothing out."""
        policy = self.make(_CAPACITY)
        assert len(policy) == 0
        assert list(policy.evict(3, _nobody)) == []

    def test_inserted_keys_are_known_and_can_all_be_evicted(self) -> None:
        """What came in comes out, each key once."""
        policy = self.make(_CAPACITY)
        policy.insert(_stream(_keys(5)))
        assert len(policy) == 5
        assert sorted(policy.evict(5, _nobody)) == _keys(5)
        assert len(policy) == 0

    def test_evicting_nothing_evicts_nothing(self) -> None:
        """A count of 0 is valid."""
        policy = self.make(_CAPACITY)
        policy.insert(_keys(3))
        assert list(policy.evict(0, _nobody)) == []
        assert len(policy) == 3

    def test_kept_keys_stay_and_all_others_can_go(self) -> None:
        """Keys that are kept do not stand in the way of the others."""
        policy = self.make(_CAPACITY)
        policy.insert(_keys(6))
        kept = {key(0), key(3), key(5)}
        assert sorted(policy.evict(6, kept.__contains__)) == [key(1), key(2), key(4)]
        assert len(policy) == 3
        assert list(policy.evict(6, kept.__contains__)) == []
        assert sorted(policy.evict(6, _nobody)) == sorted(kept)

    def test_removed_keys_are_never_evicted(self) -> None:
        """A key that has gone for another reason has gone."""
        policy = self.make(_CAPACITY)
        policy.insert(_keys(4))
        policy.remove(_stream([key(1), key(2)]))
        assert len(policy) == 2
        assert sorted(policy.evict(4, _nobody)) == [key(0), key(3)]

    def test_keys_may_come_back_after_eviction_and_removal(self) -> None:
        """A key has no memory that makes its return an error."""
        policy = self.make(_CAPACITY)
        for _ in range(5):
            policy.insert(_keys(3))
            policy.touch(_stream(_keys(3)))
            policy.remove([key(0)])
            assert sorted(policy.evict(9, _nobody)) == [key(1), key(2)]
        assert len(policy) == 0

    def test_touching_changes_the_order_only(self) -> None:
        """No key appears or disappears by being used."""
        policy = self.make(_CAPACITY)
        policy.insert(_keys(4))
        for _ in range(3):
            policy.touch([key(2), key(0), key(2)])
        assert len(policy) == 4
        assert sorted(policy.evict(4, _nobody)) == _keys(4)

    def test_clear_forgets_everything_and_the_policy_goes_on(self) -> None:
        """A reset leaves nothing behind."""
        policy = self.make(_CAPACITY)
        policy.insert(_keys(6))
        policy.clear()
        assert len(policy) == 0
        assert list(policy.evict(6, _nobody)) == []
        policy.insert(_keys(2))
        assert sorted(policy.evict(6, _nobody)) == _keys(2)

    def test_hints_change_the_order_only(self) -> None:
        """What is said of keys neither brings nor takes them, however contradictory it is."""
        policy = self.make(_CAPACITY)
        policy.insert(_keys(4))
        policy.chain(_keys(6))
        policy.chain(_keys(6)[::-1])
        policy.expect(_stream([key(7), key(8)]))
        assert len(policy) == 4
        assert sorted(policy.evict(6, _nobody)) == _keys(4)

    def test_equal_histories_give_equal_victims(self) -> None:
        """No hidden randomness: simulations must be repeatable."""
        for seed in self.seeds:
            lives = [_Life(self.make(_CAPACITY), random.Random(seed)) for _ in range(2)]  # noqa: S311
            assert lives[0].run() == lives[1].run(), f"seed {seed}"

    def test_no_life_breaks_the_contract(self) -> None:
        """Random histories against a set: known keys only, never a kept one, as many as there are."""
        for seed in self.seeds:
            try:
                _Life(self.make(_CAPACITY), random.Random(seed)).run()  # noqa: S311
            except Exception as error:
                raise AssertionError(f"seed {seed} (replay with `seeds = ({seed},)`): {error!r}") from error


class _Life:
    """A random history of one policy, checked against a plain set."""

    def __init__(self, policy: EvictionPolicy, rng: random.Random) -> None:
        self.policy = policy
        self.rng = rng
        self.known: set[OffloadKey] = set()
        self.victims: list[OffloadKey] = []

    def run(self, actions: int = 120) -> list[OffloadKey]:
        """Returns all victims in order."""
        for _ in range(actions):
            self.rng.choice(
                (self._insert, self._insert, self._touch, self._remove, self._evict, self._hint)
            )()
            assert len(self.policy) == len(self.known), (len(self.policy), len(self.known))
        return self.victims

    def _insert(self) -> None:
        new = [name for name in _keys(3 * _CAPACITY) if name not in self.known]
        room = _CAPACITY - len(self.known)
        chosen = self.rng.sample(new, min(self.rng.randint(0, 4), room))
        self.policy.insert(_stream(chosen))
        self.known.update(chosen)

    def _touch(self) -> None:
        use = self.rng.choice((self.policy.touch, self.policy.renew))
        use(_stream(self._some()))

    def _hint(self) -> None:
        names = _keys(3 * _CAPACITY)
        chained = self.rng.sample(names, self.rng.randint(0, 6))
        self.policy.chain(chained)
        self.policy.expect(_stream(name for name in chained if name not in self.known))

    def _remove(self) -> None:
        chosen = self._some()[:2]
        self.policy.remove(_stream(chosen))
        self.known.difference_update(chosen)

    def _evict(self) -> None:
        kept = set(self._some())
        count = self.rng.randint(0, 5)
        victims = list(self.policy.evict(count, self._asks_about_known(kept)))
        assert len(victims) == min(count, len(self.known - kept)), (
            victims,
            count,
            len(self.known),
            len(kept),
        )
        assert len(set(victims)) == len(victims), victims
        assert set(victims) <= self.known - kept, (victims, kept)
        self.known.difference_update(victims)
        self.victims.extend(victims)

    def _asks_about_known(self, kept: Collection[OffloadKey]) -> Callable[[OffloadKey], bool]:
        def is_kept(name: OffloadKey) -> bool:
            assert name in self.known, f"{name!r} was never inserted, or has gone"
            return name in kept

        return is_kept

    def _some(self) -> list[OffloadKey]:
        return self.rng.sample(sorted(self.known), self.rng.randint(0, len(self.known)))


def _keys(count: int) -> list[OffloadKey]:
    return [key(number) for number in range(count)]


def _nobody(_: OffloadKey) -> bool:
    return False


def _stream(keys: Iterable[OffloadKey]) -> Iterator[OffloadKey]:
    """An iterable that can be walked once only: the contract promises no more."""
    return iter(list(keys))
