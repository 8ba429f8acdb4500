"""Who meets whom at a bad moment: stores, loads, deletions and resets of one process, and journals that come late."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from obj_support import QUICK, drive, make_namespace

from kvoffload.clock import ManualClock
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.testing.tier_driver import TierDriver, make_keys
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.tiers.obj.client import ObjectClient, open_client
from kvoffload.tiers.obj.journal import Came, PackedChunk, encode_journal
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.tier import ObjTier
from kvoffload.types import LookupResult

DONE, MISSING = Outcome.DONE, Outcome.MISSING
PATIENCE_S = 20.0
_places = itertools.count()


class Gate:
    """Holds whoever comes to it, if it is closed."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.reached = threading.Event()

    def close(self) -> None:
        self.is_open.clear()
        self.reached.clear()

    def open(self) -> None:
        self.is_open.set()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.is_open.wait(PATIENCE_S)


class GatedClient(ObjectClient):
    """A real store, with gates before and behind some verbs for objects with chunks."""

    def __init__(self, inner: ObjectClient) -> None:
        super().__init__(inner._store)
        self.before_delete, self.after_delete, self.after_put = Gate(), Gate(), Gate()
        self.after_journal = Gate()

    def delete(self, names: Sequence[str]) -> None:
        self.before_delete.pass_through()
        super().delete(names)
        self.after_delete.pass_through()

    def put(self, name: str, parts: Sequence[memoryview], *, create: bool) -> None:
        super().put(name, parts, create=create)
        if "/journal/" not in name:
            self.after_put.pass_through()
        elif b'["+"' in bytes(parts[0]):
            # What a reset says is not held: it would wait for whom it overtakes.
            self.after_journal.pass_through()


@pytest.fixture
def gated() -> Iterator[tuple[TierDriver, GatedClient]]:
    config = ObjTierConfig(url=f"memory://races-{next(_places)}", **{**QUICK, "poll_interval_s": 1000.0})
    client = GatedClient(open_client(config))
    tier = ObjTier(config, make_namespace(), (4096, 12288), client=client)
    yield drive(tier), client
    for gate in (client.before_delete, client.after_delete, client.after_put, client.after_journal):
        gate.open()
    tier.shutdown()


def wait_for(gate: Gate) -> None:
    assert gate.reached.wait(PATIENCE_S)


def test_a_store_that_meets_a_deletion_is_there_or_is_not_but_never_said_to_be(
    gated: tuple[TierDriver, GatedClient],
) -> None:
    driver, client = gated
    keys = make_keys(3)
    driver.store(keys)
    client.before_delete.close()
    driver.start(Verb.DELETE, keys)
    wait_for(client.before_delete)
    store = driver.start(Verb.STORE, keys)
    driver.settle(driver.tier)
    client.before_delete.open()
    driver.finish()
    assert store.outcomes() == [DONE] * 3
    assert driver.lookup(keys) == [LookupResult.HIT] * 3
    assert driver.load(keys) == [DONE] * 3


@pytest.mark.parametrize("which", ["before_delete", "after_delete"])
def test_what_is_left_of_a_pack_can_be_loaded_at_any_moment(
    which: str, gated: tuple[TierDriver, GatedClient]
) -> None:
    driver, client = gated
    keys = make_keys(4)
    driver.store(keys)
    gate: Gate = getattr(client, which)
    gate.close()
    deletion = driver.start(Verb.DELETE, keys[:1])
    wait_for(gate)
    load = driver.start(Verb.LOAD, keys[1:])
    driver.until(lambda: load.report is not None, "does not load while it deletes")
    assert load.outcomes() == [DONE] * 3
    gate.open()
    driver.finish()
    assert deletion.outcomes() == [DONE]
    assert driver.load(keys) == [MISSING] + [DONE] * 3


def test_a_store_that_a_reset_overtakes_leaves_no_object(gated: tuple[TierDriver, GatedClient]) -> None:
    driver, client = gated
    keys = make_keys(3)
    client.after_put.close()
    driver.start(Verb.STORE, keys)
    wait_for(client.after_put)
    # It was put after the reset had listed what is there.
    clearing = ObjectClient.list
    client.list = lambda prefix, after=None: iter([])  # type: ignore[method-assign]
    assert driver.tier.clear()
    client.list = clearing.__get__(client)  # type: ignore[method-assign]
    client.after_put.open()
    driver.finish()
    assert driver.lookup(keys) == [LookupResult.MISS] * 3
    assert not [info.name for info in client.list("") if ".pack" in info.name]


def test_a_store_that_a_reset_overtakes_while_it_is_announced_leaves_nothing(
    gated: tuple[TierDriver, GatedClient],
) -> None:
    driver, client = gated
    keys = make_keys(3)
    client.after_journal.close()
    driver.start(Verb.STORE, keys)
    wait_for(client.after_journal)
    assert driver.tier.clear()
    client.after_journal.open()
    driver.finish()
    assert driver.lookup(keys) == [LookupResult.MISS] * 3
    assert driver.load(keys) == [MISSING] * 3


def test_a_deletion_that_a_reset_overtakes_brings_nothing_back(
    gated: tuple[TierDriver, GatedClient],
) -> None:
    driver, client = gated
    keys = make_keys(4)
    driver.store(keys)
    client.after_put.close()
    driver.start(Verb.DELETE, keys[:1])
    wait_for(client.after_put)  # the rest of the pack was written
    assert driver.tier.clear()
    client.after_put.open()
    driver.finish()
    assert driver.lookup(keys) == [LookupResult.MISS] * 4
    assert not [info.name for info in client.list("") if ".pack" in info.name]


class Follow:
    """A tier that reads what strangers announce, at times that the test says."""

    def __init__(self) -> None:
        self.clock = ManualClock(time.time())
        config = ObjTierConfig(url=f"memory://follow-{next(_places)}", **{**QUICK, "poll_interval_s": 1000.0})
        self.tier = ObjTier(config, make_namespace(), (4096,), wall_clock=self.clock)
        self.client = open_client(config)

    def announce(self, key: OffloadKey, time_s: float) -> None:
        place = self.tier._around.place
        chunk = PackedChunk(key, 0, place.file_bytes_of(key))
        text = encode_journal([Came(place.object_name([key]), time_s, (chunk,))])
        name = place.journal_name(time_s, "ab" * 8, next(_places))
        self.client.put(name, [memoryview(text)], create=True)

    def knows(self, key: OffloadKey) -> bool:
        self.tier._follower.refresh()
        return self.tier._around.catalogue.find(key) is not None


@pytest.fixture
def follow() -> Iterator[Follow]:
    follow = Follow()
    yield follow
    follow.tier.shutdown()


def test_what_is_announced_late_or_by_a_slow_clock_is_found(follow: Follow) -> None:
    early, late, later = make_keys(3)
    now_s = follow.clock.now_s()
    follow.announce(early, now_s)
    assert follow.knows(early)
    follow.announce(late, now_s - 50)
    assert follow.knows(late)
    follow.clock.advance(30)
    follow.announce(later, now_s - 20)
    assert follow.knows(later)


def test_a_clock_that_is_far_ahead_hides_nobody(follow: Follow) -> None:
    ahead, normal = make_keys(2)
    follow.announce(ahead, follow.clock.now_s() + 1e6)
    assert follow.knows(ahead)
    follow.clock.advance(5)
    follow.announce(normal, follow.clock.now_s())
    assert follow.knows(normal)


def test_a_journal_object_is_read_once(follow: Follow) -> None:
    for number, key in enumerate(make_keys(5)):
        follow.announce(key, follow.clock.now_s() - number)
    for _ in range(3):
        follow.tier._follower.refresh()
    assert follow.tier.stats().counters["journal_read"] == 5


def test_those_who_ask_at_the_same_time_share_a_look(follow: Follow) -> None:
    listings = lambda: follow.tier.stats().counters["requests_list"]  # noqa: E731
    follow.tier._follower.refresh()
    follower = follow.tier._follower
    before = listings()
    refresh: Callable[[], None] = follower.refresh
    follower._turn.acquire()
    threads = [threading.Thread(target=refresh) for _ in range(8)]
    for thread in threads:
        thread.start()
    while follower._last_ticket < follower._covered + 8:
        time.sleep(0.001)
    follower._turn.release()
    for thread in threads:
        thread.join()
    assert listings() - before == 1
