"""An engine that needs a part of each row reads that part, verifies it by itself, and notices every damage in it."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fs_support import HIT, MISS, FaultyDisk, Store, make_key, make_keys, make_rows, payload_of, to_version_1
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout import chunk_format
from kvoffload.layout.chunk_format import (
    file_bytes,
    fitting_piece_bytes,
    header_bytes,
    padded_bytes,
)
from kvoffload.layout.partial import RowShape
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.tiers.chunk_form import WASTE_BYTES
from kvoffload.tiers.fs.options import DirectIo

DONE, MISSING, CORRUPT, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.CORRUPT, Outcome.REJECTED
PAGE, PIECE = 4096, 16384
ROW = 16 * PIECE
SECOND_HALVES = tuple((start + PIECE, PIECE) for start in range(0, ROW, 2 * PIECE))
FAR = ((0, 100), (10 * PIECE + 5, PIECE))
"""At the beginning, and two pieces behind: what lies between is too much to be read in vain."""
FAR_PIECES = {0, 10, 11}


def whole(root: Path, size: int = ROW, piece: int = PIECE, **options: Any) -> Store:
    return Store(root, payload_bytes=(RowShape(size, piece),), **options)


def part(root: Path, ranges: Sequence[tuple[int, int]] = FAR, size: int = ROW, **options: Any) -> Store:
    return Store(root, payload_bytes=(RowShape(size, PIECE, tuple(ranges)),), **options)


def stored(root: Path, keys: Sequence[OffloadKey]) -> Path:
    """Stores whole chunks; returns the file of the first."""
    with whole(root) as store:
        assert store.store(keys) == [DONE] * len(keys)
        return store.path_of(keys[0])


def flip(path: Path, offset: int) -> None:
    """In place, so the file keeps its inode."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


# -- any row, any pieces, any ranges -----------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, tuple[tuple[int, int], ...], int]:
    """(bytes of a row, wanted bytes of a piece, ranges, where a bit is flipped in the file)."""
    size = draw(st.integers(1, 3 * PAGE) | st.integers(1, 300) | st.integers(230 * PAGE, 250 * PAGE))
    piece = draw(st.sampled_from((0, 1, PAGE, 2 * PAGE, 3 * PAGE, PIECE, 5 * PIECE)))
    count = 2 * draw(st.integers(1, 5)) if size > 20 else 2
    bounds = sorted(draw(st.lists(st.integers(0, size), min_size=2, max_size=count, unique=True)))
    ranges = tuple((start, end - start) for start, end in zip(bounds[::2], bounds[1::2], strict=False))
    file = chunk_format.file_bytes(size, fitting_piece_bytes(size, piece))
    return size, piece, ranges, draw(st.integers(0, file - 1))


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cases(), st.sampled_from((DirectIo.AUTO, DirectIo.OFF)))
def test_what_is_read_is_right_and_any_flipped_bit_in_it_is_noticed(
    tmp_path: Path, case: tuple, direct_io: DirectIo
) -> None:
    size, piece, ranges, place = case
    root = tmp_path / "store"
    shutil.rmtree(root, ignore_errors=True)
    key = make_key(1)
    shapes = [RowShape(size, piece), RowShape(size, piece, ranges)]
    options: dict[str, Any] = {"direct_io": direct_io, "threads": 2}
    with Store(root, payload_bytes=shapes[:1], **options) as writer:
        (row,) = make_rows(1, padded_bytes(size))
        row[:size] = payload_of(key, size)
        assert writer.submit(Verb.STORE, [key], [row])
        assert writer.wait()[0].outcomes[key] is DONE
        path = writer.path_of(key)
    length = fitting_piece_bytes(size, piece)
    begin = header_bytes(size, length)
    touched = {number for s, n in ranges for number in range(s // length, (s + n - 1) // length + 1)}
    with Store(root, payload_bytes=shapes[1:], **options) as reader:
        assert load_padded(reader, key, size) is DONE
        flip(path, place)
        at = place - begin
        is_seen = at < 0 or (at < size and at // length in touched)
        is_version = 8 <= place < 12
        expected = (MISSING if is_version else CORRUPT) if is_seen else DONE
        assert load_padded(reader, key, size) is expected
        assert path.exists() == (expected is not CORRUPT)


def load_padded(store: Store, key: OffloadKey, size: int) -> Outcome:
    (row,) = make_rows(1, padded_bytes(size))
    row[:] = b"\x5a" * len(row)
    assert store.submit(Verb.LOAD, [key], [row])
    outcome = store.wait()[0].outcomes[key]
    if outcome is DONE:
        store.check(key, row[:size])
    return outcome


# -- what is read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct_io", [DirectIo.AUTO, DirectIo.OFF])
def test_half_of_a_row_is_half_of_the_bytes(tmp_path: Path, direct_io: DirectIo) -> None:
    keys = make_keys(6)
    stored(tmp_path, keys)
    with part(tmp_path, ((ROW // 2, ROW // 2),), direct_io=direct_io) as store:
        rows = store.rows_for(keys, filled=False)
        assert store.submit(Verb.LOAD, keys, rows)
        (report,) = store.wait()
        assert set(report.outcomes.values()) == {DONE}
        assert report.moved_bytes == 6 * ROW // 2
        assert store.counters()["read_bytes"] == 6 * (ROW // 2 + PAGE)
        for key, row in zip(keys, rows, strict=True):
            store.check(key, row)
            assert bytes(row[: ROW // 2]) == b"\x5a" * (ROW // 2), "read what nobody needs"


def test_a_whole_load_counts_what_it_reads(tmp_path: Path) -> None:
    keys = make_keys(3)
    with whole(tmp_path) as store:
        store.store(keys)
        assert store.load(keys) == [DONE] * 3
        assert store.counters()["read_bytes"] == 3 * file_bytes(ROW, PIECE)


def test_near_parts_come_with_one_read_and_far_ones_with_one_each(tmp_path: Path) -> None:
    key = make_key(1)
    stored(tmp_path, [key])
    # (Gaps of one piece are read in vain, so this is one read, the header included.)
    assert WASTE_BYTES >= PIECE
    for ranges, reads in ((SECOND_HALVES, 1), (FAR, 2), (((5 * PIECE, 1), (9 * PIECE, 1)), 3)):
        disk = FaultyDisk()
        with part(tmp_path, ranges, disk=disk) as store:
            store.wait_for_walk()
            before = Counter(disk.calls)
            assert store.load([key]) == [DONE]
            assert disk.calls["read_into"] - before["read_into"] == reads, ranges


# -- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", range(ROW // PIECE))
def test_a_flipped_byte_in_a_piece_matters_to_those_who_read_it(tmp_path: Path, piece: int) -> None:
    key, other = make_keys(2)
    path = stored(tmp_path, [key, other])
    flip(path, PAGE + piece * PIECE + piece)
    with part(tmp_path) as store:
        assert store.lookup([key, other]) == [HIT, HIT]
        if piece not in FAR_PIECES:
            assert store.load([key, other]) == [DONE, DONE]
            assert "corrupt" not in store.counters()
            return
        assert store.load([key, other]) == [CORRUPT, DONE]
        assert store.counters()["corrupt_payload_checksum"] == 1
        assert not path.exists()
        assert store.lookup([key, other]) == [MISS, HIT]


def test_damage_in_what_is_read_in_vain_does_not_get_into_the_row(tmp_path: Path) -> None:
    """Nobody verifies it, so it goes elsewhere."""
    key = make_key(1)
    path = stored(tmp_path, [key])
    flip(path, PAGE + 4 * PIECE + 7)
    with part(tmp_path, SECOND_HALVES) as store:
        (row,) = rows = store.rows_for([key], filled=False)
        assert store.submit(Verb.LOAD, [key], rows)
        assert store.wait()[0].outcomes[key] is DONE
        store.check(key, row)
        assert store.counters()["read_bytes"] == PAGE + ROW


def test_damage_that_parts_did_not_show_is_found_by_who_reads_the_whole(tmp_path: Path) -> None:
    key = make_key(1)
    path = stored(tmp_path, [key])
    flip(path, PAGE + 5 * PIECE)
    with part(tmp_path) as store:
        assert store.load([key]) == [DONE]
    with whole(tmp_path) as store:
        assert store.load([key]) == [CORRUPT]
        assert store.store([key]) == [DONE]
        assert store.load([key]) == [DONE]


@pytest.mark.parametrize("size", [0, 100, PAGE, PAGE + 1, PAGE + 11 * PIECE, PAGE + ROW - 1])
def test_a_truncated_file_is_dropped_also_if_what_is_needed_is_there(tmp_path: Path, size: int) -> None:
    key = make_key(1)
    path = stored(tmp_path, [key])
    os.truncate(path, size)
    with part(tmp_path) as store:
        assert store.load([key]) == [CORRUPT]
        assert not path.exists()
        assert store.load([key]) == [MISSING]


def test_a_file_that_is_truncated_while_it_is_read_is_dropped(tmp_path: Path) -> None:
    key = make_key(1)
    path = stored(tmp_path, [key])
    disk = FaultyDisk()
    with part(tmp_path, disk=disk) as store:
        store.wait_for_walk()

        def truncate(_fd: int, _buffers: object, offset: int = 0) -> None:
            if offset:
                os.truncate(path, PAGE + PIECE)

        with disk.fault("read_into", truncate):
            assert store.load([key]) == [CORRUPT]
        assert store.counters()["corrupt_length"] == 1


@pytest.mark.parametrize("number", range(ROW // PIECE))
def test_a_damaged_table_is_noticed_whatever_is_read(tmp_path: Path, number: int) -> None:
    key = make_key(1)
    path = stored(tmp_path, [key])
    flip(path, 384 + 16 * number + number)
    with part(tmp_path) as store:
        assert store.load([key]) == [CORRUPT]
        assert store.counters()["corrupt_header_checksum"] == 1
        assert not path.exists()


def test_the_table_of_another_chunk_is_not_believed(tmp_path: Path) -> None:
    """Its header is sound in itself."""
    key, other = make_keys(2)
    path = stored(tmp_path, [key, other])
    with whole(tmp_path) as store:
        header = store.path_of(other).read_bytes()[:PAGE]
    data = path.read_bytes()
    path.write_bytes(header + data[PAGE:])
    with part(tmp_path) as store:
        assert store.load([key, other]) == [CORRUPT, DONE]
        assert store.counters()["corrupt_other_key"] == 1


# -- versions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [ROW, 300 * PIECE])
def test_a_file_of_the_version_before_pieces_is_read_whole(tmp_path: Path, size: int) -> None:
    """Also where its length is another one, as many pieces take more header."""
    key = make_key(1)
    with whole(tmp_path, size) as store:
        store.store([key])
        path = store.path_of(key)
    to_version_1(path)
    assert path.stat().st_size == PAGE + size
    for open_store in (whole, part):
        with open_store(tmp_path, size=size) as store:
            assert store.lookup([key]) == [HIT]
            assert store.load([key]) == [DONE]
            assert store.store([key]) == [DONE]
            assert path.stat().st_size == PAGE + size, "written again for no reason"
            store.walk()
            assert store.lookup([key]) == [HIT]
    flip(path, PAGE + 5 * PIECE)
    with part(tmp_path, size=size) as store:
        assert store.load([key]) == [CORRUPT]


def test_a_chunk_in_other_pieces_than_expected_is_read_whole(tmp_path: Path) -> None:
    key = make_key(1)
    with whole(tmp_path, piece=2 * PIECE) as store:
        store.store([key])
        path = store.path_of(key)
    with part(tmp_path) as store:
        assert store.load([key]) == [DONE]
        assert store.counters()["read_bytes"] > ROW
        flip(path, PAGE + 5 * PIECE)
        assert store.load([key]) == [CORRUPT]


def test_a_later_version_is_a_clean_miss_for_parts(tmp_path: Path) -> None:
    key = make_key(1)
    path = stored(tmp_path, [key])
    data = bytearray(path.read_bytes())
    data[8] = 3
    path.write_bytes(data)
    with part(tmp_path) as store:
        assert store.load([key]) == [MISSING]
        assert store.counters()["unknown_versions"] == 1
        assert path.exists()


# -- other processes and the disk --------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["replaced", "deleted", "replaced by another chunk"])
def test_a_file_that_goes_between_two_reads_is_still_read_as_it_was(tmp_path: Path, change: str) -> None:
    key, other = make_keys(2)
    path = stored(tmp_path, [key, other])
    data = path.read_bytes()
    disk = FaultyDisk()
    with part(tmp_path, disk=disk) as store:
        store.wait_for_walk()

        def replace(_fd: int, _buffers: object, offset: int = 0) -> None:
            if not offset:
                return
            if change == "deleted":
                path.unlink(missing_ok=True)
                return
            new = path.with_suffix(".new")
            new.write_bytes(data if change == "replaced" else store.path_of(other).read_bytes())
            new.rename(path)

        with disk.fault("read_into", replace):
            assert store.load([key]) == [DONE]
        expected = {"replaced": DONE, "deleted": MISSING, "replaced by another chunk": CORRUPT}
        assert store.load([key]) == [expected[change]]


def test_a_good_file_that_took_the_place_of_a_damaged_one_stays(tmp_path: Path) -> None:
    key = make_key(1)
    path = stored(tmp_path, [key])
    data = path.read_bytes()
    flip(path, PAGE)
    disk = FaultyDisk()
    with part(tmp_path, disk=disk) as store:
        store.wait_for_walk()

        def replace(_fd: int, _buffers: object, offset: int = 0) -> None:
            if offset:
                new = path.with_suffix(".new")
                new.write_bytes(data)
                new.rename(path)

        with disk.fault("read_into", replace):
            assert store.load([key]) == [CORRUPT]
        assert path.exists()
        assert store.load([key]) == [DONE]


def test_an_error_in_the_middle_of_the_parts_fails_the_load_and_nothing_else(tmp_path: Path) -> None:
    key = make_key(1)
    path = stored(tmp_path, [key])
    disk = FaultyDisk()
    with part(tmp_path, disk=disk) as store:
        store.wait_for_walk()

        def fail(_fd: int, _buffers: object, offset: int = 0) -> None:
            if offset:
                raise OSError(errno.EIO, "a bad sector")

        with disk.fault("read_into", fail):
            assert store.load([key]) == [Outcome.FAILED]
        assert path.exists()
        assert store.load([key]) == [DONE]


def test_a_read_that_refuses_direct_io_is_made_without_it(tmp_path: Path) -> None:
    key = make_key(1)
    stored(tmp_path, [key])
    disk = FaultyDisk()
    refused: list[int] = []
    with part(tmp_path, disk=disk, direct_io=DirectIo.ON) as store:
        store.wait_for_walk()

        def refuse(_fd: int, _buffers: object, offset: int = 0) -> None:
            if offset and not refused:
                refused.append(offset)
                raise OSError(errno.EINVAL, "not so")

        with disk.fault("read_into", refuse):
            assert store.load([key]) == [DONE]
        assert refused
        assert store.counters()["direct_io_fallbacks"] == 1


def test_what_an_engine_with_parts_would_store_is_refused_and_counted(tmp_path: Path) -> None:
    keys = make_keys(3)
    stored(tmp_path, keys[:1])
    with part(tmp_path) as store:
        assert store.store(keys) == [DONE, REJECTED, REJECTED]
        assert store.counters()["rejected_partial_rows"] == 2
        assert len(store.files()) == 1
        assert store.temps() == []


def test_many_threads_read_many_parts(tmp_path: Path) -> None:
    """Header and waste are each thread's own."""
    keys = make_keys(30)
    stored(tmp_path, keys)
    rng = random.Random(1)
    with part(tmp_path, SECOND_HALVES, threads=8, max_pending_jobs=40) as store:
        jobs = [rng.sample(keys, 12) for _ in range(10)]
        rows = [store.rows_for(job, filled=False) for job in jobs]
        for job, job_rows in zip(jobs, rows, strict=True):
            assert store.submit(Verb.LOAD, job, job_rows)
        reports = store.wait()
        assert len(reports) == 10
        assert all(set(report.outcomes.values()) == {DONE} for report in reports)
        for job, job_rows in zip(jobs, rows, strict=True):
            for key, row in zip(job, job_rows, strict=True):
                store.check(key, row)
