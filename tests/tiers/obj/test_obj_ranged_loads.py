"""An engine that needs a part of each row reads that part by range, proves it by itself, and notices damage in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obj_support import MemoryPlace, drive, make_namespace, open_tier

from kvoffload.clock import MonotonicClock, WallClock
from kvoffload.layout.chunk_format import file_bytes, header_bytes
from kvoffload.layout.partial import RowShape
from kvoffload.testing.tier_driver import TierDriver, make_keys
from kvoffload.tiers.base import Outcome, TierContext
from kvoffload.tiers.fs.options import FsTierConfig
from kvoffload.tiers.fs.tier import FsTier
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.tier import ObjTier

DONE, MISSING, CORRUPT = Outcome.DONE, Outcome.MISSING, Outcome.CORRUPT
PIECE = 4096
SIZE = 16 * PIECE
WHOLE = RowShape(SIZE, PIECE)
HEADS = RowShape(SIZE, PIECE, tuple((start * PIECE, PIECE) for start in (1, 5, 9, 13)))
"""Every fourth piece: one of four ranks."""
CREATED_AT = 104
CHUNK = file_bytes(SIZE, PIECE)


class Place(MemoryPlace):
    """A store in memory and engines on it."""

    def engine(self, shape: RowShape, **options: Any) -> TierDriver:
        quiet = {"poll_interval_s": 1000.0, "reconcile_interval_s": 10_000.0, "range_gap_bytes": 0}
        self.engines.append(drive(open_tier(self.url, [shape], **{**quiet, **options}), [shape]))
        return self.engines[-1]

    def damage(self, at: int) -> None:
        """Turn one byte of the only object with chunks."""
        (name,) = [info.name for info in self.behind.list("") if info.name.endswith((".kv", ".pack"))]
        data = bytearray(self.behind.get_whole(name))
        data[at] ^= 1
        self.behind.put(name, [memoryview(data)], create=False)


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def read_bytes(driver: TierDriver, count: int) -> tuple[int, int]:
    """(bytes, requests) that a load of the first chunks takes."""
    keys = make_keys(count)
    driver.tier._follower.refresh()
    before = driver.tier.stats().counters
    assert driver.load(keys) == [DONE] * count
    after = driver.tier.stats().counters
    return tuple(after[name] - before.get(name, 0) for name in ("bytes_got", "requests_get"))  # type: ignore[return-value]


def test_a_rank_of_four_reads_a_quarter_and_the_headers(place: Place) -> None:
    place.engine(WHOLE).store(make_keys(3))
    assert read_bytes(place.engine(HEADS), 3) == (3 * (PIECE + SIZE // 4), 3 * 5)
    assert read_bytes(place.engine(WHOLE), 3) == (3 * CHUNK, 1)


def test_requests_are_saved_where_they_are_worth_more_than_the_gaps(place: Place) -> None:
    place.engine(WHOLE).store(make_keys(3))
    # All but what lies before the first header (nothing) and behind the last part.
    assert read_bytes(place.engine(HEADS, range_gap_bytes=3 * PIECE), 3) == (3 * CHUNK - 2 * PIECE, 1)
    assert read_bytes(place.engine(HEADS, range_gap_bytes=PIECE), 3) == (3 * (PIECE + 5 * PIECE), 3 * 4)


@pytest.mark.parametrize("pack_below_bytes", [0, 10**6])
def test_damage_counts_where_it_is_needed_and_only_there(place: Place, pack_below_bytes: int) -> None:
    writer = place.engine(WHOLE, pack_below_bytes=pack_below_bytes)
    writer.store(make_keys(1))
    reader = place.engine(HEADS)
    place.damage(PIECE + 2 * PIECE + 5)
    assert reader.load(make_keys(1)) == [DONE]
    place.damage(PIECE + 5 * PIECE + 5)
    assert reader.load(make_keys(1)) == [CORRUPT], "the driver sees that the row holds nothing false"
    assert reader.load(make_keys(1)) == [MISSING]
    assert place.engine(WHOLE).load(make_keys(1)) == [MISSING], "it is there still"


def test_damage_in_one_chunk_of_a_pack_takes_that_one_out(place: Place) -> None:
    keys = make_keys(4)
    place.engine(WHOLE).store(keys)
    reader = place.engine(HEADS)
    place.damage(2 * CHUNK + PIECE + 9 * PIECE)
    assert reader.load(keys) == [DONE, DONE, CORRUPT, DONE]
    assert reader.load(keys) == [DONE, DONE, MISSING, DONE], "what is left was written anew, pieces and all"
    assert place.engine(WHOLE).load(keys) == [DONE, DONE, MISSING, DONE]


@pytest.mark.parametrize("pieces", [16, 300])
def test_a_chunk_in_one_piece_is_read_whole_and_served(place: Place, pieces: int) -> None:
    """As everything was before there were pieces; the header of 300 pieces is longer than that of one."""
    size = pieces * PIECE
    place.engine(RowShape(size)).store(make_keys(2))
    part = RowShape(size, PIECE, ((PIECE, PIECE), (11 * PIECE, 7)))
    assert (header_bytes(size, PIECE) == PIECE) == (pieces == 16)
    reader = place.engine(part)
    assert reader.load(make_keys(2)) == [DONE] * 2
    assert reader.tier.stats().counters.get("corrupt", 0) == 0
    assert place.engine(RowShape(size, PIECE)).load(make_keys(2)) == [DONE] * 2


def test_a_long_header_comes_with_all_of_its_pages(place: Place) -> None:
    size = 300 * PIECE
    place.engine(RowShape(size, PIECE)).store(make_keys(2))
    shape = RowShape(size, PIECE, ((290 * PIECE + 1, 5),))
    assert read_bytes(place.engine(shape), 2) == (2 * (2 * PIECE + PIECE), 2 * 2)


def test_an_object_has_the_same_bytes_as_a_file(place: Place, tmp_path: Path) -> None:
    driver = place.engine(WHOLE, pack_below_bytes=0)
    config = FsTierConfig(root_dir=str(tmp_path), min_free_bytes=0, threads=2)
    other = drive(
        FsTier(config, make_namespace(), [WHOLE], clock=MonotonicClock(), wall_clock=WallClock()), [WHOLE]
    )
    (key,) = make_keys(1)
    assert driver.store([key]) == other.store([key]) == [DONE]
    other.tier.shutdown()
    name = driver.tier._around.place.object_name([key])
    found, right = bytearray(place.behind.get_whole(name)), bytearray((tmp_path / name).read_bytes())
    # The time of creation differs, and so does the checksum of the header at the end of its page.
    for data in (found, right):
        data[CREATED_AT : CREATED_AT + 8] = bytes(8)
        data[PIECE - 16 : PIECE] = bytes(16)
    assert found == right


def test_an_engine_tells_its_ranges_when_it_opens_the_tier(place: Place) -> None:
    place.engine(WHOLE).store(make_keys(2))
    options = ObjTierConfig(url=place.url, threads=2, range_gap_bytes=0)
    driver = drive(ObjTier.open(options, TierContext(make_namespace(), (SIZE,), (HEADS,))), [HEADS])
    place.engines.append(driver)
    assert read_bytes(driver, 2) == (2 * (PIECE + SIZE // 4), 2 * 5)
