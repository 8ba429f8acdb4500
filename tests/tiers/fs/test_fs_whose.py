"""Which directories are ours: engines and tools go by one rule, count the others, and delete nothing in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fs_support import Store, make_keys, make_namespace, record_of

from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.cleaning import Cleaner
from kvoffload.tiers.fs.collecting import Bounds
from kvoffload.tiers.fs.store_root import open_root
from kvoffload.tiers.fs.tidying import make_plan
from kvoffload.tiers.fs.writer import new_writer

KINDS = ("later version", "copy by hand", "says nothing", "says anything")


def make_odd(root: Path, kind: str) -> Path:
    """A directory called like a namespace, with old chunks and a dead writer's temporary file, that is not ours."""
    with Store(root, namespace=make_namespace("org/other")) as store:
        store.store(make_keys(6, "other"))
        directory = store.directory
    description = directory / "namespace.json"
    if kind == "copy by hand":
        copy = root / f"backup_of_{directory.name}"
        shutil.move(directory, copy)
        directory = copy
    elif kind == "later version":
        description.write_text(json.dumps({**json.loads(description.read_text()), "chunk_format_version": 9}))
    elif kind == "says nothing":
        description.unlink()
    else:
        description.write_text('{"kind": "kvoffload namespace", "model": "m", "fields": {}}')
    (directory / f"tmp-{new_writer().host}-{2**22 + 1}-1-1-7.kvtmp").write_bytes(b"torn")
    return directory


def content(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_ours_counts_and_is_neither_evicted_nor_swept(tmp_path: Path, kind: str) -> None:
    before = content(directory := make_odd(tmp_path, kind))
    with Store(tmp_path, max_bytes=300_000) as store:
        store.wait_for_walk()
        assert record_of(tmp_path)["used_bytes"] >= sum(path.lstat().st_size for path in before[:-1])
        for number in range(6):
            store.store(make_keys(8, f"{number} "))
        store.walk()
        assert store.counters()["evicted"] > 0
    assert content(directory) == before


@pytest.mark.parametrize("kind", KINDS)
def test_tools_leave_what_engines_leave(tmp_path: Path, kind: str) -> None:
    before = content(directory := make_odd(tmp_path, kind))
    store = open_root(str(tmp_path))
    accounts = Accounts(store)
    plan = make_plan(store, store.namespaces, accounts, Bounds(everything=True))
    accounts.open()
    Cleaner(store, accounts).run(plan.removals)
    accounts.close()
    assert content(directory) == before
