"""Opening a store on a disk that is full, read only or sick: a warning, loads go on, and stores come back by themselves."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from pathlib import Path

import pytest
from fs_support import FaultyDisk, Store, make_keys, make_namespace
from test_fs_faults import fill, mounted

from kvoffload.clock import ManualClock
from kvoffload.errors import ConfigError
from kvoffload.tiers.base import Outcome, TierContext
from kvoffload.tiers.fs.options import FsTierConfig
from kvoffload.tiers.fs.tier import FsTier

DONE, MISSING, CORRUPT, REJECTED, FAILED = Outcome
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)


@pytest.mark.parametrize("error", PASSING, ids=lambda error: errno.errorcode[error])
@pytest.mark.parametrize("call", ["mkdir", "open", "write_from", "rename"])
def test_what_may_pass_does_not_keep_an_engine_from_starting(
    tmp_path: Path, call: str, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk, clock, keys = FaultyDisk(), ManualClock(), make_keys(2)
    with caplog.at_level(logging.WARNING, "kvoffload"), disk.fault(call, error):
        store = Store(tmp_path / "store", disk=disk, clock=clock)
    with store:
        told = [one for one in caplog.records if "opened all the same" in one.message]
        assert len(told) <= 1
        assert told or call == "write_from"
        clock.advance(10)
        assert store.store(keys) == [DONE] * 2
        assert store.load(keys) == [DONE] * 2


@pytest.mark.parametrize(
    ("error", "mending"),
    [(errno.EACCES, "may write"), (errno.EPERM, "may write"), (errno.ENOTDIR, "no directory")],
)
def test_what_will_not_pass_is_refused_with_what_to_do(tmp_path: Path, error: int, mending: str) -> None:
    disk = FaultyDisk()
    with disk.fault("mkdir", error), pytest.raises(ConfigError, match=mending):
        Store(tmp_path / "store", disk=disk)


def test_another_configurations_directory_is_refused_on_a_sick_disk_too(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        directory = store.directory
    text = (directory / "namespace.json").read_text().replace('"layout_version": 1', '"layout_version": 7')
    (directory / "namespace.json").write_text(text)
    disk = FaultyDisk()
    with disk.fault("mkdir", errno.EROFS), pytest.raises(ConfigError, match="layout_version"):
        Store(tmp_path, disk=disk)


def test_an_engine_starts_on_a_really_full_file_system(tmp_path: Path) -> None:
    root, keys, clock = tmp_path / "full", make_keys(3), ManualClock()
    with mounted(root, "256k"):
        with Store(root) as store:
            assert store.store(keys) == [DONE] * 3
        fill(root / "ballast")
        # Another model's engine has no directory yet.
        other = make_namespace("org/other")
        with Store(root, clock=clock) as store, Store(root, clock=clock, namespace=other) as second:
            assert store.load(keys) == [DONE] * 3
            assert FAILED not in second.store(keys)
            (root / "ballast").unlink()
            clock.advance(10)
            assert second.store(keys) == [DONE] * 3


def test_an_engine_starts_on_a_really_read_only_file_system(tmp_path: Path) -> None:
    root, keys, clock = tmp_path / "read-only", make_keys(3), ManualClock()
    with mounted(root, "1m"):
        with Store(root) as store:
            store.store(keys)
        done = subprocess.run(["mount", "-o", "remount,ro", str(root)], check=False, capture_output=True)
        if done.returncode:
            pytest.skip(f"remounting is not permitted here: {done.stderr.decode().strip()}")
        with Store(root, clock=clock, max_bytes=10**6) as store:
            assert store.load(keys) == [DONE] * 3
            assert set(store.store(make_keys(2, "new"))) == {REJECTED}
            subprocess.run(["mount", "-o", "remount,rw", str(root)], check=True)
            clock.advance(10)
            store.walk()
            assert store.store(make_keys(2, "new")) == [DONE] * 2
    assert os.path.lexists(root)


def test_a_cap_under_which_nothing_fits_is_refused_with_the_least_that_does(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"at least \d+; a number without a unit is bytes.*'100GiB'"
    ) as refused:
        Store(tmp_path, max_bytes=100)
    least = int(str(refused.value).partition("at least ")[2].partition(";")[0])
    with pytest.raises(ConfigError, match=f"at least {least}$"):
        Store(tmp_path, max_bytes=least - 1)
    with Store(tmp_path, max_bytes=least) as store:
        store.wait_for_walk()
        assert store.store(make_keys(1)) == [DONE]
    # A tier that only reads has no use for it.
    with Store(tmp_path, max_bytes=100, read_only=True) as store:
        assert store.load(make_keys(1)) == [DONE]


def test_a_tier_knows_how_many_other_namespaces_of_its_model_were_there(tmp_path: Path) -> None:
    def seen(model: str, seed: str) -> int:
        context = TierContext(make_namespace(model, hash_seed=seed), (4096,))
        tier = FsTier.open(FsTierConfig(root_dir=str(tmp_path), min_free_bytes=0), context)
        try:
            return tier.stats().other_namespaces
        finally:
            tier.shutdown()

    assert [seen("org/model", seed) for seed in ("1", "2", "1", "3")] == [0, 1, 1, 2]
    assert seen("org/other_model", "1") == 0
    assert seen("org/model", "3") == 2
