"""Limits: fake kernel file systems in, the tightest limit and its origin out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kvoffload.memory.limits import LimitRoots, available_memory, directory_limit

GIB = 1024**3


class FakeMachine:
    def __init__(self, root: Path) -> None:
        self.roots = LimitRoots(root / "proc", root / "cgroup")

    def write(self, path: Path, text: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def meminfo(self, **figures_kib: int) -> None:
        lines = "\n".join(f"{name}: {value} kB" for name, value in figures_kib.items())
        self.write(self.roots.proc / "meminfo", lines)

    def own_cgroup(self, text: str) -> None:
        self.write(self.roots.proc / "self" / "cgroup", text)

    def v2(self, path: str, limit: object, current: int, inactive_file: int = 0) -> None:
        directory = self.roots.cgroup / path
        self.write(directory / "memory.max", limit)
        self.write(directory / "memory.current", current)
        self.write(directory / "memory.stat", f"anon 5\ninactive_file {inactive_file}\nactive_file 7")

    def v1(self, path: str, limit: int, usage: int, inactive_file: int = 0) -> None:
        directory = self.roots.cgroup / "memory" / path
        self.write(directory / "memory.limit_in_bytes", limit)
        self.write(directory / "memory.usage_in_bytes", usage)
        self.write(directory / "memory.stat", f"inactive_file 1\ntotal_inactive_file {inactive_file}")


@pytest.fixture
def fake(tmp_path):
    return FakeMachine(tmp_path)


def test_without_control_groups_the_machine_decides(fake):
    fake.meminfo(MemTotal=9999, MemFree=10, MemAvailable=2048)
    limit = available_memory(fake.roots)
    assert limit.available_bytes == 2048 * 1024
    assert "MemAvailable" in limit.source


def test_own_v2_group_is_tighter_than_the_machine_and_cache_that_can_go_counts_as_free(fake):
    fake.meminfo(MemAvailable=64 * 1024**2)
    fake.own_cgroup("0::/pod/box")
    fake.v2("pod/box", 4 * GIB, 3 * GIB, inactive_file=GIB // 2)
    limit = available_memory(fake.roots)
    assert limit.available_bytes == 3 * GIB // 2
    assert "pod/box/memory.max" in limit.source
    assert "4.00 GiB" in limit.source


def test_an_ancestor_can_be_the_tightest(fake):
    fake.meminfo(MemAvailable=64 * 1024**2)
    fake.own_cgroup("0::/pod/box")
    fake.v2("pod/box", "max", GIB)
    fake.v2("pod", 2 * GIB, GIB)
    limit = available_memory(fake.roots)
    assert limit.available_bytes == GIB
    assert "pod/memory.max" in limit.source


def test_a_container_sees_its_limit_at_the_mount_although_its_path_is_the_hosts(fake):
    fake.meminfo(MemAvailable=64 * 1024**2)
    fake.own_cgroup("0::/system.slice/docker-abc.scope")
    fake.v2(".", 3 * GIB, GIB)
    assert available_memory(fake.roots).available_bytes == 2 * GIB


def test_a_path_outside_the_namespace_does_not_leave_the_mount(fake):
    fake.meminfo(MemAvailable=1024)
    fake.own_cgroup("0::/../../elsewhere")
    fake.v2("elsewhere", 600, 88)
    assert available_memory(fake.roots).available_bytes == 512


def test_v1_group_counts_with_its_whole_subtree(fake):
    fake.meminfo(MemAvailable=64 * 1024**2)
    fake.own_cgroup("9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/")
    fake.v1("docker/abc", 2 * GIB, GIB, inactive_file=GIB // 4)
    limit = available_memory(fake.roots)
    assert limit.available_bytes == GIB + GIB // 4
    assert "memory.limit_in_bytes" in limit.source


def test_unlimited_v1_group_limits_nothing(fake):
    fake.meminfo(MemAvailable=1024)
    fake.own_cgroup("4:memory:/")
    fake.v1(".", 9223372036854771712, 5)
    assert available_memory(fake.roots).available_bytes == 1024 * 1024


def test_a_group_over_its_limit_has_nothing_left(fake):
    fake.meminfo(MemAvailable=1024)
    fake.own_cgroup("0::/box")
    fake.v2("box", 100, 200)
    assert available_memory(fake.roots).available_bytes == 0


def test_more_cache_than_usage_never_exceeds_the_limit(fake):
    fake.meminfo(MemAvailable=1024)
    fake.own_cgroup("0::/box")
    fake.v2("box", 100, 50, inactive_file=500)
    assert available_memory(fake.roots).available_bytes == 100


def test_commit_limit_counts_only_where_overcommitting_is_forbidden(fake):
    fake.meminfo(MemAvailable=4096, CommitLimit=3000, Committed_AS=1000)
    fake.write(fake.roots.proc / "sys" / "vm" / "overcommit_memory", 0)
    assert available_memory(fake.roots).available_bytes == 4096 * 1024
    fake.write(fake.roots.proc / "sys" / "vm" / "overcommit_memory", 2)
    limit = available_memory(fake.roots)
    assert limit.available_bytes == 2000 * 1024
    assert "CommitLimit" in limit.source


@pytest.mark.parametrize("text", ["", "garbage", "0::", "::::\n\n4:memory", "MemAvailable: lots kB"])
def test_unreadable_limits_are_left_out_and_said(fake, text, caplog):
    fake.write(fake.roots.proc / "meminfo", text)
    fake.own_cgroup(text)
    limit = available_memory(fake.roots)
    assert limit.available_bytes == sys.maxsize
    assert "no limit" in limit.source
    assert "no memory limit" in caplog.text


def test_this_machine_has_a_limit():
    assert 0 < available_memory().available_bytes < 2**60


def test_a_directory_allows_what_its_file_system_has_left(tmp_path, monkeypatch):
    limit = directory_limit(tmp_path)
    assert limit.available_bytes > 0
    assert str(tmp_path) in limit.source

    class Unlimited:
        f_blocks = f_bavail = 0
        f_frsize = 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Unlimited)
    assert directory_limit(tmp_path).available_bytes == sys.maxsize
