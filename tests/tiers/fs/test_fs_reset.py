"""A reset: what was there before is never served again by this process, and what comes after it is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fs_support import HIT, MISS, FaultyDisk, Store, make_keys

from kvoffload.clock import ManualClock
from kvoffload.tiers.base import Outcome

DONE, MISSING, CORRUPT, REJECTED, FAILED = Outcome


@pytest.mark.parametrize("age_s", [0, 3600], ids=["just stored", "old"])
def test_a_reset_empties_a_tier_that_only_reads_and_deletes_nothing(tmp_path: Path, age_s: int) -> None:
    keys, disk = make_keys(4), FaultyDisk()
    with Store(tmp_path) as writer:
        writer.store(keys)
        for key in keys:
            used_s = time.time() - age_s
            os.utime(writer.path_of(key), (used_s, used_s))
        with Store(tmp_path, disk=disk, read_only=True, negative_ttl_s=0.001) as reader:
            assert reader.load(keys) == [DONE] * 4
            assert reader.tier.clear()
            reader.walk()
            assert reader.load(keys) == [MISSING] * 4
            # The files stay, and nothing is proposed, loaded and found void for ever.
            reads = disk.calls["read_into"]
            for _ in range(3):
                assert reader.lookup(keys) == [MISS] * 4
                reader.walk()
                time.sleep(0.002)
            assert disk.calls["read_into"] == reads
            assert len(writer.files()) == 4
            new = make_keys(2, "new")
            assert writer.store(new) == [DONE] * 2
            assert reader.lookup(new) == [HIT] * 2
            assert reader.load(new) == [DONE] * 2


def test_old_chunks_are_a_miss_after_a_reset_without_being_read(tmp_path: Path) -> None:
    keys = make_keys(4)
    with Store(tmp_path) as writer:
        writer.store(keys)
        for key in keys:
            os.utime(writer.path_of(key), (1e9, 1e9))
    with Store(tmp_path, read_only=True) as reader:
        reader.wait_for_walk()
        assert reader.tier.clear()
        reader.walk()
        assert reader.lookup(keys) == [MISS] * 4
        assert reader.counters().get("void_loads", 0) == 0


def test_a_reset_while_the_one_before_ends_leaves_the_tier_on(tmp_path: Path) -> None:
    keys = make_keys(2)
    with Store(tmp_path) as store:
        store.store(keys)
        end, second = store.tier._end_clearing, threading.Thread(target=store.tier.clear)

        def end_slowly(*arguments: object) -> None:
            def clear_meanwhile(*_: object) -> None:
                second.start()
                second.join(0.3)
                for argument in arguments:
                    argument()  # type: ignore[operator]

            store.tier._end_clearing = end
            if arguments:
                end(clear_meanwhile)
            else:
                end()
                clear_meanwhile()

        store.tier._end_clearing = end_slowly
        store.tier.clear()
        second.join(10)
        assert store.store(keys) == [DONE] * 2
        assert store.lookup(keys) == [HIT] * 2


def test_a_clock_that_is_set_back_after_a_reset_voids_nothing(tmp_path: Path) -> None:
    keys, wall = make_keys(3), ManualClock(2e9)
    with Store(tmp_path, wall_clock=wall) as store:
        assert store.tier.clear()
        wall._now_s -= 7200
        assert store.store(keys) == [DONE] * 3
        assert store.load(keys) == [DONE] * 3
        assert len(store.files()) == 3
        # And a reset under the same clock reaches what came after the one before.
        old = store.path_of(keys[0]).read_bytes()
        assert store.tier.clear()
        store.path_of(keys[0]).parent.mkdir(parents=True, exist_ok=True)
        store.path_of(keys[0]).write_bytes(old)
        assert store.load(keys[:1]) == [MISSING]


def test_a_reset_that_deletes_in_the_callers_thread_ends(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.store(make_keys(2))

        def at_once(work: Callable[[], None], _name: str) -> list[threading.Thread]:
            work()
            return []

        store.tier._spawn = at_once
        done = threading.Thread(target=store.tier.clear, daemon=True)
        done.start()
        done.join(10)
        assert not done.is_alive()
        assert store.files() == set()
        del store.tier._spawn
