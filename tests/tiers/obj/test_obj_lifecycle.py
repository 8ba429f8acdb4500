"""What happens to objects over time: caps, times to live, orphans, a bucket's own rules, a journal that grows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from obj_support import MemoryPlace, drive, make_namespace, open_tier

from kvoffload.clock import ManualClock
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import file_bytes
from kvoffload.testing.tier_driver import TierDriver, make_keys
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.tiers.obj.journal import Came, PackedChunk, Went, encode_journal
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.sweeping import SweepPlan
from kvoffload.tiers.obj.tier import ObjTier
from kvoffload.types import LookupResult

DONE, MISSING, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED
HIT, MISS = LookupResult.HIT, LookupResult.MISS
CHUNK = file_bytes(4096)
HOUR = 3600.0
_numbers = itertools.count()


class Place(MemoryPlace):
    """A store in memory, engines on it, and a clock that is moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(time.time())

    def engine(self, **options: Any) -> TierDriver:
        settings = {"threads": 4, "poll_interval_s": 1000.0, "reconcile_interval_s": 10_000.0, **options}
        config = ObjTierConfig(url=self.url, **settings)
        tier = ObjTier(config, make_namespace(), (4096, 12288), wall_clock=self.clock)
        tier._follower.refresh()
        self.engines.append(drive(tier))
        return self.engines[-1]

    def names(self, part: str = "") -> list[str]:
        return sorted(info.name for info in self.behind.list("") if part in info.name)


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def sweep(driver: TierDriver) -> SweepPlan:
    """Reconcile and tidy now."""
    sweeper = driver.tier.sweeper
    plan = sweeper.plan(sweeper.survey())
    sweeper.carry_out(plan)
    return plan


def test_what_is_older_than_the_time_to_live_goes_for_everybody(place: Place) -> None:
    one, two = place.engine(ttl_s=HOUR), place.engine()
    keys = make_keys(5)
    one.store(keys)
    assert two.load(keys) == [DONE] * 5
    assert sweep(one).expired == ()
    place.clock.advance(HOUR + 60)
    assert len(sweep(one).expired) == 1
    assert place.names(".pack") == []
    assert one.lookup(keys) == [MISS] * 5
    assert two.load(keys) == [MISSING] * 5
    assert two.lookup(keys) == [MISS] * 5
    assert one.tier.stats().counters["expired"] == 5


def test_what_a_bucket_removes_by_itself_is_a_miss_and_forgotten(place: Place) -> None:
    driver = place.engine(pack_below_bytes=0)
    keys = make_keys(6)
    driver.store(keys)
    place.behind.delete(place.names(".kv")[:3])
    assert driver.tier.stats().stored_chunks == 6
    driver.tier.sweeper.survey()
    assert driver.tier.stats().stored_chunks == 3
    assert driver.tier.stats().stored_bytes == 3 * CHUNK
    place.behind.delete(place.names(".kv"))
    assert driver.load(keys) == [MISSING] * 6
    assert driver.store(keys) == [DONE] * 6
    assert driver.load(keys) == [DONE] * 6


def test_an_object_of_a_writer_that_was_killed_is_found_by_the_next_store(place: Place) -> None:
    one = place.engine()
    keys = make_keys(4)
    one.store(keys)
    place.behind.delete(place.names("/journal/"))
    two = place.engine()
    assert two.lookup(keys) == [MISS] * 4
    assert two.store(keys) == [DONE] * 4
    assert two.tier.stats().counters["stored_by_others"] == 4
    assert "bytes_put" in two.tier.stats().counters
    assert place.engine().load(keys) == [DONE] * 4


def test_orphans_go_when_they_are_old_and_not_before(place: Place) -> None:
    one = place.engine()
    keys = make_keys(4)
    one.store(keys)
    one.store(make_keys(2, first=50))
    orphan = one.tier._around.catalogue.find(keys[0]).name
    # The journal of the first store is lost.
    place.behind.delete(place.names("/journal/")[:1])
    two = place.engine(orphan_grace_s=HOUR)
    assert sweep(two).orphans == ()
    place.clock.advance(2 * HOUR)
    assert [info.name for info in sweep(two).orphans] == [orphan]
    assert orphan not in place.names()
    assert two.load(make_keys(2, first=50)) == [DONE] * 2
    assert two.tier.stats().counters["orphans_removed"] == 1


def test_nothing_is_an_orphan_while_the_journal_knows_it(place: Place) -> None:
    one = place.engine(orphan_grace_s=1.0)
    keys = make_keys(4)
    one.store(keys)
    # As after a read that wrongly found nothing.
    one.tier._around.catalogue.remove([one.tier._around.catalogue.find(keys[0]).name])
    place.clock.advance(HOUR)
    assert sweep(one).orphans == ()
    assert one.load(keys) == [DONE] * 4


def test_many_small_journal_objects_become_one_and_say_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvoffload.tiers.obj.sweeping._SMALL_JOURNALS", 10)
    one, two = place.engine(), place.engine()
    keys = make_keys(12)
    for key in keys:
        one.store([key])
    two.load(keys[:3])
    one.delete(keys[:2])
    assert sweep(one).merged == (), "merged while others may not have read them"
    place.clock.advance(HOUR)
    assert len(sweep(one).merged) == 14
    assert len(place.names("/journal/")) == 1
    assert two.load(keys) == [MISSING] * 2 + [DONE] * 10
    assert place.engine().lookup(keys) == [MISS] * 2 + [HIT] * 10


def test_the_cap_holds_for_what_others_store_as_soon_as_it_is_known(place: Place) -> None:
    one, two = (place.engine(max_bytes=10 * CHUNK, pack_below_bytes=0) for _ in range(2))
    one.store(make_keys(8))
    place.clock.advance(1)
    two.store(make_keys(8, first=20))
    assert len(place.names(".kv")) == 16, "two did not look meanwhile"
    sweep(one)
    assert len(place.names(".kv")) <= 10
    assert sum(outcome is DONE for outcome in one.load(make_keys(8, first=20))) == 8, "the newer ones stay"
    assert two.tier.stats().capacity_bytes == 10 * CHUNK


def test_foreign_objects_are_left_alone(place: Place) -> None:
    driver = place.engine(orphan_grace_s=0.5)
    base = driver.tier._around.place.base
    strangers = ["mine.txt", f"{base}/notes", f"{base}/packs/aa/short.pack", "other_0123456789abcdef/x.kv"]
    for name in strangers:
        place.behind.put(name, [memoryview(b"precious")], create=True)
    driver.store(make_keys(3))
    place.clock.advance(HOUR)
    sweep(driver)
    assert driver.tier.clear()
    left = set(place.names()) - set(place.names("/journal/"))
    assert left == {*strangers, f"{base}/namespace.json"}


def test_what_one_engine_clears_the_others_no_longer_take_for_stored(place: Place) -> None:
    one, two = place.engine(), place.engine()
    keys = make_keys(6)
    one.store(keys)
    assert two.load(keys) == [DONE] * 6
    place.clock.advance(1)
    assert one.tier.clear()
    two.tier._follower.refresh()
    assert two.lookup(keys) == [MISS] * 6
    assert two.tier.stats().stored_bytes == 0
    place.clock.advance(1)
    assert two.store(keys) == [DONE] * 6
    assert one.load(keys) == place.engine().load(keys) == [DONE] * 6


def test_a_tier_that_only_reads_changes_nothing(place: Place) -> None:
    writer = place.engine()
    keys = make_keys(4)
    writer.store(keys)
    before = place.names()
    reader = place.engine(read_only=True, ttl_s=1.0, orphan_grace_s=0.0)
    assert reader.load(keys) == [DONE] * 4
    assert reader.store(make_keys(2, first=9)) == [REJECTED] * 2
    assert reader.delete(keys[:1]) == [Outcome.FAILED]
    place.clock.advance(HOUR)
    assert reader.tier.clear()
    assert reader.lookup(keys) == [MISS] * 4
    assert reader.load(keys) == [MISSING] * 4
    assert place.names() == before
    assert writer.load(keys) == [DONE] * 4
    place.clock.advance(1.0)
    later = make_keys(2, first=30)
    writer.store(later)
    assert reader.load(later) == [DONE] * 2
    assert reader.lookup(later) == [HIT] * 2


def announce(place: Place, driver: TierDriver, *events: Came | Went) -> None:
    """A journal object of a stranger."""
    name = driver.tier._around.place.journal_name(place.clock.now_s(), "ab" * 8, next(_numbers))
    place.behind.put(name, [memoryview(encode_journal(events))], create=True)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../etc/passwd"},
        {"name": "other_0123456789abcdef/aa/bb/cc_g0.kv"},
        {"chunks": (PackedChunk(OffloadKey(b"x" * 32 + bytes(4)), 5, CHUNK),)},
        {"chunks": (PackedChunk(OffloadKey(b"x" * 32 + bytes(4)), 0, CHUNK + 1),)},
        {"chunks": (PackedChunk(OffloadKey(b"x" * 32 + b"\xff" * 4), 0, CHUNK),)},
        {"chunks": (PackedChunk(OffloadKey(b"x" * 32 + bytes(4)), 0, CHUNK),)},
        {"chunks": (PackedChunk(OffloadKey(b"x" + bytes(4)), 0, CHUNK),)},
        {"chunks": (PackedChunk(OffloadKey(b"x" + bytes(4)), 0, CHUNK),) * 2},
    ],
    ids=["path", "other namespace", "offset", "length", "group", "other chunk", "short key", "twice"],
)
def test_a_journal_that_speaks_of_strange_things_is_not_believed(
    change: dict[str, Any], place: Place
) -> None:
    driver = place.engine()
    (key,) = make_keys(1)
    sound = {"name": driver.tier._around.place.object_name([key]), "used_s": place.clock.now_s()}
    announce(place, driver, Came(**{**sound, "chunks": (PackedChunk(key, 0, CHUNK),), **change}))
    driver.tier._follower.refresh()
    assert driver.tier.stats().counters["journal_odd"] == 1
    assert driver.tier.stats().stored_chunks == 0


def test_a_journal_that_lies_costs_nothing(place: Place) -> None:
    driver = place.engine()
    here, there = make_keys(2)
    driver.store([here])
    name = driver.tier._around.place.object_name([here])
    # It says that the object of one chunk holds another one: read so, it would be taken for damaged, and removed.
    announce(place, driver, Came(name, place.clock.now_s(), (PackedChunk(there, 0, CHUNK),)))
    driver.tier._follower.refresh()
    assert driver.lookup([here, there]) == [HIT, MISS]
    assert driver.run(Verb.LOAD, [here, there]) == [DONE, MISSING]


def test_a_damaged_object_is_replaced_by_the_next_store(place: Place) -> None:
    driver = place.engine(pack_below_bytes=0)
    keys = make_keys(3)
    driver.store(keys)
    for name, text in zip(place.names(".kv"), (b"", b"short", bytes(CHUNK)), strict=True):
        place.behind.put(name, [memoryview(text)], create=False)
    assert DONE not in driver.load(keys)
    assert driver.lookup(keys) == [MISS] * 3
    assert driver.store(keys) == [DONE] * 3
    assert driver.load(keys) == [DONE] * 3


def test_a_short_object_that_stands_in_the_way_is_replaced(place: Place) -> None:
    driver = place.engine()
    keys = make_keys(3)
    name = driver.tier._around.place.object_name(keys)
    place.behind.put(name, [memoryview(b"half")], create=True)
    assert driver.store(keys) == [DONE] * 3
    assert driver.load(keys) == [DONE] * 3
    assert driver.tier.stats().counters["replaced_objects"] == 1


def test_of_a_job_that_does_not_fit_as_much_is_kept_as_the_cap_allows(place: Place) -> None:
    driver = place.engine(max_bytes=10 * CHUNK, pack_below_bytes=0)
    driver.store(make_keys(10, first=100))
    keys = make_keys(14)
    found = driver.store(keys)
    # Objects are put side by side: one may find no room although there will be some when another deletion has ended.
    assert 8 <= found.count(DONE) <= 10
    assert found.count(DONE) + found.count(REJECTED) == len(keys)
    assert driver.lookup(keys) == [HIT if outcome is DONE else MISS for outcome in found]


def test_a_lookup_never_asks_the_store(place: Place) -> None:
    driver = place.engine()
    driver.store(make_keys(5))

    def requests() -> int:
        counters = driver.tier.stats().counters
        return sum(count for name, count in counters.items() if name.startswith("requests_"))

    before = requests()
    driver.lookup(make_keys(500))
    assert requests() == before


def test_a_batch_is_one_object_and_neighbours_are_one_read(place: Place) -> None:
    driver = place.engine()
    keys = make_keys(40)
    before = dict(driver.tier.stats().counters)
    driver.store(keys)
    driver.load(keys)
    after = driver.tier.stats().counters
    asked = {name: after[name] - before.get(name, 0) for name in after if name.startswith("requests_")}
    assert asked["requests_put"] == 2, "the pack and the journal"
    assert asked["requests_get"] == 1


def test_two_who_store_the_same_batch_keep_it_once(place: Place) -> None:
    one, two = place.engine(), place.engine()
    keys = make_keys(10)
    one.start(Verb.STORE, keys)
    two.start(Verb.STORE, keys)
    one.finish()
    two.finish()
    assert len(place.names(".pack")) == 1
    assert one.load(keys) == two.load(keys) == [DONE] * 10


def test_an_engine_of_another_configuration_is_apart(place: Place) -> None:
    one = place.engine()
    other = open_tier(place.url)
    other.shutdown()
    stranger = ObjTier(ObjTierConfig(url=place.url), make_namespace("another"), (4096,))
    keys = make_keys(3)
    one.store(keys)
    theirs = drive(stranger)
    assert theirs.load(keys) == [MISSING] * 3
    stranger.shutdown()


def bytes_there(place: Place) -> int:
    return sum(info.size_bytes for info in place.behind.list("") if info.name.endswith((".kv", ".pack")))


def test_engines_that_store_at_once_go_beyond_the_cap_by_what_they_did_not_see(place: Place) -> None:
    """And by no more; the first of them that looks takes it away, the others find nothing left to do."""
    cap = 8 * CHUNK
    engines = [place.engine(max_bytes=cap, pack_below_bytes=0) for _ in range(3)]
    engines[0].store(make_keys(8))
    for engine in engines:
        engine.tier._upkeep.look()
    for number, engine in enumerate(engines):
        engine.store(make_keys(4, first=100 * (number + 1)))
    # Each has seen its own four, and made room for them: all of them by the same deletions.
    assert cap < bytes_there(place) <= cap + 2 * 4 * CHUNK
    engines[0].tier._upkeep.look()
    assert bytes_there(place) == cap
    for engine in engines:
        engine.tier._upkeep.look()
    assert bytes_there(place) == cap, "two made room for the same"
    assert [engine.tier.stats().stored_bytes for engine in engines] == [cap] * 3


def test_an_engine_that_only_reads_removes_nothing_for_the_cap(place: Place) -> None:
    place.engine(pack_below_bytes=0).store(make_keys(6))
    reader = place.engine(max_bytes=2 * CHUNK, read_only=True)
    reader.tier._upkeep.look()
    assert bytes_there(place) == 6 * CHUNK
