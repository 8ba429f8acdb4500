"""Whatever stands where a chunk is expected: it is not served, does not hang anything, and does no harm."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tiers" / "fs"))

from fs_support import HIT, MISS, Store, make_key, make_keys, payload_of
from hostile_files import CASES, Hostile

from kvoffload.tiers.base import Outcome

KEY = make_key("hostile")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_file_is_not_served(tmp_path: Path, case: Hostile) -> None:
    others = make_keys(3)
    with Store(tmp_path) as store:
        store.store([KEY, *others])
        path = store.path_of(KEY)
        good = path.read_bytes()
        assert good[4096:] == payload_of(KEY)
        path.unlink()
        case.make(path, good)
        # The others of the same job are loaded; nothing waits for the hostile one.
        expected = Outcome.CORRUPT if case.outcome == "corrupt" else Outcome.MISSING
        assert store.load([KEY, *others]) == [expected] + [Outcome.DONE] * 3
        assert os.path.lexists(path) == (case.outcome == "missing")
        assert store.lookup([KEY, *others]) == [MISS, HIT, HIT, HIT]
        store.walk()
        assert store.lookup([KEY, *others]) == [MISS, HIT, HIT, HIT]
        outcome = store.store([KEY])[0]
        if path.is_file() and not path.is_symlink():
            # A file of ours, damaged or of a later version, is replaced.
            assert outcome is Outcome.DONE
            assert store.load([KEY]) == [Outcome.DONE]
        else:
            # What is no plain file is not ours: it stays.
            assert outcome is Outcome.REJECTED
        assert store.temps() == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_start_among_hostile_files_works(tmp_path: Path, case: Hostile) -> None:
    others = make_keys(3)
    with Store(tmp_path) as store:
        store.store([KEY, *others])
        path = store.path_of(KEY)
    good = path.read_bytes()
    path.unlink()
    case.make(path, good)
    with Store(tmp_path) as store:
        store.walk()
        assert store.load([KEY])[0] is not Outcome.DONE
        assert store.load(others) == [Outcome.DONE] * 3
        store.tier._index.check()


def test_a_file_under_another_chunks_name_is_not_served(tmp_path: Path) -> None:
    one, two = make_keys(2)
    with Store(tmp_path) as store:
        store.store([one, two])
        store.path_of(one).rename(store.path_of(two))
        assert store.load([one, two]) == [Outcome.MISSING, Outcome.CORRUPT]
        assert store.counters()["corrupt_other_key"] == 1
        assert store.store([one, two]) == [Outcome.DONE] * 2
        assert store.load([one, two]) == [Outcome.DONE] * 2


def test_a_file_of_another_namespace_is_not_served(tmp_path: Path) -> None:
    from fs_support import make_namespace

    (key,) = make_keys(1)
    with Store(tmp_path, namespace=make_namespace(dtype="fp8")) as other:
        other.store([key])
        data = other.path_of(key).read_bytes()
    with Store(tmp_path) as store:
        store.store([key])
        store.path_of(key).write_bytes(data)
        assert store.load([key]) == [Outcome.CORRUPT]
        assert store.counters()["corrupt_other_namespace"] == 1


def test_a_good_file_that_took_the_place_of_a_damaged_one_is_not_removed(tmp_path: Path) -> None:
    """Between reading a damaged file and removing it, another process stores the chunk anew."""
    from fs_support import FaultyDisk

    disk, (key,) = FaultyDisk(), make_keys(1)
    with Store(tmp_path, disk=disk) as store:
        store.store([key])
        path = store.path_of(key)
        good = path.read_bytes()
        path.write_bytes(good[:-1] + b"\0")

        def replace(_fd: int, *_: object) -> None:
            fresh = path.with_suffix(".fresh")
            fresh.write_bytes(good)
            fresh.rename(path)

        with disk.fault("fstat", replace):
            assert store.load([key]) == [Outcome.CORRUPT]
        assert path.read_bytes() == good
        assert store.lookup([key]) == [MISS]
    with Store(tmp_path) as store:
        assert store.load([key]) == [Outcome.DONE]
