"""The doctor's answers about machines that are not this one."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from kvoffload.cli.doctor.check import Verdict, guarded
from kvoffload.cli.doctor.machine import (
    Machine,
    check_huge_pages,
    check_locked_memory,
    check_machine,
    check_memory,
    check_open_files,
    check_shared_memory,
)
from kvoffload.memory.limits import LimitRoots

GIB = 1024**3
NO_LIMIT = resource.RLIM_INFINITY


def machine(tmp_path: Path, free_kib: int = 8 * 1024**2, **changes: Any) -> Machine:
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemAvailable: {free_kib} kB\n")
    (tmp_path / "dev" / "shm").mkdir(parents=True, exist_ok=True)
    defaults = {
        "roots": LimitRoots(tmp_path / "proc", tmp_path / "cgroup"),
        "sys_dir": tmp_path / "sys",
        "dev_dir": tmp_path / "dev",
        "limit_of": lambda _kind: (NO_LIMIT, NO_LIMIT),
    }
    return Machine(**{**defaults, **changes})


def no_memfd(_name: str) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize(
    ("wanted", "verdict"),
    [
        (None, Verdict.OK),
        (4 * GIB, Verdict.OK),
        (int(7.9 * GIB), Verdict.WARN),
        (8 * GIB, Verdict.WARN),
        (9 * GIB, Verdict.FAIL),
    ],
)
def test_memory_is_compared_with_what_is_wanted(tmp_path: Path, wanted: int | None, verdict: Verdict) -> None:
    check = check_memory(machine(tmp_path), wanted)
    assert check.verdict is verdict
    assert "MemAvailable" in check.found
    assert (str(8 * GIB) in check.mend) is (verdict is Verdict.FAIL)


def test_the_control_group_limits_when_it_is_the_tightest(tmp_path: Path) -> None:
    here = machine(tmp_path)
    (tmp_path / "proc" / "self").mkdir()
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "memory.max").write_text(str(2 * GIB))
    (tmp_path / "cgroup" / "memory.current").write_text("0")
    check = check_memory(here, 3 * GIB)
    assert check.verdict is Verdict.FAIL
    assert "memory.max" in check.found


def test_without_memfd_dev_shm_has_to_be_large_enough(tmp_path: Path) -> None:
    assert check_shared_memory(machine(tmp_path), 1).verdict is Verdict.OK
    assert check_shared_memory(machine(tmp_path, make_memfd=no_memfd), 1).verdict is Verdict.WARN
    too_much = check_shared_memory(machine(tmp_path, make_memfd=no_memfd), 2**60)
    assert too_much.verdict is Verdict.FAIL
    assert "--shm-size" in too_much.mend
    (tmp_path / "dev" / "shm").rmdir()
    assert check_shared_memory(Machine(dev_dir=tmp_path / "dev", make_memfd=no_memfd), 1).is_failed
    assert check_shared_memory(Machine(dev_dir=tmp_path / "dev"), 1).verdict is Verdict.OK


def test_locked_memory_matters_only_with_a_gpu(tmp_path: Path) -> None:
    small = machine(tmp_path, limit_of=lambda _kind: (65536, NO_LIMIT))
    assert check_locked_memory(small, GIB).verdict is Verdict.OK
    (tmp_path / "dev" / "nvidia0").touch()
    check = check_locked_memory(small, GIB)
    assert (check.verdict, "ulimit -l" in check.mend) == (Verdict.WARN, True)
    assert check_locked_memory(machine(tmp_path), GIB).verdict is Verdict.OK


def test_too_few_open_files_are_a_warning(tmp_path: Path) -> None:
    assert check_open_files(machine(tmp_path, limit_of=lambda _kind: (256, 4096))).verdict is Verdict.WARN
    assert check_open_files(machine(tmp_path, limit_of=lambda _kind: (1024, 4096))).verdict is Verdict.OK
    assert "unlimited" in check_open_files(machine(tmp_path)).found


def test_huge_pages_are_told_and_never_a_reason_not_to_start(tmp_path: Path) -> None:
    assert check_huge_pages(machine(tmp_path)).verdict is Verdict.OK
    file = tmp_path / "sys" / "kernel" / "mm" / "transparent_hugepage" / "shmem_enabled"
    file.parent.mkdir(parents=True)
    file.write_text("always within_size [advise] never deny force\n")
    check = check_huge_pages(machine(tmp_path))
    assert check.verdict is Verdict.OK
    assert "advise" in check.found


def test_this_machine_can_be_asked_everything() -> None:
    checks = list(check_machine(Machine(), None))
    assert len(checks) == len({check.name for check in checks}) == 5


def test_what_the_system_refuses_to_say_is_a_warning_and_not_the_end() -> None:
    def ask() -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")
        yield

    (check,) = guarded("something", ask)
    assert (check.name, check.verdict) == ("something", Verdict.WARN)
    assert "Permission denied" in check.found
