"""The usage record: whatever writers and walks do, and however they die, it never says less than what is there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fs_support import FaultyDisk
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvoffload.clock import ManualClock, MonotonicClock
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.share import Baseline, UsageShare
from kvoffload.tiers.fs.usage import Usage, UsageBusyError, UsageFile, WriterUsage, decode_usage

CAP = 6400
SLOTS = 4


class FakeRecord(UsageFile):
    """The record without a disk; goes through its encoding all the same."""

    def __init__(self) -> None:
        self.data = b""

    def update(self, change: Callable[[Usage], Usage]) -> Usage:
        before = decode_usage(self.data) or Usage("epoch", None, 0, 0, 0.0, {})
        after = change(before)
        self.data = after.encode()
        return after

    def read(self) -> Usage | None:
        return decode_usage(self.data)


class Writer:
    def __init__(self, record: FakeRecord, name: str, clock: ManualClock) -> None:
        self.name = name
        self.share = UsageShare(record, name, CAP, clock)
        self.writing: list[list[int]] = []
        """[taken, slot, bytes of the temporary file so far]"""
        self.freeing: list[tuple[int, int]] = []
        """(size, counts noted before): deleted, and not told yet."""
        self.walk: tuple[Baseline, int, int] | None = None
        """(baseline, next slot, bytes found)."""


class UsageMachine(RuleBasedStateMachine):
    """Several writers and their walks, interleaved step by step, against a model of the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.record, self.clock = FakeRecord(), ManualClock(1000.0)
        self.files: list[tuple[int, int]] = []
        """(size, slot) of every finished file."""
        self.orphans: list[tuple[int, int]] = []
        """The same for temporary files of the dead."""
        self.dead: set[str] = set()
        self.born = 0
        self.writers = [self.new_writer() for _ in range(3)]
        share = self.writers[0].share
        share.end_count(share.begin_count(self.is_dead)[1], 0, is_whole=True)

    def new_writer(self) -> Writer:
        self.born += 1
        return Writer(self.record, f"w{self.born}", self.clock)

    def is_dead(self, name: str, _entry: WriterUsage) -> bool:
        return name in self.dead

    def in_slot(self, slot: int) -> int:
        temps = sum(size for w in self.writers for _, where, size in w.writing if where == slot)
        return temps + sum(size for size, where in self.files + self.orphans if where == slot)

    @property
    def actual(self) -> int:
        return sum(map(self.in_slot, range(SLOTS)))

    @rule(w=st.integers(0, 2), need=st.integers(1, 900), slot=st.integers(0, SLOTS - 1))
    def take(self, w: int, need: int, slot: int) -> None:
        writer = self.writers[w]
        missing = writer.share.take(need)
        if missing == 0:
            writer.writing.append([need, slot, 0])
        else:
            assert missing is not None
            assert missing > 0

    @precondition(lambda self: any(w.writing for w in self.writers))
    @rule(data=st.data(), part=st.floats(0, 1))
    def write_some(self, data: st.DataObject, part: float) -> None:
        writing = data.draw(st.sampled_from([one for w in self.writers for one in w.writing]))
        writing[2] = max(writing[2], int(writing[0] * part))

    @precondition(lambda self: any(w.writing for w in self.writers))
    @rule(data=st.data(), works=st.booleans(), unused=st.integers(0, 50))
    def end_write(self, data: st.DataObject, works: bool, unused: int) -> None:
        writer = data.draw(st.sampled_from([w for w in self.writers if w.writing]))
        taken, slot, _ = writer.writing.pop()
        size = max(0, taken - unused) if works else 0
        if size:
            self.files.append((size, slot))
        writer.share.settle(taken, size)

    @precondition(lambda self: self.files)
    @rule(data=st.data(), w=st.integers(0, 2))
    def evict(self, data: st.DataObject, w: int) -> None:
        writer = self.writers[w]
        counts = writer.share.counts
        size, slot = data.draw(st.sampled_from(self.files))
        self.files.remove((size, slot))
        writer.freeing.append((size, counts))

    @precondition(lambda self: any(w.freeing for w in self.writers))
    @rule(data=st.data())
    def tell_freed(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from([w for w in self.writers if w.freeing]))
        writer.share.freed(*writer.freeing.pop())

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def somebody_else_deletes(self, data: st.DataObject) -> None:
        self.files.remove(data.draw(st.sampled_from(self.files)))

    @precondition(lambda self: self.files)
    @rule(data=st.data(), w=st.integers(0, 2), other=st.integers(0, 2))
    def evict_around_a_walk(self, data: st.DataObject, w: int, other: int) -> None:
        self.evict(data, w)
        self.walk_to_the_end(other)
        writer = self.writers[w]
        while writer.freeing:
            writer.share.freed(*writer.freeing.pop())
        writer.share.show()

    @rule(w=st.integers(0, 2), seconds=st.floats(0, 100))
    def show(self, w: int, seconds: float) -> None:
        self.clock.advance(seconds)
        self.writers[w].share.show()

    @rule(w=st.integers(0, 2))
    def leave_and_return(self, w: int) -> None:
        if self.writers[w].walk is None:
            self.writers[w].share.close()

    @rule(w=st.integers(0, 2))
    def die(self, w: int) -> None:
        writer = self.writers[w]
        self.dead.add(writer.name)
        self.orphans += [(size, slot) for _, slot, size in writer.writing if size]
        self.writers[w] = self.new_writer()

    @rule(w=st.integers(0, 2))
    def begin_walk(self, w: int) -> None:
        writer = self.writers[w]
        if writer.walk is None:
            writer.walk = (writer.share.begin_count(self.is_dead)[1], 0, 0)

    @rule(w=st.integers(0, 2))
    def walk_on(self, w: int) -> None:
        writer = self.writers[w]
        if writer.walk is None:
            return
        baseline, slot, found = writer.walk
        if slot < SLOTS:
            writer.walk = (baseline, slot + 1, found + self.in_slot(slot))
        else:
            writer.share.end_count(baseline, found, is_whole=True)
            writer.walk = None

    @rule(w=st.integers(0, 2))
    def walk_to_the_end(self, w: int) -> None:
        self.begin_walk(w)
        while self.writers[w].walk is not None:
            self.walk_on(w)

    @invariant()
    def the_record_never_says_less_than_what_is_there_and_promised(self) -> None:
        usage = self.record.read()
        assert usage is not None
        assert usage.used_bytes is not None
        promised = sum(w.share._allowance_bytes + w.share._writing_bytes for w in self.writers)
        temps = sum(size for w in self.writers for _, _, size in w.writing)
        assert usage.used_bytes >= self.actual - temps + promised

    @invariant()
    def the_cap_holds(self) -> None:
        assert self.actual <= CAP

    def teardown(self) -> None:
        # When nothing moves, one walk makes it exact.
        for writer in self.writers:
            while writer.writing:
                taken, _, _ = writer.writing.pop()
                writer.share.settle(taken, 0)
            if writer.walk is None:
                writer.share.close()
        writer = self.writers[0]
        baseline = writer.share.begin_count(self.is_dead)[1]
        usage = writer.share.end_count(baseline, self.actual, is_whole=True)
        if all(w.walk is None for w in self.writers):
            assert usage.used_bytes == self.actual


UsageMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestUsageMachine = UsageMachine.TestCase


def make_file(root: Path, name: str = "one", disk: DiskIO | None = None) -> UsageFile:
    return UsageFile(disk or DiskIO(), f"{root}/store/.kvoffload/usage", name, MonotonicClock())


def counted(share: UsageShare, found: int = 0) -> None:
    share.end_count(share.begin_count(lambda *_: False)[1], found, is_whole=True)


def test_threads_and_tiers_take_turns_and_nothing_is_lost(tmp_path: Path) -> None:
    def count_up(name: str) -> None:
        file = make_file(tmp_path, name)
        for _ in range(50):
            file.update(
                lambda usage: Usage(
                    usage.epoch, usage.used_bytes, usage.promised_total_bytes + 1, usage.counts, 0.0, {}
                )
            )

    threads = [threading.Thread(target=count_up, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    usage = make_file(tmp_path).read()
    assert usage is not None
    assert usage.promised_total_bytes == 200


def test_a_lock_that_is_held_for_ever_costs_a_bounded_wait(tmp_path: Path) -> None:
    make_file(tmp_path).update(lambda usage: usage)
    disk = DiskIO()
    holder = disk.open(f"{tmp_path}/store/.kvoffload/usage", os.O_RDWR)
    assert disk.try_lock(holder)
    with pytest.raises(UsageBusyError):
        make_file(tmp_path).update(lambda usage: usage)
    disk.close(holder)
    make_file(tmp_path).update(lambda usage: usage)


@pytest.mark.parametrize("data", [b"", b"\n", b"garbage", b"0" * 32 + b"\n{}", b"\xff" * 5000])
def test_a_damaged_record_begins_anew_and_promises_nothing_before_a_count(
    tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "store" / ".kvoffload" / "usage"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    share = UsageShare(make_file(tmp_path), "one", 1000, ManualClock())
    assert share.take(10) is None
    counted(share, 900)
    assert share.take(10) == 0
    assert share.take(200) == 110


def test_a_record_of_a_later_version_is_left_alone_and_promises_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store" / ".kvoffload" / "usage"
    path.parent.mkdir(parents=True)
    data = b'0123\n{"kind": "kvoffload usage", "version": 2, "anything": []}\n'
    path.write_bytes(data)
    share = UsageShare(make_file(tmp_path), "one", 1000, ManualClock())
    with pytest.raises(OSError, match="later version"):
        share.take(10)
    assert path.read_bytes() == data


def test_a_record_that_was_removed_under_a_writer_is_noticed(tmp_path: Path) -> None:
    disk = FaultyDisk()
    file = make_file(tmp_path, disk=disk)
    path = tmp_path / "store" / ".kvoffload" / "usage"
    file.update(lambda usage: usage)
    removed = []

    def remove_once(*_: object) -> None:
        if not removed:
            removed.append(True)
            path.unlink()

    with disk.fault("try_lock", remove_once):
        file.update(lambda usage: usage)
    # It was written to the file at the path, not to the one without a name.
    assert path.exists()
    assert make_file(tmp_path).read() is not None


@pytest.mark.parametrize("call", ["write_from", "truncate", "try_lock", "read_into", "fstat", "open"])
def test_what_could_not_be_recorded_is_not_promised(tmp_path: Path, call: str) -> None:
    disk = FaultyDisk()
    share = UsageShare(make_file(tmp_path, disk=disk), "one", 100_000, ManualClock())
    counted(share)
    with disk.fault(call, 5), pytest.raises(OSError, match="5"):
        share.take(10)
    assert share._allowance_bytes == 0
    assert share.take(10) == 0


def test_an_incomplete_walk_lowers_nothing(tmp_path: Path) -> None:
    share = UsageShare(make_file(tmp_path), "one", 100_000, ManualClock())
    counted(share, 50_000)
    usage = share.end_count(share.begin_count(lambda *_: False)[1], 10, is_whole=False)
    assert usage.used_bytes is not None
    assert usage.used_bytes >= 50_000


def test_promises_of_the_dead_are_given_up_at_the_next_count(tmp_path: Path) -> None:
    dead = UsageShare(make_file(tmp_path, "dead"), "dead", 100_000, ManualClock())
    counted(dead)
    assert dead.take(50_000) == 0
    live = UsageShare(make_file(tmp_path, "live"), "live", 100_000, ManualClock())
    assert live.take(60_000) not in (0, None)
    live.end_count(live.begin_count(lambda name, _: name == "dead")[1], 0, is_whole=True)
    assert live.take(60_000) == 0


def test_a_writer_that_was_given_up_by_mistake_spends_nothing_that_it_was_promised(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    slept = UsageShare(make_file(tmp_path, "slept"), "slept", 100_000, clock)
    counted(slept)
    assert slept.take(100) == 0
    assert slept._allowance_bytes > 0
    other = UsageShare(make_file(tmp_path, "other"), "other", 100_000, clock)
    other.end_count(other.begin_count(lambda name, _: name == "slept")[1], 0, is_whole=True)
    # It was suspended for hours, and then goes on.
    clock.advance(10_000)
    assert slept.take(100) == 0
    usage = make_file(tmp_path).read()
    assert usage is not None
    assert usage.used_bytes is not None
    assert usage.used_bytes >= other._allowance_bytes + slept._allowance_bytes + slept._writing_bytes
