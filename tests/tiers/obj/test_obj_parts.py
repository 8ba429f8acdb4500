"""The parts of the obj tier that need no store: what is packed, what is read together, what the journal says, pauses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obj_support import make_namespace

from kvoffload.clock import ManualClock
from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import file_bytes
from kvoffload.testing.tier_driver import make_key, make_keys
from kvoffload.tiers.base import TierEntry
from kvoffload.tiers.obj.address import endpoint_with_bucket, parse_address
from kvoffload.tiers.obj.catalogue import Catalogue, Location
from kvoffload.tiers.obj.journal import Came, Event, PackedChunk, Went, decode_journal, encode_journal
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.pace import Pacer, ReadTimes
from kvoffload.tiers.obj.place import ObjPlace
from kvoffload.tiers.obj.planning import Reading, Wanted, plan_objects, plan_readings

KEYS = st.integers(0, 30).map(make_key)
SIZES = st.lists(st.integers(1, 50), max_size=40)


@given(SIZES, st.integers(2, 120), st.integers(0, 60))
def test_every_chunk_is_in_one_object_in_order_and_packs_are_no_larger_than_allowed(
    sizes: list[int], pack: int, below: int
) -> None:
    objects = plan_objects(sizes, pack, below)
    assert [position for one in objects for position in one] == list(range(len(sizes)))
    for one in objects:
        if len(one) > 1:
            assert sum(sizes[position] for position in one) <= pack
            assert all(sizes[position] < below for position in one)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 30))
def test_neighbours_share_an_object_as_far_as_they_fit(sizes: list[int], pack: int) -> None:
    objects = plan_objects(sizes, pack, 10)
    for one, after in itertools.pairwise(objects):
        assert sum(sizes[position] for position in one) + sizes[after[0]] > pack


@st.composite
def wanted_parts(draw: st.DrawFn) -> list[Wanted]:
    """Chunks of three objects, in no order, with parts of each."""
    wanted = []
    for number, (name, at) in enumerate(
        draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8)), unique=True, max_size=12))
    ):
        bounds = sorted(draw(st.sets(st.integers(0, 10), min_size=2, max_size=6)))
        parts = tuple(zip(bounds[::2], bounds[1::2], strict=False))
        wanted.append(
            Wanted(TierEntry(make_key(number), memoryview(b"")), Location(name, 10 * at, 10), parts)
        )
    return draw(st.permutations(wanted))


def needed_of(wanted: Sequence[Wanted]) -> set[tuple[str, int]]:
    return {
        (one.at.name, one.at.offset + byte) for one in wanted for part in one.parts for byte in range(*part)
    }


def read_by(readings: Sequence[Reading]) -> list[tuple[str, int]]:
    return [
        (one.name, byte)
        for one in readings
        for start, length in one.spans
        for byte in range(start, start + length)
    ]


@given(wanted_parts(), st.integers(1, 40), st.integers(0, 6))
def test_every_needed_byte_is_read_once_and_every_chunk_by_one_reading(
    wanted: list[Wanted], most: int, gap: int
) -> None:
    readings = plan_readings(wanted, most, gap)
    read = read_by(readings)
    assert len(read) == len(set(read))
    assert needed_of(wanted) <= set(read)
    assert sorted(w.entry.key for one in readings for w in one.wanted) == sorted(w.entry.key for w in wanted)
    for one in readings:
        assert needed_of(one.wanted) <= set(read_by([one])), "a part came with another reading"
        longest = max((end - start for w in one.wanted for start, end in w.parts), default=0)
        assert all(length <= max(most, longest) for _, length in one.spans)


@given(wanted_parts(), st.integers(0, 6))
def test_no_other_choice_of_requests_costs_less(wanted: list[Wanted], gap: int) -> None:
    """A request is worth `gap` bytes: compared with the best way to cut each object's needed bytes into requests."""
    readings = plan_readings(wanted, 10**6, gap)
    cost = len(read_by(readings)) + gap * sum(len(one.spans) for one in readings)
    least = 0
    for name in {one.at.name for one in wanted}:
        needed = sorted(byte for owner, byte in needed_of(wanted) if owner == name)
        cheapest = [0]
        for last in range(len(needed)):
            cheapest.append(
                min(cheapest[first] + gap + needed[last] + 1 - needed[first] for first in range(last + 1))
            )
        least += cheapest[-1]
    assert cost == least


CHUNKS = st.builds(PackedChunk, KEYS, st.integers(0, 2**40), st.integers(1, 2**40))
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        Came, st.text(max_size=20), st.floats(0, 1e10), st.lists(CHUNKS, min_size=1, max_size=5).map(tuple)
    ),
    st.builds(Went, st.text(max_size=20)),
)


@given(st.lists(EVENTS, max_size=8))
@settings(max_examples=50)
def test_the_journal_says_what_was_written(events: list[Event]) -> None:
    assert decode_journal(encode_journal(events)) == events


@given(st.lists(EVENTS, min_size=1, max_size=4), st.data())
@settings(max_examples=50)
def test_a_damaged_journal_says_nothing(events: list[Event], data: st.DataObject) -> None:
    text = bytearray(encode_journal(events))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= data.draw(st.integers(1, 255))
    assert decode_journal(bytes(text)) is None
    assert decode_journal(bytes(text[:at])) is None


@given(st.binary(max_size=200))
def test_strange_bytes_are_no_journal(text: bytes) -> None:
    assert decode_journal(text) is None


NAMES = [f"object {number}" for number in range(6)]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.sampled_from(NAMES), st.lists(KEYS, min_size=1, max_size=5, unique=True)
        ),
        st.tuples(st.just("remove"), st.sampled_from(NAMES), st.just([])),
        st.tuples(st.just("bad"), st.sampled_from(NAMES), st.lists(KEYS, min_size=1, max_size=1)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=80)
def test_the_catalogue_is_what_came_and_did_not_go(steps: list[tuple[str, str, list[OffloadKey]]]) -> None:
    catalogue = Catalogue()
    model: dict[str, list[OffloadKey]] = {}
    bad: set[tuple[str, OffloadKey]] = set()
    for what, name, keys in steps:
        if what == "add":
            bad = {mark for mark in bad if mark[0] != name or name not in model}
            chunks = tuple(PackedChunk(key, 10 * at, 10) for at, key in enumerate(keys))
            catalogue.remove([name])
            bad = {mark for mark in bad if mark[0] != name}
            catalogue.add(Came(name, 1.0, chunks), 0.0)
            model[name] = keys
        elif what == "remove":
            catalogue.remove([name])
            model.pop(name, None)
            bad = {mark for mark in bad if mark[0] != name}
        else:
            catalogue.set_bad(keys[0], name)
            bad.add((name, keys[0]))
        for key in {key for kept in model.values() for key in kept} | set(keys):
            holders = {one for one, kept in model.items() if key in kept and (one, key) not in bad}
            at = catalogue.find(key)
            assert (at is not None) == bool(holders), (key, holders)
            assert at is None or (at.name in holders and at.offset == 10 * model[at.name].index(key))
            assert set(catalogue.holders(key)) == holders
        assert catalogue.size_bytes == sum(10 * len(kept) for kept in model.values())


def test_names_are_told_apart_and_strangers_are_not_ours() -> None:
    place = ObjPlace(make_namespace(), (4096,))
    keys = make_keys(3)
    pack, single = place.object_name(keys), place.object_name(keys[:1])
    assert pack != place.object_name(keys[::-1]), "the order is part of the content"
    assert place.is_data(pack)
    assert place.is_data(single)
    other = ObjPlace(make_namespace("another"), (4096,))
    for name in (pack, single):
        assert not other.is_data(name)
        assert not place.is_data(name + "x")
        assert not place.is_data("x" + name)
    for name in ("namespace.json", f"{place.base}/namespace.json", f"{place.base}/packs/../../x.pack"):
        assert not place.is_data(name)
    journal = place.journal_name(1234.5, "0123456789abcdef", 7)
    assert place.journal_time_s(journal) == 1234.5
    assert place.journal_from(1234.5) < journal < place.journal_from(1234.6)
    assert place.journal_time_s(pack) is None


def test_pauses_double_are_shared_and_end_with_a_success() -> None:
    clock = ManualClock()
    pacer = Pacer(clock, random.Random(1))
    waits = []
    for _ in range(12):
        for _ in range(5):  # five requests at once are one message
            pacer.throttled()
        waits.append(pacer.wait_s())
        clock.advance(waits[-1])
    assert pacer.wait_s() == 0
    for step, wait in enumerate(waits):
        longest = min(5.0, 0.1 * 2**step)
        assert 0.5 * longest <= wait <= longest
    pacer.succeeded()
    pacer.throttled()
    assert pacer.wait_s() <= 0.1


def test_a_read_is_late_when_it_takes_longer_than_most() -> None:
    times = ReadTimes(0.5)
    assert times.late_after_s() == 0.5
    for _ in range(64):
        times.add(0.1)
    assert times.late_after_s() == 0.5
    for _ in range(64):
        times.add(1.0)
    assert times.late_after_s() == 2.0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"url": "s3://"}, "no name of a bucket"),
        ({"url": "file://relative"}, "absolute directory"),
        ({"url": "file:///"}, "absolute directory"),
        ({"url": "s3://bucket/a?b=c"}, "behind '\\?'"),
        ({"threads": 1}, "threads=1"),
        ({"pack_bytes": 4096}, "pack_bytes=4096"),
        ({"ttl_s": 0}, "ttl_s=0"),
        ({"hedge_after_s": -1}, "hedge_after_s=-1"),
        ({"call_deadline_s": 1.0, "request_timeout_s": 2.0}, "at least request_timeout_s=2.0"),
        ({"call_deadline_s": float("nan")}, "call_deadline_s=nan"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ObjTierConfig(**{"url": "s3://bucket/prefix", **options})


def test_addresses_are_read() -> None:
    assert parse_address("s3://bucket/a/b/").text == "s3://bucket/a/b"
    assert parse_address("file:///a/b%20c").prefix == "/a/b c"
    assert parse_address("gs://bucket").prefix == ""
    assert file_bytes(4096) == 8192


def test_a_bucket_may_stand_before_the_name_of_its_endpoint() -> None:
    assert endpoint_with_bucket("https://s3.example.net:9000/x", "b") == "https://b.s3.example.net:9000/x"
    for endpoint in ("http://127.0.0.1:9000", "http://[::1]:9000"):
        with pytest.raises(ConfigError, match="path_style=false"):
            endpoint_with_bucket(endpoint, "b")
