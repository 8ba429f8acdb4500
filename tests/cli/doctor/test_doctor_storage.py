"""The doctor's answers about directories on disks that fail, lie, or are full."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tiers" / "fs"))

from fs_support import FaultyDisk, Store, make_keys

from kvoffload.cli.doctor.check import Check, Verdict
from kvoffload.cli.doctor.mounts import check_mount, mount_of
from kvoffload.cli.doctor.storage import StorageOptions, check_storage
from kvoffload.tiers.fs.disk import DiskIO

SMALL = 256 * 1024
TABLE = r"""20 1 254:0 / / rw,relatime - ext4 /dev/vda rw
21 20 0:5 / /dev/shm rw - tmpfs tmpfs rw
22 20 0:6 / /mnt/my\040kv rw - nfs4 server:/kv rw,vers=4.2
23 20 0:7 / /mnt/layer rw - overlay overlay rw
24 22 0:8 / /mnt/my\040kv/deep rw - xfs /dev/vdb rw
garbage
"""


def ask(path: Path | str, disk: DiskIO | None = None, **options: Any) -> dict[str, Check]:
    checks = list(check_storage(str(path), StorageOptions(**{"speed_bytes": SMALL, **options}), disk))
    found = {check.name: check for check in checks}
    assert len(found) == len(checks)
    return found


def verdicts(checks: dict[str, Check]) -> dict[str, Verdict]:
    return {name: check.verdict for name, check in checks.items() if check.verdict is not Verdict.OK}


def without_place(checks: dict[str, Check]) -> dict[str, Verdict]:
    """Where the tests run may be a tmpfs, an overlay or a slow disk."""
    return {
        name: one
        for name, one in verdicts(checks).items()
        if name not in ("file system", "O_DIRECT", "speed")
    }


def test_an_empty_directory_of_a_sound_disk_is_fine_and_stays_empty(tmp_path: Path) -> None:
    checks = ask(tmp_path)
    assert without_place(checks) == {}
    assert "MiB/s" in checks["speed"].found
    assert os.listdir(tmp_path) == []


def test_a_directory_that_does_not_exist_is_looked_at_from_the_nearest_that_does(tmp_path: Path) -> None:
    checks = ask(tmp_path / "a" / "b")
    assert without_place(checks) == {"directory": Verdict.WARN}
    assert "mount" in checks["directory"].mend
    assert os.listdir(tmp_path) == []


def test_a_file_and_a_dangling_link_are_no_directories(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("file", "link"):
        assert verdicts(ask(tmp_path / name)) == {"directory": Verdict.FAIL}


def test_a_directory_that_may_not_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, whom no permission stops."""

    def refuse(**_options: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("kvoffload.cli.doctor.storage.tempfile.mkdtemp", refuse)
    checks = ask(tmp_path)
    assert checks["writable"].verdict is Verdict.FAIL
    assert "read_only" in checks["writable"].mend
    assert "speed" not in checks


def test_a_disk_without_direct_io_is_a_warning_and_measured_all_the_same(tmp_path: Path) -> None:
    disk = FaultyDisk()

    def refuse(_path: str, flags: int) -> None:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")

    with disk.fault("open", refuse):
        checks = ask(tmp_path, disk)
    assert checks["O_DIRECT"].verdict is Verdict.WARN
    assert "page cache" in checks["speed"].found


@pytest.mark.parametrize(
    ("call", "name"),
    [("rename", "rename and fsync"), ("fsync", "rename and fsync"), ("try_lock", "record locks")],
)
def test_what_a_tier_cannot_do_without_is_a_failure(tmp_path: Path, call: str, name: str) -> None:
    disk = FaultyDisk()
    with disk.fault(call, errno.ENOLCK):
        checks = ask(tmp_path, disk)
    assert checks[name].verdict is Verdict.FAIL
    assert os.listdir(tmp_path) == []


def test_locks_that_do_not_exclude_are_a_failure(tmp_path: Path) -> None:
    class Lying(DiskIO):
        def try_lock(self, fd: int) -> bool:
            return True

    assert ask(tmp_path, Lying())["record locks"].verdict is Verdict.FAIL


@pytest.mark.parametrize(("skew_s", "words"), [(-3600, "ahead of"), (3600, "behind")])
def test_a_file_server_with_another_clock_is_a_warning(tmp_path: Path, skew_s: int, words: str) -> None:
    import time

    check = ask(tmp_path, now_s=lambda: time.time() + skew_s)["clock"]
    assert check.verdict is Verdict.WARN
    assert words in check.found


def with_space(free: int, total: int) -> DiskIO:
    class Sized(DiskIO):
        def statvfs(self, path: str) -> os.statvfs_result:
            return os.statvfs_result((4096, 4096, total // 4096, free // 4096, free // 4096, 0, 0, 0, 0, 255))

    return Sized()


@pytest.mark.parametrize(
    ("free_gib", "cap_gib", "verdict"),
    [(100, None, Verdict.OK), (100, 50, Verdict.OK), (100, 200, Verdict.WARN), (10, None, Verdict.FAIL)],
)
def test_free_space_is_compared_with_the_cap(
    tmp_path: Path, free_gib: int, cap_gib: int | None, verdict: Verdict
) -> None:
    disk = with_space(free_gib * 1024**3, 1000 * 1024**3)
    cap = None if cap_gib is None else cap_gib * 1024**3
    assert ask(tmp_path, disk, cap_bytes=cap)["free space"].verdict is verdict


def test_on_a_full_disk_nothing_is_measured(tmp_path: Path) -> None:
    assert ask(tmp_path, with_space(0, 1024**3))["speed"].verdict is Verdict.WARN


def test_a_store_is_told_from_strangers(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.store(make_keys(1))
    assert "1 readable" in ask(tmp_path / "store")["store"].found
    (store.directory / "namespace.json").write_text("{}")
    odd = ask(tmp_path / "store")["store"]
    assert odd.verdict is Verdict.WARN
    assert "kvoffload verify" in odd.mend
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters").mkdir()
    assert ask(tmp_path / "home")["store"].verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("directory", "kind", "verdict"),
    [
        ("/kv", "ext4", Verdict.OK),
        ("/dev/shm/kv", "tmpfs", Verdict.WARN),
        ("/mnt/my kv/a", "nfs4", Verdict.OK),
        ("/mnt/my kv/deep/a", "xfs", Verdict.OK),
        ("/mnt/my kvs", "ext4", Verdict.OK),
        ("/mnt/layer", "overlay", Verdict.WARN),
    ],
)
def test_the_mount_of_a_directory_is_the_deepest_above_it(
    tmp_path: Path, directory: str, kind: str, verdict: Verdict
) -> None:
    mount = mount_of(directory, TABLE)
    assert mount is not None
    assert mount.kind == kind
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(TABLE)
    assert check_mount(directory, tmp_path).verdict is verdict
