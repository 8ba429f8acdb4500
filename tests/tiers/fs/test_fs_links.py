"""Links inside a store: nothing is stored, loaded, counted or deleted through one. The root itself may be one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fs_support import MISS, FaultyDisk, Store, make_key, make_keys, make_namespace

from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome
from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.cleaning import Cleaner
from kvoffload.tiers.fs.collecting import Bounds
from kvoffload.tiers.fs.store_root import open_root
from kvoffload.tiers.fs.tidying import make_plan

DONE, MISSING, CORRUPT, REJECTED, FAILED = Outcome


def swap_for_link(directory: Path, outside: Path) -> None:
    """What was there now lies outside, and a link leads to it."""
    shutil.move(directory, outside)
    directory.symlink_to(outside)


def level_of(store: Store, key: OffloadKey, level: int) -> Path:
    return store.path_of(key).parents[level]


@pytest.mark.parametrize("level", [0, 1], ids=["hh/hh", "hh"])
def test_nothing_goes_through_a_directory_that_is_a_link(tmp_path: Path, level: int) -> None:
    (key,), outside = make_keys(1), tmp_path / "outside"
    root = tmp_path / "root"
    with Store(root) as store:
        store.store([key])
        swap_for_link(level_of(store, key, level), outside)
    kept = sorted(outside.rglob("*"))
    with Store(root) as store:
        assert store.load([key]) == [MISSING]
        assert store.lookup([key]) == [MISS]
        assert store.store([key]) == [REJECTED]
        assert store.tier.clear()
        assert sorted(outside.rglob("*")) == kept


@pytest.mark.parametrize("level", [0, 1], ids=["hh/hh", "hh"])
def test_a_new_chunk_is_not_stored_behind_a_link(tmp_path: Path, level: int) -> None:
    key, outside, root = make_key(1), tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    with Store(root) as store:
        place = level_of(store, key, level)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(outside)
        assert store.store([key]) == [REJECTED]
        assert list(outside.iterdir()) == []


def test_a_namespace_that_is_a_link_is_refused_and_a_root_that_is_one_is_not(tmp_path: Path) -> None:
    real, outside = tmp_path / "real", tmp_path / "outside"
    real.mkdir()
    outside.mkdir()
    (tmp_path / "root").symlink_to(real)
    with Store(tmp_path / "root") as store:
        assert store.store(make_keys(2)) == [DONE] * 2
        assert store.load(make_keys(2)) == [DONE] * 2
    shutil.rmtree(real)
    real.mkdir()
    (real / make_namespace().directory_name).symlink_to(outside)
    for read_only in (False, True):
        with pytest.raises(ConfigError, match="is a link"):
            Store(tmp_path / "root", read_only=read_only)


@pytest.mark.parametrize("level", [0, 1, 2], ids=["hh/hh", "hh", "namespace"])
def test_a_tool_deletes_nothing_through_a_directory_that_became_a_link_after_the_plan(
    tmp_path: Path, level: int
) -> None:
    key, outside, root = make_key(1), tmp_path / "outside", tmp_path / "root"
    with Store(root) as store:
        store.store([key])
        place = level_of(store, key, level)
    tools = open_root(str(root))
    accounts = Accounts(tools)
    plan = make_plan(tools, tools.namespaces, accounts, Bounds(everything=True))
    swap_for_link(place, outside)
    kept = sorted(outside.rglob("*"))
    accounts.open()
    cleaner = Cleaner(tools, accounts)
    cleaner.run(plan.removals)
    for info in tools.namespaces:
        cleaner.remove_namespace(info)
    accounts.close()
    assert sorted(outside.rglob("*")) == kept


def test_an_eviction_deletes_nothing_through_a_directory_that_became_a_link(tmp_path: Path) -> None:
    key, outside, root = make_key(1), tmp_path / "outside", tmp_path / "root"
    with Store(root, namespace=make_namespace("org/old")) as store:
        store.store([key])
        place = level_of(store, key, 1)
    with Store(root, max_bytes=60_000, disk=FaultyDisk()) as store:
        store.wait_for_walk()
        swap_for_link(place, outside)
        kept = sorted(outside.rglob("*"))
        store.store(make_keys(10, "new"))
        assert sorted(outside.rglob("*")) == kept
