"""A file that cannot be read is replaced by the next store; a disk that cannot be read is not written anew."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from fs_support import HIT, MISS, FaultyDisk, Store, make_keys

from kvoffload.clock import ManualClock
from kvoffload.tiers.base import Outcome

DONE, MISSING, CORRUPT, REJECTED, FAILED = Outcome


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("call", ["open", "read_into"])
def test_a_single_unreadable_file_is_replaced_by_the_next_store(
    tmp_path: Path, call: str, error: int
) -> None:
    disk, clock, keys = FaultyDisk(), ManualClock(), make_keys(3)
    with Store(tmp_path, disk=disk, clock=clock) as store:
        store.wait_for_walk()
        store.store(keys)
        path = store.path_of(keys[1])
        inode = path.stat().st_ino
        with disk.fault(call, error, match=path.name):
            assert store.load(keys[:1]) == [DONE]
            assert store.load(keys[1:2]) == [FAILED]
            for _ in range(2):
                assert store.lookup(keys) == [HIT, MISS, HIT]
                clock.advance(10)
            store.walk()
            assert store.lookup(keys) == [HIT, MISS, HIT]
        assert store.store(keys) == [DONE] * 3
        assert path.stat().st_ino != inode
        assert store.load(keys) == [DONE] * 3


def test_a_disk_of_which_nothing_can_be_read_is_not_written_anew(tmp_path: Path) -> None:
    disk, keys = FaultyDisk(), make_keys(20)
    with Store(tmp_path, disk=disk, threads=2) as store:
        store.wait_for_walk()
        store.store(keys)
        assert store.load(keys) == [DONE] * 20
        renames = disk.calls["rename"]
        with disk.fault("read_into", errno.EIO, match=".kv"):
            for _ in range(5):
                assert set(store.load(keys)) == {FAILED}
                store.store(keys)
        # One file was the first that failed after one that was read.
        assert disk.calls["rename"] - renames <= 1


def test_a_disk_that_fails_now_and_then_is_rewritten_within_a_bound(tmp_path: Path) -> None:
    disk, keys = FaultyDisk(), make_keys(30)
    with Store(tmp_path, disk=disk, threads=2, clock=ManualClock()) as store:
        store.wait_for_walk()
        store.store(keys)
        renames = disk.calls["rename"]
        bad = {store.path_of(key).name for key in keys[::2]}

        def fail(fd: int, *_: object) -> None:
            if Path(f"/proc/self/fd/{fd}").readlink().name in bad:
                raise OSError(errno.EIO, "Input/output error")

        with disk.fault("read_into", fail):
            for _ in range(12):
                store.load(keys)
                store.store(keys)
        assert 0 < disk.calls["rename"] - renames <= 100
