"""The cap is one of the whole directory, it holds, and what goes first is what was not used for the longest time."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from fs_support import (
    FILE_BYTES,
    HIT,
    MISS,
    PAYLOAD_BYTES,
    FaultyDisk,
    Store,
    disk_usage,
    make_key,
    make_keys,
    make_namespace,
    record_of,
    wait_until,
)

from kvoffload.clock import ManualClock
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.tiers.fs.liveness import SILENT_S
from kvoffload.tiers.fs.writer import WriterId, new_writer

DONE, MISSING, CORRUPT, REJECTED, FAILED = Outcome
EPOCH_S = 1_700_000_000.0
DIRECTORIES = 2 * 4096


def cap_for(chunks: int) -> int:
    """A cap under which so many chunks fit, in directories of their own, and about two more."""
    return 20_000 + 4 * 4096 + (chunks + 2) * (FILE_BYTES + DIRECTORIES)


def kept(store: Store, keys: list) -> list[int]:
    return [number for number, answer in enumerate(store.lookup(keys)) if answer is HIT]


def test_the_cap_holds_and_the_longest_unused_go_first(tmp_path: Path) -> None:
    wall, keys, cap = ManualClock(EPOCH_S), make_keys(60), cap_for(10)
    with Store(tmp_path, max_bytes=cap, wall_clock=wall) as store:
        for key in keys:
            wall.advance(10)
            assert store.store([key]) == [DONE]
            assert disk_usage(tmp_path) <= cap
        left = kept(store, keys)
        assert len(left) >= 6
        assert left == list(range(60 - len(left), 60))
        assert store.counters()["evicted"] == 60 - len(left)
        store.tier._index.check()


def test_used_chunks_stay(tmp_path: Path) -> None:
    wall, keys, cap = ManualClock(EPOCH_S), make_keys(40), cap_for(10)
    with Store(tmp_path, max_bytes=cap, wall_clock=wall) as store:
        for number, key in enumerate(keys):
            wall.advance(10)
            store.store([key])
            # One chunk is loaded now and then, another one only touched.
            if number >= 1:
                store.load([keys[0]])
                store.tier.touch([keys[1]])
        assert {0, 1, 39} <= set(kept(store, keys))


def test_a_restart_keeps_content_sizes_and_recency(tmp_path: Path) -> None:
    wall, keys, cap = ManualClock(EPOCH_S), make_keys(30), cap_for(12)
    with Store(tmp_path, max_bytes=cap, wall_clock=wall) as store:
        for key in keys[:10]:
            wall.advance(100)
            store.store([key])
        wall.advance(100)
        store.load(keys[:2])
        store.tier._upkeep.tick()
        size = store.tier.stats().stored_bytes
    wall.advance(100)
    with Store(tmp_path, max_bytes=cap, wall_clock=wall) as store:
        store.wait_for_walk()
        assert store.tier.stats().stored_bytes == size
        assert record_of(tmp_path)["used_bytes"] >= disk_usage(tmp_path)
        for key in keys[10:18]:
            wall.advance(100)
            assert store.store([key]) == [DONE]
        left = kept(store, keys[:18])
        # 0 and 1 were used last before the restart, so 2, 3, … went before them.
        assert {0, 1} <= set(left)
        assert 2 not in left


def test_within_a_prompt_the_end_goes_before_the_beginning_also_after_a_restart(tmp_path: Path) -> None:
    wall, prompt, cap = ManualClock(EPOCH_S), make_keys(12, "prompt"), cap_for(14)
    with Store(tmp_path, max_bytes=cap, wall_clock=wall) as store:
        assert store.store(prompt) == [DONE] * 12
    wall.advance(100)
    with Store(tmp_path, max_bytes=cap, wall_clock=wall) as store:
        for key in make_keys(8, "others"):
            wall.advance(100)
            assert store.store([key]) == [DONE]
        left = kept(store, prompt)
        assert 0 < len(left) < 12
        assert left == list(range(len(left)))


def test_of_a_prompt_larger_than_the_cap_the_beginning_is_stored(tmp_path: Path) -> None:
    keys, cap = make_keys(40), cap_for(10)
    with Store(tmp_path, max_bytes=cap) as store:
        outcomes = store.store(keys)
        stored = outcomes.count(DONE)
        assert stored >= 8
        assert outcomes == [DONE] * stored + [REJECTED] * (40 - stored)
        assert disk_usage(tmp_path) <= cap


def test_a_chunk_larger_than_the_cap_is_rejected_at_once(tmp_path: Path) -> None:
    with Store(tmp_path, max_bytes=60_000, payload_bytes=(PAYLOAD_BYTES, 100_000)) as store:
        assert store.store([make_key(1, group=1)]) == [REJECTED]
        assert store.counters()["rejected_larger_than_cap"] >= 1


def test_a_lower_cap_at_the_next_start_shrinks_the_directory(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.store(make_keys(40))
    cap = cap_for(10) + 40 * DIRECTORIES
    with Store(tmp_path, max_bytes=cap) as store:
        store.wait_for_walk()
        assert store.store(make_keys(1, "new")) == [DONE]
        assert disk_usage(tmp_path) <= cap


def test_the_cap_is_one_for_all_models_and_what_nobody_uses_any_more_goes(tmp_path: Path) -> None:
    wall, cap = ManualClock(EPOCH_S), cap_for(20)
    old, new = make_namespace("org/old"), make_namespace("org/new")
    with Store(tmp_path, max_bytes=cap, wall_clock=wall, namespace=old) as store:
        store.store(make_keys(12))
        old_files = len(store.files())
    wall.advance(1000)
    with Store(tmp_path, max_bytes=cap, wall_clock=wall, namespace=new) as store:
        for key in make_keys(15, "new"):
            wall.advance(10)
            assert store.store([key]) == [DONE]
            assert disk_usage(tmp_path) <= cap
        assert store.counters()["evicted_of_others"] > 0
        assert len(list((tmp_path / old.directory_name).rglob("*.kv"))) < old_files


def test_what_another_model_still_uses_stays_before_older_chunks_of_our_own(tmp_path: Path) -> None:
    wall, cap = ManualClock(EPOCH_S), cap_for(20)
    ours, theirs = make_namespace("org/ours"), make_namespace("org/theirs")
    with Store(tmp_path, max_bytes=cap, wall_clock=wall, namespace=ours) as store:
        store.store(make_keys(10))
    wall.advance(1000)
    with Store(tmp_path, max_bytes=cap, wall_clock=wall, namespace=theirs) as store:
        store.store(make_keys(5))
    wall.advance(1000)
    with Store(tmp_path, max_bytes=cap, wall_clock=wall, namespace=ours) as store:
        for key in make_keys(8, "new"):
            assert store.store([key]) == [DONE]
        assert store.counters()["evicted"] > 0
        assert "evicted_of_others" not in store.counters()


def test_nothing_that_is_not_ours_is_ever_deleted(tmp_path: Path) -> None:
    keys, cap = make_keys(40), cap_for(8) + 300_000
    with Store(tmp_path, max_bytes=cap) as store:
        store.store(keys[:4])
        leaf = store.path_of(keys[0]).parent
        directory = store.directory
    other = tmp_path / "some_0123456789abcdef" / "aa" / "bb"
    foreign = [
        tmp_path / "README",
        tmp_path / "notes" / "a.kv",
        directory / "notes.txt",
        directory / "aa.kv",
        leaf / "notes.kv",
        leaf / (store.path_of(keys[0]).name + ".bak"),
        # The name of a chunk in the wrong directory, and in a directory that nobody says is ours.
        directory / "00" / "00" / store.path_of(keys[0]).name,
        other / f"aabb{'0' * 60}_g0.kv",
        other / "tmp-0123456789abcdef-1-1-1.kvtmp.txt",
        leaf / "tmp-notes.kvtmp",
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine" * 1000)
        os.utime(path, (1, 1))
    with Store(tmp_path, max_bytes=cap) as store:
        store.wait_for_walk()
        for key in keys:
            store.store([key])
        assert store.counters()["evicted"] > 0
        store.walk()
        assert store.tier.clear()
    assert [path for path in foreign if not path.exists()] == []


def test_an_undeletable_file_wedges_nothing(tmp_path: Path) -> None:
    disk, wall, keys, cap = FaultyDisk(), ManualClock(EPOCH_S), make_keys(40), cap_for(10)
    with Store(tmp_path, max_bytes=cap, wall_clock=wall, disk=disk) as store:
        store.wait_for_walk()
        store.store(keys[:3])
        stuck = store.path_of(keys[0]).name
        with disk.fault("unlink", errno.EPERM, match=stuck):
            for key in keys[3:]:
                wall.advance(10)
                assert store.store([key]) == [DONE]
            assert store.counters()["undeletable"] >= 1
            assert store.load([keys[0]]) == [DONE]
        store.tier._index.check()
        # It is proposed again after the next walk.
        store.walk()
        wall.advance(10)
        for key in make_keys(20, "more"):
            wall.advance(10)
            store.store([key])
        assert store.lookup([keys[0]]) == [MISS]


def test_if_nothing_can_be_deleted_stores_are_rejected_and_loads_go_on(tmp_path: Path) -> None:
    disk, cap = FaultyDisk(), cap_for(8)
    with Store(tmp_path, max_bytes=cap, disk=disk) as store:
        stored = make_keys(5)
        assert store.store(stored) == [DONE] * 5
        with disk.fault("unlink", errno.EACCES, match=".kv"):
            outcomes = store.store(make_keys(20, "more"))
            assert REJECTED in outcomes
            assert store.load(stored) == [DONE] * 5
        assert disk_usage(tmp_path) <= cap


def test_files_that_somebody_else_deletes_are_noticed(tmp_path: Path) -> None:
    keys, cap = make_keys(30), cap_for(12)
    with Store(tmp_path, max_bytes=cap) as store:
        store.store(keys[:10])
        for key in keys[:10]:
            store.path_of(key).unlink()
        store.walk()
        assert store.tier.stats().stored_chunks == 0
        # Their room is there again.
        assert store.store(keys[10:20]) == [DONE] * 10
        assert "evicted" not in store.counters()


def test_min_free_bytes_holds(tmp_path: Path) -> None:
    class SmallDisk(FaultyDisk):
        """A disk with room for 20 chunks in the directory."""

        def statvfs(self, path: str) -> os.statvfs_result:
            free = max(0, 20 * FILE_BYTES - sum(p.stat().st_size for p in tmp_path.rglob("*.kv")))
            return os.statvfs_result((4096, 4096, 1000, free // 4096, free // 4096, 0, 0, 0, 0, 255))

    clock = ManualClock()
    with Store(tmp_path, disk=SmallDisk(), min_free_bytes=10 * FILE_BYTES, clock=clock) as store:
        store.wait_for_walk()
        for key in make_keys(30):
            clock.advance(1)
            store.store([key])
            assert len(store.files()) <= 10
        assert len(store.files()) >= 5
        assert store.counters()["evicted"] > 0


def test_a_temporary_file_of_a_dead_writer_is_swept_and_that_of_a_live_one_never(tmp_path: Path) -> None:
    here = new_writer()
    with Store(tmp_path) as store:
        store.store(make_keys(1))
        leaf = store.path_of(make_key("0")).parent
    long_ago = time.time() - 2 * SILENT_S
    cases = {
        here: False,
        WriterId(here.host, here.pid, here.started + 1, 1): True,  # an earlier process with our number
        WriterId(here.host, 2**22 + 1, 1, 1): True,  # no such process
        WriterId(here.host, os.getppid(), 0, 1): False,
        WriterId("0123456789abcdef", 1, 1, 1): False,  # another host, and just written
    }
    names = {writer.temp_name(number): dead for number, (writer, dead) in enumerate(cases.items())}
    for name in names:
        (leaf / name).write_bytes(b"x")
    old = leaf / WriterId("0123456789abcdef", 2, 2, 2).temp_name(9)
    old.write_bytes(b"x")
    os.utime(old, (long_ago, long_ago))
    names[old.name] = True
    with Store(tmp_path) as store:
        store.walk()
        for name, is_swept in names.items():
            assert (leaf / name).exists() != is_swept, name
        assert store.counters()["swept_temps"] == sum(names.values())


def test_a_silent_host_whose_sign_of_life_is_in_the_record_keeps_its_temporary_files(tmp_path: Path) -> None:
    import json

    from kvoffload.layout.chunk_format import checksum

    writer = WriterId("0123456789abcdef", 7, 7, 7)
    with Store(tmp_path) as store:
        store.store(make_keys(1))
        store.tier._share.show()
    path = tmp_path / ".kvoffload" / "usage"
    values = record_of(tmp_path)
    values["writers"][writer.text] = [1000, time.time()]
    text = json.dumps(values).encode()
    path.write_bytes(checksum(text).hex().encode() + b"\n" + text + b"\n")
    temp = store.path_of(make_key("0")).parent / writer.temp_name(1)
    temp.write_bytes(b"x")
    os.utime(temp, (1000, 1000))
    with Store(tmp_path) as store:
        store.walk()
        assert temp.exists()
        values["writers"][writer.text] = [1000, time.time() - 2 * SILENT_S]
    text = json.dumps(values).encode()
    path.write_bytes(checksum(text).hex().encode() + b"\n" + text + b"\n")
    with Store(tmp_path) as store:
        store.walk()
        assert not temp.exists()


def test_the_time_on_the_disk_is_renewed_at_most_once_per_interval(tmp_path: Path) -> None:
    disk, wall, keys = FaultyDisk(), ManualClock(EPOCH_S), make_keys(3)
    with Store(tmp_path, disk=disk, wall_clock=wall, touch_interval_s=60) as store:
        store.wait_for_walk()
        store.store(keys)
        disk.calls.clear()
        for _ in range(100):
            wall.advance(10)
            store.tier.touch(keys)
            store.tier._upkeep.tick()
        wait_until(lambda: not store.tier._index._waiting)
        assert 3 * 13 <= disk.calls["set_times"] <= 3 * 17
        used = store.path_of(keys[0]).stat().st_mtime
        assert EPOCH_S + 1000 - 60 <= used <= EPOCH_S + 1000


def test_a_chunk_that_another_process_has_just_used_is_not_evicted(tmp_path: Path) -> None:
    wall, keys, cap = ManualClock(EPOCH_S), make_keys(40), cap_for(10)
    with (
        Store(tmp_path, max_bytes=cap, wall_clock=wall) as one,
        Store(tmp_path, max_bytes=cap, wall_clock=wall) as two,
    ):
        for key in keys[:6]:
            wall.advance(100)
            one.store([key])
        for key in keys[6:20]:
            wall.advance(100)
            two.load([keys[0]])
            two.tier._upkeep.tick()
            one.store([key])
        assert 0 in kept(one, keys[:20])


@pytest.mark.parametrize("jobs", [1, 4])
def test_stores_of_one_process_from_many_threads_never_exceed_the_cap(tmp_path: Path, jobs: int) -> None:
    cap, over = cap_for(12), []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            used = disk_usage(tmp_path)
            if used > cap:
                over.append(used)

    watcher = threading.Thread(target=watch)
    with Store(tmp_path, max_bytes=cap, threads=8) as store:
        watcher.start()
        for number in range(15):
            for job in range(jobs):
                keys = make_keys(6, f"{number} {job} ")
                store.submit(Verb.STORE, keys, store.rows_for(keys, filled=True))
            store.wait()
        stop.set()
        watcher.join()
        assert over == []
        store.tier._index.check()


def test_bytes_of_a_removed_namespace_are_given_back(tmp_path: Path) -> None:
    cap = cap_for(14)
    with Store(tmp_path, max_bytes=cap, namespace=make_namespace("org/gone")) as store:
        store.store(make_keys(10))
        gone = store.directory
    shutil.rmtree(gone)
    with Store(tmp_path, max_bytes=cap) as store:
        store.walk()
        assert store.store(make_keys(10)) == [DONE] * 10
        assert "evicted" not in store.counters()


@pytest.mark.parametrize("call", ["scandir", "stat_entry"])
def test_a_server_that_answers_a_walk_with_estale_does_not_make_the_directory_look_empty(
    tmp_path: Path, call: str
) -> None:
    # Found by `kvoffload sim --seed 14 --setup "directory, two groups"`: the count fell, and the cap was exceeded.
    disk = FaultyDisk()
    with Store(tmp_path, disk=disk, max_bytes=2**20) as store:
        store.store(make_keys(8))
        store.walk()
        before = record_of(tmp_path)["used_bytes"]
        with disk.fault(call, errno.ESTALE):
            store.walk()
        assert record_of(tmp_path)["used_bytes"] >= before
