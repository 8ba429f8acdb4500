"""The journal over a long time, and what does not belong into it: it stays short, and nothing in it stops anybody."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from obj_support import drive, make_namespace

from kvoffload.clock import ManualClock
from kvoffload.layout.chunk_format import checksum
from kvoffload.testing.tier_driver import TierDriver, make_keys
from kvoffload.tiers.base import Outcome
from kvoffload.tiers.obj.client import ObjectClient, open_client
from kvoffload.tiers.obj.journal import decode_journal
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.store_view import StoreView
from kvoffload.tiers.obj.sweeping import SweepPlan
from kvoffload.tiers.obj.tier import ObjTier
from kvoffload.tiers.obj.trouble import ObjectError, Trouble
from kvoffload.types import LookupResult

DONE, MISSING = Outcome.DONE, Outcome.MISSING
HOUR = 3600.0
PATIENCE_S = 10.0
_SWEEPING = "kvoffload.tiers.obj.sweeping"
_places = itertools.count()


class Shelf:
    """A store in memory, engines on it, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.config = ObjTierConfig(
            url=f"memory://upkeep-{next(_places)}", threads=4, poll_interval_s=1000.0, call_deadline_s=5.0
        )
        self.clock = ManualClock(time.time())
        self.behind: ObjectClient = open_client(self.config)
        self.engines: list[TierDriver] = []

    def engine(self) -> TierDriver:
        tier = ObjTier(self.config, make_namespace(), (4096, 12288), wall_clock=self.clock)
        tier._follower.refresh()
        self.engines.append(drive(tier))
        return self.engines[-1]

    def journal(self) -> list[str]:
        return sorted(info.name for info in self.behind.list("") if "/journal/" in info.name)

    def write_journal(self, driver: TierDriver, text: bytes) -> str:
        name = driver.tier._around.place.journal_name(self.clock.now_s(), "cd" * 8, next(_places))
        self.behind.put(name, [memoryview(text)], create=True)
        return name


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()
    yield shelf
    for driver in shelf.engines:
        driver.tier.shutdown()


def sweep(driver: TierDriver) -> SweepPlan:
    sweeper: Any = driver.tier.sweeper
    plan: SweepPlan = sweeper.plan(sweeper.survey())
    sweeper.carry_out(plan)
    return plan


def test_what_was_merged_goes_when_it_is_merged_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is: else every merging would leave one more copy of all that is known."""
    monkeypatch.setattr(f"{_SWEEPING}._SMALL_JOURNALS", 6)
    monkeypatch.setattr(f"{_SWEEPING}._SMALL_BYTES", 400)
    driver = shelf.engine()
    keys = make_keys(30)
    for number, key in enumerate(keys):
        driver.store([key])
        if number % 6 == 5:
            shelf.clock.advance(HOUR)
            assert sweep(driver).merged
            assert len(shelf.journal()) == 1
    assert shelf.engine().load(keys) == [DONE] * 30


def test_what_is_merged_is_said_in_parts(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{_SWEEPING}._SMALL_JOURNALS", 6)
    monkeypatch.setattr(f"{_SWEEPING}._SAID_AT_ONCE", 4)
    driver = shelf.engine()
    keys = make_keys(10)
    for key in keys:
        driver.store([key])
    shelf.clock.advance(HOUR)
    sweep(driver)
    said = [decode_journal(shelf.behind.get_whole(name)) for name in shelf.journal()]
    assert sorted(len(events or ()) for events in said) == [2, 4, 4]
    assert shelf.engine().load(keys) == [DONE] * 10


def test_a_later_version_keeps_its_journal_and_what_it_wrote(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{_SWEEPING}._SMALL_JOURNALS", 2)
    driver = shelf.engine()
    later, ours = make_keys(2)
    driver.store([later])
    driver.store([ours])
    (said, _) = shelf.journal()
    body = shelf.behind.get_whole(said).tobytes().partition(b"\n")[2] + b"and more"
    text = b"kvoffload journal 2 " + checksum(body).hex().encode() + b"\n" + body
    shelf.behind.delete([said])
    name = shelf.write_journal(driver, text)
    driver.store(make_keys(1, first=9))
    reader = shelf.engine()
    assert reader.lookup([later, ours]) == [LookupResult.MISS, LookupResult.HIT]
    shelf.clock.advance(10 * HOUR)
    plan = sweep(reader)
    assert (plan.orphans, len(plan.merged)) == ((), 2)
    assert shelf.behind.get_whole(name) == text
    # When the later version has gone, and its journal with it, they are orphans like any other.
    shelf.behind.delete([name])
    assert len(sweep(reader).orphans) == 1


def test_a_journal_object_that_is_too_long_is_not_read_and_stops_nobody(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = shelf.engine()
    name = shelf.write_journal(driver, bytes(5000))
    monkeypatch.setattr("kvoffload.tiers.obj.follower.MAX_JOURNAL_BYTES", 4999)
    driver.store(make_keys(3))
    reader = shelf.engine()
    assert reader.load(make_keys(3)) == [DONE] * 3
    assert "journal_damaged" not in reader.tier.stats().counters
    assert reader.tier.stats().counters["journal_too_long"] > 0
    shelf.clock.advance(HOUR)
    sweep(reader)
    assert name in shelf.journal()


@pytest.mark.parametrize("used", ["NaN", "Infinity", "1e999", "7"])
def test_a_time_of_use_is_a_number(used: str) -> None:
    body = f'[["+","x",{used},[["{"ab" * 36}",0,8192]]]]'.encode()
    text = b"kvoffload journal 1 " + checksum(body).hex().encode() + b"\n" + body
    assert (decode_journal(text) is None) == (used != "7")


def test_a_tool_does_not_count_what_is_gone_without_a_word(shelf: Shelf) -> None:
    """Its writer was killed between deleting and saying so; the tool learns of it and looks for it in one go."""
    driver = shelf.engine()
    for first in (0, 10, 20):
        driver.store(make_keys(4, first=first))
    packs = [info for info in shelf.behind.list("") if info.name.endswith(".pack")]
    shelf.behind.delete([packs[0].name])
    (view,) = StoreView(shelf.config, shelf.clock).select(None)
    survey = view.sweeper.survey()
    assert view.around.catalogue.chunks == 8
    assert view.around.catalogue.size_bytes == survey.data_bytes == 2 * packs[0].size_bytes


@pytest.mark.parametrize("is_reader", [False, True])
def test_a_namespace_says_again_what_it_is_when_a_rule_of_the_bucket_has_removed_that(
    shelf: Shelf, is_reader: bool
) -> None:
    shelf.engine().store(make_keys(3))
    tier = ObjTier(dataclasses.replace(shelf.config, read_only=is_reader), make_namespace(), (4096, 12288))
    name = tier._around.place.namespace_file
    text = shelf.behind.get_whole(name)
    shelf.behind.delete([name])
    tier._upkeep._reconcile()
    tier.shutdown()
    found = [shelf.behind.get_whole(info.name) for info in shelf.behind.list("") if info.name == name]
    assert found == ([] if is_reader else [text])
    assert len(StoreView(shelf.config).select(None)) == len(found)


def test_a_load_does_not_wait_while_somebody_reads_all_of_the_journal() -> None:
    config = ObjTierConfig(
        url=f"memory://upkeep-{next(_places)}", threads=2, poll_interval_s=1000.0, request_timeout_s=0.1,
        call_deadline_s=0.1,
    )  # fmt: skip
    tier = ObjTier(config, make_namespace(), (4096, 12288))
    driver = drive(tier)
    tier._follower.refresh()
    troubles: list[Trouble] = []

    def look() -> None:
        try:
            tier._follower.refresh()
        except ObjectError as error:
            troubles.append(error.trouble)

    with tier._follower._turn:
        # In a thread of its own: without the bound it would wait for us, for ever.
        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        looking.join(PATIENCE_S)
        assert troubles == [Trouble.TIMEOUT]
        assert driver.load(make_keys(2)) == [MISSING] * 2
    tier.shutdown()
