"""A region of one worker: its mapping, views, limits, population and end."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

from kvoffload.errors import RegionError, RegionJoinError, RegionSizeError
from kvoffload.memory import backing, populate
from kvoffload.memory.limits import MemoryLimit
from kvoffload.memory.plan import plan_region
from kvoffload.memory.populate import BackgroundPopulation
from kvoffload.memory.region_spec import MemoryKind, SocketKind
from kvoffload.memory.shared_region import SharedOffloadRegion


def descriptors() -> set[str]:
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(path.readlink()))
    return found


def is_mapped() -> bool:
    maps = Path("/proc/self/maps").read_text()
    return "memfd:kvoffload" in maps or "/dev/shm/" in maps


def test_rows_are_writable_views_of_their_part_of_the_region(make_spec):
    plan = plan_region(20 * 4096, [4096, 5000])
    with SharedOffloadRegion.open(make_spec(plan=plan), 0) as region:
        assert region.array.shape == (plan.total_bytes,)
        assert region.array.dtype == np.uint8
        assert not region.array.any()
        for group, area in enumerate(plan.groups):
            rows = region.rows(group)
            assert rows.shape == (area.rows, area.row_stride_bytes)
            rows[-1, -1] = group + 1
            assert region.array[area.first_byte + area.size_bytes - 1] == group + 1
        assert np.count_nonzero(region.array) == 2


@pytest.mark.parametrize("budget", [4096, 8191, 100_003, 10**7 + 1])
def test_mapped_is_at_most_one_row_below_the_request_and_never_above(make_spec, budget):
    plan = plan_region(budget, [4097 if budget > 8191 else 4096])
    with SharedOffloadRegion.open(make_spec(plan=plan), 0) as region:
        assert budget - plan.groups[0].row_stride_bytes < region.array.nbytes <= budget


def test_every_kind_of_memory_and_socket_works_alone(make_spec, memory_kind, socket_kind):
    spec = make_spec(memory_kinds=(memory_kind,), socket_kinds=(socket_kind,))
    with SharedOffloadRegion.open(spec, 0) as region:
        region.array[:] = 7
        with SharedOffloadRegion.attach(spec, 5) as attached:
            assert (attached.array == 7).all()
        assert not [path for path in Path("/dev/shm").iterdir() if "kvoffload" in path.name]
    assert not list(spec.socket_dir.glob("*/*.sock"))


# -- limits ------------------------------------------------------------------------------------------------


def test_too_big_is_refused_before_anything_is_made(make_spec, machine, monkeypatch):
    monkeypatch.setattr(backing, "_OPEN", {})
    spec = make_spec(rows=1000, limit_roots=machine(1_000_000 // 1024 * 1024))
    with pytest.raises(RegionSizeError) as caught:
        SharedOffloadRegion.open(spec, 0)
    message = str(caught.value)
    assert "needed 7.81 MiB (8192000 bytes)" in message
    assert "available 976.00 KiB (999424 bytes)" in message
    assert "meminfo MemAvailable" in message
    assert "lower cpu_bytes_to_use to at most 999424 bytes" in message
    assert "\n" not in message


def test_more_than_this_machine_has_is_refused(make_spec):
    with pytest.raises(RegionSizeError, match=r"needed .*available .*cpu_bytes_to_use"):
        SharedOffloadRegion.open(make_spec(plan=plan_region(2**50, [2**20])), 0)


def test_exactly_what_is_available_fits(make_spec, machine):
    with SharedOffloadRegion.open(make_spec(rows=2, limit_roots=machine(16384)), 0) as region:
        assert region.array.nbytes == 16384


def test_a_shm_directory_that_is_too_small_is_a_size_error_and_not_a_bad_address_later(
    make_spec, monkeypatch
):
    monkeypatch.setattr(backing, "directory_limit", lambda path: MemoryLimit(4096, f"space left in {path}"))
    spec = make_spec(memory_kinds=(MemoryKind.NAMED_FILE,))
    with pytest.raises(RegionSizeError, match=r"available 4.00 KiB .*space left in /dev/shm.*--shm-size"):
        SharedOffloadRegion.open(spec, 0)


def test_without_memfd_a_file_serves_and_without_that_the_error_says_all_that_was_tried(
    make_spec, monkeypatch, tmp_path
):
    def forbidden(*_):
        raise PermissionError(errno.EPERM, "seccomp says no")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    with SharedOffloadRegion.open(make_spec(), 0) as region:
        region.array[0] = 1
    with pytest.raises(RegionError, match=r"memfd: .*seccomp.*unnamed_file: .*named_file: ") as caught:
        SharedOffloadRegion.open(make_spec(shm_dir=tmp_path / "nowhere"), 0)
    assert type(caught.value) is RegionError


def test_old_kernels_without_the_noexec_flag_still_give_a_memfd(make_spec, monkeypatch):
    real = os.memfd_create

    def old(name, flags):
        if flags & 0x8:
            raise OSError(errno.EINVAL, "unknown flag")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", old)
    with SharedOffloadRegion.open(make_spec(memory_kinds=(MemoryKind.MEMFD,)), 0) as region:
        region.array[0] = 1


def test_nobody_can_shrink_the_memory_under_a_mapping(make_spec):
    memory = backing.make_memory(make_spec())
    try:
        for size in (0, 10**6):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.descriptor, size)
    finally:
        os.close(memory.descriptor)


def test_memory_of_another_size_is_not_mapped(make_spec):
    memory = backing.make_memory(make_spec(rows=3))
    try:
        with pytest.raises(RegionError, match=r"24576 bytes.*expected are .*32768 bytes"):
            backing.map_memory(memory.descriptor, make_spec(rows=4))
    finally:
        os.close(memory.descriptor)


def test_the_region_stays_out_of_core_files(make_spec):
    with SharedOffloadRegion.open(make_spec(), 0):
        _, _, entry = Path("/proc/self/smaps").read_text().partition("memfd:kvoffload")
        flags = next(line for line in entry.splitlines() if line.startswith("VmFlags:"))
        assert "dd" in flags.split()


# -- the end -----------------------------------------------------------------------------------------------


def test_close_gives_everything_back_and_may_be_repeated(make_spec):
    threads, before = threading.active_count(), descriptors()
    region = SharedOffloadRegion.open(make_spec(), 0)
    region.populate_in_background()
    assert is_mapped()
    region.close()
    region.close()
    assert region.closed
    assert not is_mapped()
    assert threading.active_count() == threads
    assert descriptors() == before


def test_arrays_stay_valid_after_close_and_the_mapping_goes_with_the_last(make_spec):
    region = SharedOffloadRegion.open(make_spec(), 0)
    rows = region.rows(0)
    region.close()
    rows[:] = 3
    assert rows.sum() == 3 * rows.size
    assert is_mapped()
    del rows
    gc.collect()
    assert not is_mapped()


def test_a_forgotten_region_gives_everything_back(make_spec):
    threads = threading.active_count()
    region = SharedOffloadRegion.open(make_spec(), 0)
    del region
    gc.collect()
    assert not is_mapped()
    assert threading.active_count() == threads


def test_the_same_engine_can_open_again_after_close(make_spec, socket_kind):
    for _ in range(3):
        with SharedOffloadRegion.open(make_spec(socket_kinds=(socket_kind,)), 0) as region:
            assert not region.array.any()
            region.array[:] = 1


def test_a_second_engine_with_the_same_id_is_told_who_has_it(make_spec, socket_kind):
    spec = make_spec(socket_kinds=(socket_kind,))
    with SharedOffloadRegion.open(spec, 0) as region:
        region.array[0] = 9
        with pytest.raises(RegionJoinError, match=rf"pid {os.getpid()} .*another engine_id") as caught:
            SharedOffloadRegion.open(spec, 0)
        assert spec.engine_id in str(caught.value)
        with SharedOffloadRegion.attach(spec, 5) as attached:
            assert attached.array[0] == 9


@pytest.mark.parametrize("engine_id", ["a/../b\0c", "ä" * 5000, "\udc80", "x" * 79 + "'"])
def test_any_text_is_an_engine_id(make_spec, socket_kind, engine_id, tmp_path):
    spec = make_spec(engine_id=f"{engine_id}{uuid.uuid4()}", socket_kinds=(socket_kind,))
    with SharedOffloadRegion.open(spec, 0), SharedOffloadRegion.attach(spec, 5):
        assert len(spec.socket_name) < 60


def test_equal_engine_ids_meet_and_different_ones_do_not(make_spec):
    names = [make_spec(engine_id=engine_id).socket_name for engine_id in ("", "a", "A", "a ", "a\0", "a")]
    assert len(set(names)) == 5
    assert names[1] == names[-1]


def test_a_stale_socket_file_is_swept_and_a_public_directory_refused(make_spec, tmp_path):
    spec = make_spec(socket_kinds=(SocketKind.PATH,))
    with SharedOffloadRegion.open(spec, 0):
        [socket_file] = tmp_path.glob("*/*.sock")
        assert socket_file.parent.stat().st_mode & 0o777 == 0o700
        stale = socket_file.with_name("kvoffload-0-stale.sock")
        os.link(socket_file, stale)
    assert stale.exists()
    with SharedOffloadRegion.open(spec, 0):
        assert not stale.exists()
    socket_file.parent.chmod(0o755)
    with pytest.raises(RegionJoinError, match="not a private directory"):
        SharedOffloadRegion.open(spec, 0)


# -- population --------------------------------------------------------------------------------------------


def wait_for(condition) -> None:
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def test_population_touches_all_pages_and_changes_none(make_spec):
    with SharedOffloadRegion.open(make_spec(rows=9_000), 0) as region:
        region.array[::1000] = 5
        expected = region.array.copy()
        region.populate_in_background()
        region.populate_in_background()
        wait_for(lambda: region.populated_bytes == region.plan.total_bytes)
        assert (region.array == expected).all()


def test_only_the_creator_populates(make_spec):
    spec = make_spec()
    with SharedOffloadRegion.open(spec, 0), SharedOffloadRegion.attach(spec, 5) as attached:
        attached.populate_in_background()
        assert attached.populated_bytes == 0


def test_population_goes_in_pieces_and_stops_between_them():
    calls = []
    third = threading.Event()
    array = np.zeros(10 * 4096 + 1, dtype=np.uint8)

    def slow(address, size):
        calls.append((address - array.ctypes.data, size))
        if len(calls) == 3:
            third.set()
            population._stop.wait(10)
        return 0

    population = BackgroundPopulation(array, "e", slow, piece_bytes=4096)
    population.start()
    third.wait(10)
    population.stop()
    population.stop()
    assert calls == [(0, 4096), (4096, 4096), (8192, 4096)]
    assert population.populated_bytes == 3 * 4096


def test_the_last_piece_may_be_short():
    sizes = []
    population = BackgroundPopulation(
        np.zeros(9000, dtype=np.uint8), "e", lambda _, size: sizes.append(size) or 0, piece_bytes=4096
    )
    population.start()
    population._thread.join(20)
    assert population.populated_bytes == 9000
    assert sizes == [4096, 4096, 808]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errno.ENOMEM, "no memory"),
        (errno.EFAULT, "Bad address"),
        (errno.EINVAL, "5.14"),
        (errno.EINTR, "Interrupted"),
    ],
)
def test_trouble_while_populating_is_one_warning_and_writes_nothing(error, text, caplog):
    caplog.set_level(logging.INFO)
    array = np.zeros(3 * 4096, dtype=np.uint8)
    array.flags.writeable = False
    tries = []
    population = BackgroundPopulation(array, "'engine 7'", lambda *_: tries.append(1) or error, 4096)
    population.start()
    population._thread.join(20)
    [record] = [record for record in caplog.records if record.name == populate.__name__]
    assert record.levelno == logging.WARNING
    assert text in record.message
    assert "'engine 7'" in record.message
    assert population.populated_bytes == 0
    assert len(tries) == (100 if error == errno.EINTR else 1)
