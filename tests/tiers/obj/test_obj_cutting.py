"""How jobs of the obj tier become requests: batches fill packs exactly, parts of a load are one read each, and run together."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obj_support import QUICK, drive, make_namespace

from kvoffload.layout.chunk_format import HEADER_BYTES
from kvoffload.testing.tier_driver import TierDriver, make_key, make_keys
from kvoffload.tiers.base import Outcome, TierEntry
from kvoffload.tiers.obj.catalogue import Location
from kvoffload.tiers.obj.client import ObjectClient, open_client
from kvoffload.tiers.obj.copying import copy_into
from kvoffload.tiers.obj.cutting import parts_to_read
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.planning import Wanted, plan_readings
from kvoffload.tiers.obj.tier import ObjTier
from kvoffload.tiers.obj.trouble import ObjectError, Trouble

DONE, FAILED = Outcome.DONE, Outcome.FAILED
PATIENCE_S = 20.0
PAYLOAD = 4096
FILE = PAYLOAD + HEADER_BYTES
_places = itertools.count()


class MeetingClient(ObjectClient):
    """A real store whose reads of chunks begin only when so many are there; and that may be out of order."""

    def __init__(self, inner: ObjectClient, together: int) -> None:
        super().__init__(inner._store)
        self.meeting = threading.Barrier(together)
        self.is_away = False
        self.refused: list[str] = []

    def put(self, name: str, parts: Sequence[memoryview], *, create: bool) -> None:
        self._pass(name)
        super().put(name, parts, create=create)

    def get(self, name: str, start: int, length: int) -> memoryview:
        self.meeting.wait(PATIENCE_S)
        self._pass(name)
        return super().get(name, start, length)

    def _pass(self, name: str) -> None:
        if self.is_away:
            self.refused.append(name)
            raise ObjectError(Trouble.TIMEOUT)


def make(together: int = 1, **options: object) -> tuple[TierDriver, MeetingClient]:
    url = f"memory://cutting-{next(_places)}"
    config = ObjTierConfig(url=url, **{**QUICK, "hedge_after_s": 0.0, "poll_interval_s": 1000.0, **options})
    client = MeetingClient(open_client(config), together)
    return drive(ObjTier(config, make_namespace(), (PAYLOAD,), client=client), (PAYLOAD,)), client


def counted(driver: TierDriver, name: str) -> int:
    return driver.tier.stats().counters.get(name, 0)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), unique=True, max_size=30),
    st.lists(st.integers(100, 110), max_size=5, unique=True),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_a_part_of_a_load_is_one_read_and_neighbours_are_together_as_far_as_they_fit(
    places: list[tuple[str, int]], unknown: list[int], most: int, rng: random.Random
) -> None:
    row = memoryview(bytes(PAYLOAD))
    where = {make_key(number): Location(name, FILE * at, FILE) for number, (name, at) in enumerate(places)}
    entries = [TierEntry(key, row) for key in [*where, *map(make_key, unknown)]]
    rng.shuffle(entries)
    parts = parts_to_read(entries, where.get, PAYLOAD * most)
    assert sorted(entry.key for part in parts for entry in part) == sorted(entry.key for entry in entries)
    for part in parts:
        assert 0 < len(part) <= most
        found = [Wanted(entry, where[entry.key], ((0, FILE),)) for entry in part if entry.key in where]
        assert len(found) in (0, len(part)), "what is known waits for what is not"
        assert len(plan_readings(found, FILE * most, 0)) <= 1
    for before, after in itertools.pairwise(parts):
        last, first = where.get(before[-1].key), where.get(after[0].key)
        if last is not None and first is not None:
            are_neighbours = (last.name, last.offset + FILE) == (first.name, first.offset)
            assert not are_neighbours or len(before) == most


@pytest.mark.parametrize("packs", [1, 3])
def test_a_batch_of_just_a_pack_s_size_is_one_object_and_one_journal_entry(packs: int) -> None:
    driver, _ = make(pack_bytes=4 * PAYLOAD)
    before = counted(driver, "requests_put")
    assert driver.store(make_keys(4 * packs)) == [DONE] * 4 * packs
    names = {held.name for held in driver.tier._around.catalogue.objects()}
    assert len(names) == packs
    assert packs + 1 <= counted(driver, "requests_put") - before <= 2 * packs


def test_a_load_of_just_a_span_s_size_is_one_request() -> None:
    driver, _ = make(pack_bytes=8 * PAYLOAD, read_span_bytes=4 * PAYLOAD)
    keys = make_keys(8)
    driver.store(keys)
    before = counted(driver, "requests_get")
    assert driver.load(keys) == [DONE] * 8
    assert counted(driver, "requests_get") - before == 2


def test_equal_batches_become_equal_objects_whatever_else_is_done() -> None:
    names = []
    for threads in (2, 7):
        driver, _ = make(pack_bytes=3 * PAYLOAD, threads=threads)
        driver.store(make_keys(10))
        names.append({held.name for held in driver.tier._around.catalogue.objects()})
    assert names[0] == names[1]


def test_chunks_that_lie_apart_are_read_at_the_same_time() -> None:
    driver, _ = make(together=4, threads=4)
    keys = make_keys(4)
    for key in keys:
        driver.store([key])
    # Who reads them one after the other waits for the others in vain.
    assert driver.load(keys) == [DONE] * 4


@pytest.mark.parametrize("verb", ["load", "store"])
def test_a_job_does_not_try_more_when_a_request_has_failed_for_good(verb: str) -> None:
    driver, client = make(threads=2, pack_below_bytes=0, call_retries=0)
    old, new = make_keys(12), make_keys(12, first=20)
    driver.store(old)
    client.is_away = True
    end = driver.load(old) if verb == "load" else driver.store(new)
    assert end == [FAILED] * 12
    assert len(client.refused) <= 2, "more than one for each thread"
    assert counted(driver, f"{'reads' if verb == 'load' else 'writes'}_not_tried") >= 10
    client.is_away = False
    assert driver.load(old) == [DONE] * 12, "a later job is not to suffer"


@given(st.binary(min_size=1, max_size=50), st.integers(0, 20))
def test_a_copy_writes_the_beginning_of_a_row_and_nothing_else(data: bytes, more: int) -> None:
    row = bytearray(b"\xa5" * (len(data) + more))
    copy_into(memoryview(row), memoryview(data))
    assert row == data + b"\xa5" * more
