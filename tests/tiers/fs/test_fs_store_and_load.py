"""The fs tier: what is stored is loaded, byte for byte, by this process and by later ones, and nothing else is."""

import os
import threading
from pathlib import Path

import pytest
from fs_support import (
    FILE_BYTES,
    HIT,
    MISS,
    PAYLOAD_BYTES,
    RETRY,
    FaultyDisk,
    Store,
    make_key,
    make_keys,
    make_namespace,
    payload_of,
    record_of,
)

from kvoffload.errors import ConfigError
from kvoffload.keys.file_mapper import FileMapper
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome, Verb

DONE, MISSING = Outcome.DONE, Outcome.MISSING


@pytest.mark.parametrize(
    "options", [{}, {"direct_io": "off"}, {"durability": "data"}, {"durability": "full"}]
)
def test_what_was_stored_is_loaded(tmp_path: Path, options: dict[str, str]) -> None:
    from kvoffload.config.parse import parse_dataclass
    from kvoffload.tiers.fs.options import FsTierConfig

    parsed = parse_dataclass(FsTierConfig, {"root_dir": str(tmp_path), **options}, "test")
    chosen = {name: getattr(parsed, name) for name in options}
    keys = make_keys(20)
    with Store(tmp_path, **chosen) as store:
        assert store.store(keys) == [DONE] * 20
        assert store.load(keys) == [DONE] * 20
        assert store.tier.stats().stored_bytes == 20 * FILE_BYTES
        assert store.temps() == []


def test_a_report_says_what_was_moved(tmp_path: Path) -> None:
    keys = make_keys(5)
    with Store(tmp_path) as store:
        store.store(keys[:2])
        assert store.submit(Verb.STORE, keys, store.rows_for(keys, filled=True))
        (report,) = store.wait()
        # Two of them were there already: done, and not moved.
        assert set(report.outcomes.values()) == {DONE}
        assert report.moved_bytes == 3 * PAYLOAD_BYTES
        assert list(report.outcomes) == keys
        assert store.tier.poll() == []


def test_a_later_process_finds_everything(tmp_path: Path) -> None:
    keys = make_keys(30)
    with Store(tmp_path) as store:
        store.store(keys)
    with Store(tmp_path) as store:
        assert store.lookup(keys) == [HIT] * 30
        assert store.load(keys) == [DONE] * 30
        store.wait_for_walk()
        assert store.tier.stats().stored_chunks == 30


def test_two_processes_see_each_others_chunks(tmp_path: Path) -> None:
    keys = make_keys(10)
    with Store(tmp_path, negative_ttl_s=0.05) as one, Store(tmp_path, negative_ttl_s=0.05) as two:
        one.wait_for_walk()
        assert one.lookup(keys) == [MISS] * 10
        two.store(keys)
        import time

        time.sleep(0.06)
        assert one.lookup(keys) == [HIT] * 10
        assert one.load(keys) == [DONE] * 10
        assert two.delete(keys[:3]) == [DONE] * 3
        # A hit is a guess; the load tells, and the next lookup knows.
        assert one.load(keys) == [MISSING] * 3 + [DONE] * 7
        assert one.lookup(keys) == [MISS] * 3 + [HIT] * 7


def test_two_tiers_of_one_process_store_the_same_chunks_at_the_same_time(tmp_path: Path) -> None:
    keys = make_keys(60)
    with Store(tmp_path, max_bytes=10**7) as one, Store(tmp_path, max_bytes=10**7) as two:
        for store in (one, two):
            assert store.submit(Verb.STORE, keys, store.rows_for(keys, filled=True))
        for store in (one, two):
            assert set(store.wait()[0].outcomes.values()) == {DONE}
            assert store.load(keys) == [DONE] * 60
        assert len(record_of(tmp_path)["writers"]) == 2


def test_groups_have_lengths_of_their_own(tmp_path: Path) -> None:
    keys = [make_key(1, 0), make_key(1, 1), make_key(2, 1)]
    with Store(tmp_path, payload_bytes=(4096, 12288)) as store:
        assert store.store(keys) == [DONE] * 3
        assert store.load(keys) == [DONE] * 3


def test_a_payload_that_does_not_fill_its_last_page_is_stored_and_loaded(tmp_path: Path) -> None:
    from fs_support import make_rows

    from kvoffload.layout.chunk_format import file_bytes

    key = make_key(1)
    with Store(tmp_path, payload_bytes=(5000,)) as store:
        (row,) = make_rows(1, 8192)
        row[:5000] = payload_of(key, 5000)
        assert store.submit(Verb.STORE, [key], [row])
        assert store.wait()[0].outcomes[key] is DONE
        assert store.path_of(key).stat().st_size == file_bytes(5000)
        (other,) = make_rows(1, 8192)
        assert store.submit(Verb.LOAD, [key], [other])
        assert store.wait()[0].outcomes[key] is DONE
        assert bytes(other[:5000]) == payload_of(key, 5000)


def test_deleted_chunks_are_gone_and_deleting_nothing_is_done(tmp_path: Path) -> None:
    keys = make_keys(4)
    with Store(tmp_path) as store:
        store.store(keys)
        assert store.delete([*keys[:2], make_key("other")]) == [DONE] * 3
        assert store.lookup(keys) == [MISS, MISS, HIT, HIT]
        assert store.load(keys) == [MISSING, MISSING, DONE, DONE]
        assert len(store.files()) == 2


def test_scan_yields_what_is_on_the_disk(tmp_path: Path) -> None:
    keys = make_keys(6)
    with Store(tmp_path) as store:
        store.store(keys)
        found = list(store.tier.scan())
        assert {chunk.key for chunk in found} == set(keys)
        assert {chunk.size_bytes for chunk in found} == {FILE_BYTES}


def test_clear_forgets_everything_and_new_chunks_can_come(tmp_path: Path) -> None:
    keys = make_keys(10)
    with Store(tmp_path) as store:
        store.store(keys)
        assert store.tier.clear()
        assert store.lookup(keys) == [MISS] * 10
        assert store.load(keys) == [MISSING] * 10
        assert store.files() == set()
        assert store.store(keys[:2]) == [DONE] * 2
        assert store.load(keys[:2]) == [DONE] * 2


def test_a_store_in_flight_does_not_come_back_after_clear(tmp_path: Path) -> None:
    disk, keys = FaultyDisk(), make_keys(1)
    inside, go_on = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        inside.set()
        go_on.wait(10)

    for call in ("write_from", "rename"):
        with Store(tmp_path / call, disk=disk) as store:
            inside.clear()
            go_on.clear()
            with disk.fault(call, hold):
                assert store.submit(Verb.STORE, keys, store.rows_for(keys, filled=True))
                assert inside.wait(10)
                assert store.tier.clear()
                go_on.set()
                (report,) = store.wait()
            assert report.outcomes[keys[0]] is Outcome.REJECTED
            assert store.lookup(keys) == [MISS]
            assert store.files() == set()
            assert store.temps() == []


def test_a_chunk_from_before_a_clear_is_not_served_even_if_its_file_appears_again(tmp_path: Path) -> None:
    (key,) = make_keys(1)
    with Store(tmp_path) as store:
        store.store([key])
        old = store.path_of(key).read_bytes()
        assert store.tier.clear()
        store.path_of(key).parent.mkdir(parents=True, exist_ok=True)
        store.path_of(key).write_bytes(old)
        assert store.load([key]) == [MISSING]
        assert store.counters()["void_loads"] == 1


def test_a_lookup_touches_no_disk_in_the_callers_thread(tmp_path: Path) -> None:
    disk, keys = FaultyDisk(), make_keys(2000)
    with Store(tmp_path, disk=disk) as store:
        store.wait_for_walk()
        disk.threads.clear()
        store.lookup(keys)
        assert threading.current_thread().name not in disk.threads


def test_a_lookup_of_100_keys_makes_100_probes_and_no_scan(tmp_path: Path) -> None:
    disk, keys = FaultyDisk(), make_keys(100)
    with Store(tmp_path, disk=disk) as store:
        store.store(make_keys(50, "others"))
        store.wait_for_walk()
        disk.calls.clear()
        assert store.tier.lookup(keys) == [RETRY] * 100
        assert store.lookup(keys) == [MISS] * 100
        assert disk.calls["lstat"] == 100
        assert disk.calls["scandir"] == 0
        # What was found out is remembered for a while.
        assert store.tier.lookup(keys) == [MISS] * 100
        assert disk.calls["lstat"] == 100


def test_lookups_are_right_before_the_directory_has_been_walked(tmp_path: Path) -> None:
    keys = make_keys(20)
    with Store(tmp_path) as store:
        store.store(keys)
    disk, go_on = FaultyDisk(), threading.Event()
    disk.faults["scandir"] = lambda *_: go_on.wait(10)
    with Store(tmp_path, disk=disk) as store:
        others = make_keys(20, "others")
        assert store.lookup(keys) == [HIT] * 20
        assert store.lookup(others) == [MISS] * 20
        assert store.load(keys) == [DONE] * 20
        assert store.store(others) == [DONE] * 20
        go_on.set()
        store.wait_for_walk()
        assert store.tier.lookup(keys + others) == [HIT] * 40
        store.tier._index.check()


def test_no_directory_gets_more_than_4096_entries_for_50000_keys() -> None:
    mapper = FileMapper(make_namespace())
    entries: dict[str, set[str]] = {}
    for number in range(50_000):
        path = mapper.name_of(make_key(number))
        while "/" in path:
            directory, _, name = path.rpartition("/")
            entries.setdefault(directory, set()).add(name)
            path = directory
    assert max(map(len, entries.values())) <= 4096


def test_another_configuration_never_shares_a_directory(tmp_path: Path) -> None:
    keys = make_keys(3)
    with Store(tmp_path, namespace=make_namespace(dtype="bf16")) as one:
        one.store(keys)
    with Store(tmp_path, namespace=make_namespace(dtype="fp8")) as two:
        assert two.lookup(keys) == [MISS] * 3


def test_a_directory_of_another_configuration_is_refused_with_a_readable_difference(tmp_path: Path) -> None:
    ours, theirs = make_namespace(dtype="bf16"), make_namespace(dtype="fp8")
    with Store(tmp_path, namespace=theirs):
        pass
    (tmp_path / theirs.directory_name).rename(tmp_path / ours.directory_name)
    with pytest.raises(ConfigError, match="dtype: 'bf16' here, 'fp8' there"):
        Store(tmp_path, namespace=ours)


def test_a_damaged_namespace_file_is_written_anew(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.store(make_keys(2))
    path = store.directory / "namespace.json"
    good = path.read_text()
    for damaged in ("", "{", '{"kind": "something else"}', "[]", '{"kind": "kvoffload namespace"}'):
        path.write_text(damaged)
        with Store(tmp_path) as store:
            assert store.load(make_keys(2)) == [DONE] * 2
        assert path.read_text() == good


def test_a_directory_that_cannot_be_used_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"root_dir=.*cannot be used.*give a directory"):
        Store(tmp_path / "file" / "store")
    with pytest.raises(ConfigError, match="does not exist"):
        Store(tmp_path / "nowhere", read_only=True)


def test_a_read_only_tier_loads_and_changes_nothing(tmp_path: Path) -> None:
    keys = make_keys(6)
    with Store(tmp_path) as store:
        store.store(keys)

    def tree() -> dict[str, int]:
        return {str(path): path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}

    damaged = store.path_of(keys[0])
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    before = tree()
    with Store(tmp_path, read_only=True, touch_interval_s=1e-9) as reader:
        assert reader.lookup(keys) == [HIT] * 6
        assert reader.load(keys) == [Outcome.CORRUPT] + [DONE] * 5
        # It may not be removed, so it is remembered.
        assert reader.lookup(keys[:1]) == [MISS]
        assert reader.store(make_keys(2, "new")) == [Outcome.REJECTED] * 2
        assert reader.tier.clear()
        reader.tier.touch(keys)
        reader.walk()
    assert tree() == before


def test_direct_io_is_used_where_it_works_and_left_where_it_does_not(tmp_path: Path) -> None:
    from kvoffload.tiers.fs.options import DirectIo

    class NoDirect(FaultyDisk):
        def open(self, path: str, flags: int) -> int:
            if flags & os.O_DIRECT:
                raise OSError(22, "Invalid argument")
            return super().open(path, flags)

    keys = make_keys(3)
    with Store(tmp_path, disk=NoDirect()) as store:
        assert "page cache" in store.tier.describe()
        assert store.store(keys) == [DONE] * 3
        assert store.load(keys) == [DONE] * 3
    with pytest.raises(ConfigError, match="refuses O_DIRECT"):
        Store(tmp_path, disk=NoDirect(), direct_io=DirectIo.ON)


def test_a_buffer_that_does_not_suit_direct_io_is_stored_and_loaded_all_the_same(tmp_path: Path) -> None:
    disk = FaultyDisk()
    direct: set[int] = set()

    def refuse(fd: int, *_: object) -> None:
        import fcntl

        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            direct.add(fd)
            raise OSError(22, "Invalid argument")

    keys = make_keys(3)
    with Store(tmp_path, disk=disk) as store:
        if "O_DIRECT" not in store.tier.describe():
            pytest.skip("the file system of the temporary directory has no O_DIRECT")
        with disk.fault("write_from", refuse), disk.fault("read_into", refuse):
            assert store.store(keys) == [DONE] * 3
            assert store.load(keys) == [DONE] * 3
        assert store.counters()["direct_io_fallbacks"] == 6
        assert direct


def test_odd_keys_are_as_good_as_others(tmp_path: Path) -> None:
    keys = [
        OffloadKey(b"\0" * 32 + b"\0\0\0\0"),
        OffloadKey(b"\xff" * 100 + b"\0\0\0\0"),
        OffloadKey(bytes(8)),
    ]
    with Store(tmp_path) as store:
        assert store.store(keys) == [DONE] * 3
        assert store.load(keys) == [DONE] * 3
    with Store(tmp_path) as store:
        store.walk()
        assert store.tier.lookup(keys) == [HIT] * 3


def test_only_one_module_touches_the_disk() -> None:
    """So that a test can make every call fail. (Who a process is stands in /proc, which is no disk.)"""
    import ast

    import kvoffload.tiers.fs as package

    harmless = {
        "path",
        "getpid",
        "kill",
        "uname",
        "strerror",
        "DirEntry",
        "stat_result",
        "statvfs_result",
        "SEEK_SET",
    }
    for path in Path(str(package.__file__)).parent.glob("*.py"):
        if path.name == "disk.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                assert node.attr in harmless or node.attr.startswith("O_"), f"{path.name}: os.{node.attr}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "open", path.name
            if isinstance(node, ast.Name) and node.id == "Path":
                assert path.name == "writer.py", path.name
