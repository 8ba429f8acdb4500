"""The store tools beside engines, killed writers and a world in which files vanish under their hands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from store_files import (
    chunk_files,
    counted_bytes,
    make_store,
    namespace_for,
    recorded_bytes,
    run,
    run_json,
)

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tiers" / "fs"))

from fs_support import Store, disk_usage, make_keys, wait_until

from kvoffload.cli.store.collection_run import run_gc
from kvoffload.cli.store.purging_run import run_purge
from kvoffload.cli.store.verification_run import VerifyOptions, run_verify
from kvoffload.tiers.base import Outcome
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.store_root import open_root

CHILD = Path(__file__).parent.parent.parent / "tiers" / "fs" / "fs_child.py"


def test_what_a_killed_writer_left_is_swept_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    """A real process that hangs in the middle of a store, first stopped, then killed."""
    program = f"""
import sys, time
sys.path.insert(0, {str(CHILD.parent)!r})
from pathlib import Path
from fs_support import FaultyDisk, Store, make_keys
disk = FaultyDisk()
store = Store(Path({str(tmp_path)!r}), disk=disk, max_bytes=10**9)
store.store(make_keys(3, "first"))
disk.faults["set_times"] = lambda *_: (print("hangs", flush=True), time.sleep(60))
store.store(make_keys(1, "second"))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "hangs\n"
        temps = list(tmp_path.rglob("*.kvtmp"))
        assert len(temps) == 1
        assert run_json("gc", tmp_path)["removed"]["temp"] == 0
        assert temps[0].exists()
        os.kill(child.pid, signal.SIGKILL)
    assert run_json("du", tmp_path)["namespaces"][0]["orphan_temp_files"] == 1
    assert run_json("gc", tmp_path)["removed"]["temp"] == 1
    assert len(chunk_files(tmp_path)) == 3
    assert recorded_bytes(tmp_path) == counted_bytes(tmp_path), "promises of the dead are forgotten"


def test_tools_beside_a_running_tier_keep_its_cap_and_its_bytes_right(tmp_path: Path) -> None:
    cap = 600_000
    stop = threading.Event()
    failures: list[BaseException] = []

    def tools() -> None:
        options = VerifyOptions(fix=True, limit_mib_s=None, threads=2, as_json=True)
        try:
            while not stop.is_set():
                run_gc(open_root(str(tmp_path)), None, (300_000, None), dry_run=False, as_json=True)
                run_verify(open_root(str(tmp_path)), None, options)
                run_purge(open_root(str(tmp_path)), None, yes=True, dry_run=False, as_json=True)
                run_gc(open_root(str(tmp_path)), None, (None, 0.0), dry_run=False, as_json=True)
        except BaseException as error:
            failures.append(error)

    with Store(tmp_path, namespace=namespace_for("org/model"), max_bytes=cap, scan_interval_s=0.1) as store:
        store.wait_for_walk()
        thread = threading.Thread(target=tools)
        thread.start()
        done = 0
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            keys = make_keys(10, f"{done} ")
            done += store.store(keys).count(Outcome.DONE)
            store.load(keys)
            assert disk_usage(tmp_path) <= cap
        stop.set()
        thread.join()
        assert done > 0
        assert "corrupt" not in store.counters()
        assert "internal_errors" not in store.counters()
    assert failures == []
    assert recorded_bytes(tmp_path) >= counted_bytes(tmp_path)
    run("gc", tmp_path)
    assert recorded_bytes(tmp_path) == counted_bytes(tmp_path)


def test_what_was_purged_beside_an_engine_can_be_stored_again_at_once(tmp_path: Path) -> None:
    with Store(tmp_path, namespace=namespace_for("org/model"), max_bytes=130_000) as store:
        store.wait_for_walk()
        keys = make_keys(4)
        assert store.store(keys) == [Outcome.DONE] * 4
        found = run_json("purge", tmp_path, "--yes")
        assert found["removed"]["chunk"] == 4
        assert store.directory.joinpath("namespace.json").exists(), "an engine is using it"
        assert store.load(keys) == [Outcome.MISSING] * 4
        assert store.store(keys) == [Outcome.DONE] * 4
        assert store.load(keys) == [Outcome.DONE] * 4


def test_a_chunk_that_is_used_while_gc_works_is_spared(tmp_path: Path) -> None:
    chunks = chunk_files(make_store(tmp_path, 3))
    long_ago = time.time() - 5000
    for path in chunks:
        os.utime(path, (long_ago, long_ago))

    class UsedMeanwhile(DiskIO):
        def lstat_in(self, directory: int, name: str) -> os.stat_result:
            if name == chunks[1].name:
                os.utime(chunks[1])
            return super().lstat_in(directory, name)

    store = open_root(str(tmp_path), UsedMeanwhile())
    assert run_gc(store, None, (None, 1000.0), dry_run=False, as_json=True)
    assert chunk_files(tmp_path) == [chunks[1]]
    assert recorded_bytes(tmp_path) == counted_bytes(tmp_path)


def test_a_damaged_chunk_that_was_replaced_while_it_was_read_stays(tmp_path: Path) -> None:
    (path,) = chunk_files(make_store(tmp_path, 1))
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))

    class ReplacedMeanwhile(DiskIO):
        def fstat(self, fd: int) -> os.stat_result:
            found = super().fstat(fd)
            if found.st_size == len(good):
                other = path.with_name("new")
                other.write_bytes(good)
                other.rename(path)
            return found

    store = open_root(str(tmp_path), ReplacedMeanwhile())
    assert not run_verify(store, None, VerifyOptions(fix=True, limit_mib_s=None, threads=2, as_json=True))
    assert path.read_bytes() == good


def test_files_that_vanish_are_no_fault(tmp_path: Path) -> None:
    directory = make_store(tmp_path, 12)
    files = chunk_files(directory)
    listed = threading.Event()

    def vanish() -> None:
        listed.wait()
        for path in files:
            path.unlink()
            path.parent.rmdir()

    class Slow(DiskIO):
        def scandir(self, path: str) -> list[os.DirEntry[str]]:
            entries = super().scandir(path)
            if len(Path(path).relative_to(tmp_path).parts) == 2:
                listed.set()
                time.sleep(0.001)
            return entries

    thread = threading.Thread(target=vanish)
    thread.start()
    options = VerifyOptions(fix=True, limit_mib_s=None, threads=2, as_json=True)
    assert run_verify(open_root(str(tmp_path), Slow()), None, options)
    thread.join()
    wait_until(lambda: chunk_files(tmp_path) == [])
    assert run("gc", tmp_path).exit_code == 0
    assert recorded_bytes(tmp_path) == counted_bytes(tmp_path)


def test_what_cannot_be_removed_is_told_and_ends_with_1(tmp_path: Path) -> None:
    make_store(tmp_path, 2)

    class Stubborn(DiskIO):
        def unlink_in(self, directory: int, name: str) -> None:
            raise PermissionError(13, "Permission denied", name)

    store = open_root(str(tmp_path), Stubborn())
    assert not run_purge(store, None, yes=True, dry_run=False, as_json=True)
    assert len(chunk_files(tmp_path)) == 2
    assert recorded_bytes(tmp_path) == counted_bytes(tmp_path)


def test_a_namespace_that_somebody_begins_to_use_while_it_is_purged_says_again_what_it_is(
    tmp_path: Path,
) -> None:
    directory = make_store(tmp_path, 1)
    before = (directory / "namespace.json").read_bytes()

    class UsedMeanwhile(DiskIO):
        def rmdir(self, path: str) -> None:
            if path == str(directory):
                (directory / "ab").mkdir()
            super().rmdir(path)

    store = open_root(str(tmp_path), UsedMeanwhile())
    assert run_purge(store, None, yes=True, dry_run=False, as_json=True)
    assert (directory / "namespace.json").read_bytes() == before
    assert (directory / "ab").is_dir()
    assert recorded_bytes(tmp_path) >= counted_bytes(tmp_path) - 4096, (
        "but for the directory that was made by hand"
    )


def test_a_disk_that_refuses_everything_is_told_with_a_bounded_number_of_lines(tmp_path: Path) -> None:
    from kvoffload.tiers.fs.accounts import Accounts
    from kvoffload.tiers.fs.cleaning import Cleaner
    from kvoffload.tiers.fs.collecting import Kind, Reason, Removal

    make_store(tmp_path, 1)

    class Stubborn(DiskIO):
        def rmdir_in(self, directory: int, name: str) -> None:
            raise PermissionError(13, "Permission denied", name)

    store = open_root(str(tmp_path), Stubborn())
    removals = [Removal(f"{tmp_path}/{n}", 4096, Kind.DIRECTORY, Reason.EMPTY, 0) for n in range(1000)]
    cleaned = Cleaner(store, Accounts(store)).run(removals)
    assert (cleaned.failures, len(cleaned.failed), cleaned.freed_bytes) == (1000, 101, 0)


def test_what_an_engine_evicts_while_gc_works_counts_as_gone(tmp_path: Path) -> None:
    chunks = chunk_files(make_store(tmp_path, 4))

    class EvictedMeanwhile(DiskIO):
        def lstat(self, path: str) -> os.stat_result:
            if path == str(chunks[2]) and chunks[2].exists():
                chunks[2].unlink()
            return super().lstat(path)

    from kvoffload.cli.store.removing import Outcome as Told
    from kvoffload.cli.store.removing import carry_out
    from kvoffload.tiers.fs.accounts import Accounts
    from kvoffload.tiers.fs.cleaning import Cleaner
    from kvoffload.tiers.fs.collecting import Bounds
    from kvoffload.tiers.fs.tidying import make_plan

    store = open_root(str(tmp_path), EvictedMeanwhile())
    accounts = Accounts(store)
    plan = make_plan(store, store.namespaces, accounts, Bounds(everything=True))
    told = Told(store, plan, carry_out(Cleaner(store, accounts), plan.removals, "", as_json=True), accounts)
    assert told.left_bytes == told.planned_left_bytes == counted_bytes(tmp_path)
