"""Whatever the disk answers: a miss or a skip, counted by name, nothing left behind, and recovered when the cause ends."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fs_support import (
    FILE_BYTES,
    HIT,
    MISS,
    FaultyDisk,
    Store,
    disk_usage,
    make_keys,
    record_of,
    wait_until,
)

from kvoffload.clock import ManualClock
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.tiers.fs.options import Durability

DONE, MISSING, CORRUPT, REJECTED, FAILED = Outcome

STORE_FAULTS = {
    errno.ENOSPC: REJECTED,
    errno.EDQUOT: REJECTED,
    errno.EROFS: REJECTED,
    errno.EACCES: REJECTED,
    errno.EPERM: REJECTED,
    errno.EIO: FAILED,
    errno.ESTALE: FAILED,
    errno.EMFILE: FAILED,
    errno.EFBIG: FAILED,
}
LOAD_FAULTS = {
    errno.ENOENT: MISSING,
    errno.ESTALE: MISSING,
    errno.ENOTDIR: MISSING,
    errno.EIO: FAILED,
    errno.EACCES: FAILED,
    errno.EMFILE: FAILED,
}


@pytest.mark.parametrize("error", STORE_FAULTS, ids=lambda error: errno.errorcode[error])
@pytest.mark.parametrize("call", ["open", "write_from", "set_times", "fsync", "close", "rename", "mkdir"])
def test_a_store_that_fails_is_counted_leaves_nothing_and_works_again_later(
    tmp_path: Path, call: str, error: int
) -> None:
    disk, clock, keys = FaultyDisk(), ManualClock(), make_keys(3)
    with Store(tmp_path, disk=disk, clock=clock, durability=Durability.DATA, max_bytes=10**6) as store:
        store.wait_for_walk()
        before = record_of(tmp_path)["used_bytes"]
        # The record of the cap lies elsewhere, and has tests of its own.
        with disk.fault(call, error, match="org_model"):
            assert store.store(keys) == [STORE_FAULTS[error]] * 3
        name = errno.errorcode[error].lower()
        assert store.counters()[f"store_error_{name}"] >= 1
        assert store.temps() == []
        assert store.lookup(keys) == [MISS] * 3
        clock.advance(10)
        assert store.store(keys) == [DONE] * 3
        assert store.load(keys) == [DONE] * 3
        # What was promised and not used was given back.
        store.tier._share.show()
        writer = store.tier._around.place.writer.text
        record = record_of(tmp_path)
        assert record["used_bytes"] - record["writers"][writer][0] <= before + 4 * (FILE_BYTES + 2 * 4096)


@pytest.mark.parametrize("error", LOAD_FAULTS, ids=lambda error: errno.errorcode[error])
@pytest.mark.parametrize("call", ["open", "fstat", "read_into"])
def test_a_load_that_fails_exposes_nothing_and_works_again_later(
    tmp_path: Path, call: str, error: int
) -> None:
    disk, clock, keys = FaultyDisk(), ManualClock(), make_keys(3)
    with Store(tmp_path, disk=disk, clock=clock) as store:
        store.wait_for_walk()
        store.store(keys)
        with disk.fault(call, error):
            assert store.load(keys) == [LOAD_FAULTS[error]] * 3
        if LOAD_FAULTS[error] is FAILED:
            assert store.counters()[f"load_error_{errno.errorcode[error].lower()}"] == 3
            # Nobody knows that they are gone.
            assert store.lookup(keys) == [HIT] * 3
        else:
            assert store.lookup(keys) == [MISS] * 3
        clock.advance(10)
        assert store.lookup(keys) == [HIT] * 3
        assert store.load(keys) == [DONE] * 3


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ENOENT])
@pytest.mark.parametrize("call", ["scandir", "stat_entry", "statvfs", "try_lock"])
def test_faults_beside_the_data_path_do_no_harm(tmp_path: Path, call: str, error: int) -> None:
    disk, clock, keys = FaultyDisk(), ManualClock(), make_keys(3)
    with Store(tmp_path) as store:
        store.store(keys)
    with disk.fault(call, error), Store(tmp_path, disk=disk, clock=clock) as store:
        store.wait_for_walk()
        assert set(store.lookup(keys)) <= {HIT, MISS}
        assert store.load(keys) == [DONE] * 3
        # Without a cap, a record that cannot be used stops nothing; what cannot be looked at is not written.
        assert set(store.store(make_keys(2, "new"))) <= {DONE, FAILED}
        store.tier.stats()
    with Store(tmp_path) as store:
        assert store.load(keys) == [DONE] * 3


def test_with_a_cap_nothing_is_written_that_cannot_be_accounted_for(tmp_path: Path) -> None:
    disk, keys = FaultyDisk(), make_keys(3)
    with Store(tmp_path, disk=disk, max_bytes=10**6) as store:
        store.wait_for_walk()
        with disk.fault("try_lock", errno.ENOLCK):
            assert store.store(keys) == [REJECTED] * 3
        assert store.counters()["usage_error_enolck"] >= 1
        assert store.store(keys) == [DONE] * 3


def test_a_vanished_file_costs_that_chunk_and_nothing_else(tmp_path: Path) -> None:
    keys = make_keys(4)
    with Store(tmp_path) as store:
        store.store(keys)
        store.path_of(keys[2]).unlink()
        assert store.load(keys) == [DONE, DONE, MISSING, DONE]
        # At most one "ask again", and then the prefix that is left.
        assert store.tier.lookup(keys) == [HIT, HIT, MISS, HIT]


def test_a_short_file_costs_that_chunk_and_nothing_else(tmp_path: Path) -> None:
    keys = make_keys(4)
    with Store(tmp_path) as store:
        store.store(keys)
        os.truncate(store.path_of(keys[2]), FILE_BYTES - 1)
        assert store.load(keys) == [DONE, DONE, CORRUPT, DONE]
        assert store.tier.lookup(keys) == [HIT, HIT, MISS, HIT]
        assert not store.path_of(keys[2]).exists()


def test_damage_of_the_same_length_is_noticed_counted_and_dropped(tmp_path: Path) -> None:
    keys = make_keys(4)
    with Store(tmp_path) as store:
        store.store(keys)
        data = bytearray(store.path_of(keys[1]).read_bytes())
        data[5000] ^= 1
        store.path_of(keys[1]).write_bytes(data)
        before = store.tier.stats().stored_bytes
        assert store.load(keys) == [DONE, CORRUPT, DONE, DONE]
        assert store.counters()["corrupt"] == 1
        assert not store.path_of(keys[1]).exists()
        assert store.tier.stats().stored_bytes == before - FILE_BYTES
        assert store.load(keys) == [DONE, MISSING, DONE, DONE]
        assert store.counters()["corrupt"] == 1


def test_a_file_that_shrinks_while_it_is_read_is_not_served(tmp_path: Path) -> None:
    disk, (key,) = FaultyDisk(), make_keys(1)
    with Store(tmp_path, disk=disk) as store:
        store.store([key])
        # The first walk reads the usage record, too.
        store.wait_for_walk()
        with disk.fault("read_into", lambda *_: os.truncate(store.path_of(key), 4096)):
            assert store.load([key]) == [CORRUPT]


def test_a_file_that_is_deleted_while_it_is_read_is_served(tmp_path: Path) -> None:
    disk, (key,) = FaultyDisk(), make_keys(1)
    with Store(tmp_path, disk=disk) as store:
        store.store([key])
        # The first walk reads the usage record, too.
        store.wait_for_walk()
        with disk.fault("read_into", lambda *_: store.path_of(key).unlink()):
            assert store.load([key]) == [DONE]


def test_a_stalled_write_delays_no_load_and_no_other_store(tmp_path: Path) -> None:
    disk, go_on, inside = FaultyDisk(), threading.Event(), threading.Event()
    stalled, others = make_keys(1, "stalled"), make_keys(8)
    with Store(tmp_path, disk=disk) as store:
        store.wait_for_walk()
        store.store(others)

        def stall(*_: object) -> None:
            if not inside.is_set():
                inside.set()
                go_on.wait(20)

        with disk.fault("write_from", stall):
            assert store.submit(Verb.STORE, stalled, store.rows_for(stalled, filled=True))
            assert inside.wait(10)
            more = make_keys(3, "more")
            store.submit(Verb.LOAD, others, store.rows_for(others, filled=False))
            store.submit(Verb.STORE, more, store.rows_for(more, filled=True))
            reports = []
            wait_until(lambda: reports.extend(store.tier.poll()) or len(reports) == 2)
            assert all(set(report.outcomes.values()) == {DONE} for report in reports)
            assert store.lookup(stalled) == [MISS]
            assert not store.tier.drain(0.01)
            assert store.tier.stats().queued_jobs == 1
            go_on.set()
            assert set(store.wait()[0].outcomes.values()) == {DONE}


def test_a_shutdown_is_bounded_although_a_thread_hangs_in_a_call(tmp_path: Path) -> None:
    disk, go_on, inside = FaultyDisk(), threading.Event(), threading.Event()
    keys = make_keys(1, "hangs")
    store = Store(tmp_path, disk=disk, shutdown_timeout_s=0.2, threads=2)
    # The first walk writes, too.
    store.wait_for_walk()

    def hang(*_: object) -> None:
        inside.set()
        go_on.wait(20)

    with disk.fault("write_from", hang):
        store.submit(Verb.STORE, keys, store.rows_for(keys, filled=True))
        assert inside.wait(10)
        waiting = store.submit(Verb.STORE, make_keys(3), store.rows_for(make_keys(3), filled=True))
        started = time.monotonic()
        store.tier.shutdown()
        assert time.monotonic() - started < 5
        store.tier.shutdown()
        # What had not begun has failed; what hangs keeps its buffers, so it is not reported yet.
        (report,) = store.tier.poll()
        assert report.job_id == waiting
        assert set(report.outcomes.values()) == {FAILED}
        assert not store.tier.submit(report_job(store))
        assert store.tier.lookup(keys) == [MISS]
        go_on.set()
        reports = []
        wait_until(lambda: reports.extend(store.tier.poll()) or len(reports) == 1)


def report_job(store: Store):
    from kvoffload.tiers.base import TierJob

    return TierJob(999, Verb.LOAD, ())


def test_a_closed_tier_is_not_the_worlds_end_for_another(tmp_path: Path) -> None:
    keys = make_keys(3)
    with Store(tmp_path) as one, Store(tmp_path) as two:
        one.store(keys)
        one.tier.shutdown()
        assert two.load(keys) == [DONE] * 3


def test_the_whole_directory_can_be_removed_while_running(tmp_path: Path) -> None:
    root, keys = tmp_path / "root", make_keys(10)
    with Store(root, max_bytes=10**6, clock=(clock := ManualClock())) as store:
        store.store(keys)
        shutil.rmtree(root)
        assert store.load(keys) == [MISSING] * 10
        assert store.lookup(keys) == [MISS] * 10
        assert store.store(keys) == [DONE] * 10
        clock.advance(10)
        assert store.lookup(keys) == [HIT] * 10
        assert store.load(keys) == [DONE] * 10
        assert (store.directory / "namespace.json").exists()
        store.walk()
        assert record_of(root)["used_bytes"] >= disk_usage(root)
    with Store(root) as store:
        assert store.load(keys) == [DONE] * 10


def test_a_directory_removed_in_the_middle_of_stores_does_no_harm(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with Store(root, max_bytes=10**7) as store:
        for number in range(10):
            keys = make_keys(20, f"{number}-")
            store.submit(Verb.STORE, keys, store.rows_for(keys, filled=True))
            shutil.rmtree(root, ignore_errors=True)
            assert len(store.wait()) == 1
        keys = make_keys(20, "last")
        assert store.store(keys) == [DONE] * 20
        assert store.load(keys) == [DONE] * 20
        store.tier._index.check()


@contextmanager
def mounted(path: Path, size: str) -> Iterator[None]:
    """A small file system of its own; skips where this user may not mount."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_really_full_file_system_rejects_and_recovers(tmp_path: Path) -> None:
    root, disk, clock, keys = tmp_path / "full", FaultyDisk(), ManualClock(), make_keys(12)
    with mounted(root, "512k"), Store(root, disk=disk, clock=clock) as store:
        assert store.store(keys[:4]) == [DONE] * 4
        # Somebody else takes all that is left just when a chunk is written.
        with disk.fault("write_from", lambda *_: fill(root / "ballast")):
            assert REJECTED in store.store(keys[4:])
        assert store.counters()["store_error_enospc"] >= 1
        assert store.temps() == []
        assert (root / "ballast").exists()
        (root / "ballast").unlink()
        clock.advance(1)
        assert store.store(keys) == [DONE] * 12
        assert store.load(keys) == [DONE] * 12


def test_a_full_file_system_turns_over_its_content(tmp_path: Path) -> None:
    root = tmp_path / "full"
    with mounted(root, "512k"), Store(root) as store:
        for number in range(20):
            keys = make_keys(5, f"{number} ")
            store.store(keys)
        # Not frozen at what came first: something of the last rounds is there.
        last = [key for number in range(17, 20) for key in make_keys(5, f"{number} ")]
        assert DONE in store.load(last)


def test_a_really_read_only_file_system_rejects_stores_serves_loads_and_recovers(tmp_path: Path) -> None:
    root, keys, clock = tmp_path / "read-only", make_keys(5), ManualClock()
    with mounted(root, "1m"), Store(root, clock=clock) as store:
        store.store(keys)
        done = subprocess.run(["mount", "-o", "remount,ro", str(root)], check=False, capture_output=True)
        if done.returncode:
            pytest.skip(f"remounting is not permitted here: {done.stderr.decode().strip()}")
        new = make_keys(5, "new")
        assert store.store(new) == [REJECTED] * 5
        assert store.load(keys) == [DONE] * 5
        assert store.counters()["store_error_erofs"] >= 1
        # It is left alone for a while.
        calls = store.counters()["store_error_erofs"]
        assert store.store(new) == [REJECTED] * 5
        assert store.counters()["store_error_erofs"] == calls
        subprocess.run(["mount", "-o", "remount,rw", str(root)], check=True)
        clock.advance(6)
        assert store.store(new) == [DONE] * 5


def test_an_internal_error_fails_the_job_and_the_thread_lives(tmp_path: Path) -> None:
    disk, keys = FaultyDisk(), make_keys(2)

    def bug(*_: object) -> None:
        raise ZeroDivisionError

    with Store(tmp_path, disk=disk, threads=2) as store:
        store.store(keys)
        with disk.fault("fstat", bug):
            for _ in range(5):
                assert store.load(keys) == [FAILED] * 2
        assert store.counters()["internal_errors"] >= 5
        assert store.load(keys) == [DONE] * 2
