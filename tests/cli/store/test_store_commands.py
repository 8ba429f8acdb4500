"""The store tools as a user calls them: what they print, what they change, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_files import (
    chunk_files,
    counted_bytes,
    damage,
    dead_temp_name,
    make_store,
    namespace_for,
    recorded_bytes,
    run,
    run_json,
)

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tiers" / "fs"))

from fs_support import Store, make_keys, make_namespace

COMMANDS = (["ls"], ["du"], ["stat"], ["verify"], ["verify", "--fix"], ["gc"], ["purge", "--yes"])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that no test changes."""
    root = tmp_path_factory.mktemp("shared") / "store"
    make_store(root, 3, "org/one")
    make_store(root, 2, "org/two")
    return root


def tree_of(root: Path) -> dict[str, bytes | None]:
    """Everything below a directory; the usage record as there or not."""
    return {
        str(path): path.read_bytes() if path.is_file() and path.name != "usage" else None
        for path in root.rglob("*")
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_json_is_one_object_and_nothing_else_is_on_stdout(tmp_path: Path, command: list[str]) -> None:
    make_store(tmp_path / "store", 2)
    result = run(*command, tmp_path / "store", "--json")
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads(result.stdout), dict)


@pytest.mark.parametrize(
    ("command", "case"),
    [
        (command, case)
        for command in COMMANDS
        for case in ("missing", "a file", "empty", "no store", "a namespace")
        # `stat` shows namespaces.
        if (command, case) != (["stat"], "a namespace")
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_what_is_no_store_is_refused_in_one_line(
    tmp_path: Path, shared: Path, command: list[str], case: str
) -> None:
    path = tmp_path / "x"
    if case == "a file":
        path.write_text("hello")
    elif case in ("empty", "no store"):
        path.mkdir()
    if case == "no store":
        (path / "photos").mkdir()
    if case == "a namespace":
        path = next(shared.glob("org_one_*"))
    result = run(*command, path)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("kvoffload: error:")
    assert str(path) in line
    assert "give" in line
    assert result.stdout == ""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_store_that_may_not_be_read_is_refused_in_one_line(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, whom no permission stops: the disk says no."""
    from kvoffload.tiers.fs.disk import DiskIO

    make_store(tmp_path / "store", 1)
    real = DiskIO.scandir

    def refuse(self: DiskIO, path: str) -> object:
        if path == str(tmp_path / "store"):
            raise PermissionError(13, "Permission denied", path)
        return real(self, path)

    monkeypatch.setattr(DiskIO, "scandir", refuse)
    result = run(*command, tmp_path / "store")
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert "Permission denied" in line
    assert "as the user of the engine" in line


def test_ls_tells_what_every_namespace_is(shared: Path) -> None:
    found = run_json("ls", shared)["namespaces"]
    assert [(one["model"], one["chunks"], one["state"]) for one in found] == [
        ("org/one", 3, "readable"),
        ("org/two", 2, "readable"),
    ]
    assert found[0]["digest"] == namespace_for("org/one").digest
    text = run("ls", shared).stdout
    assert "bfloat16, direct v1, tp2, 128 tokens/chunk" in text


def test_ls_says_where_the_parallel_layout_does_not_matter(tmp_path: Path) -> None:
    with Store(
        tmp_path, namespace=make_namespace("m", kv_dtype="float16", layout_family="canonical")
    ) as store:
        store.store(make_keys(1))
    assert "float16, canonical v1, any tp" in run("ls", tmp_path).stdout


def test_ls_lists_chunks_of_all_or_of_one_namespace(shared: Path) -> None:
    assert len(run_json("ls", shared, "--chunks")["chunks"]) == 5
    one = run_json("ls", shared, "--chunks", "org_one")["chunks"]
    assert sorted(chunk["path"] for chunk in one) == [
        str(path.relative_to(shared)) for path in chunk_files(next(shared.glob("org_one_*")))
    ]
    assert len(run("ls", shared, "--chunks", "org_two").stdout.splitlines()) == 2


def test_a_namespace_is_named_by_its_name_digest_or_an_unambiguous_beginning(shared: Path) -> None:
    name = next(shared.glob("org_one_*")).name
    for wanted in (name, "org_one", name[-16:], name[-16:-10]):
        assert [one["name"] for one in run_json("ls", shared, wanted)["namespaces"]] == [name]
    for wanted in ("org", "nothing"):
        result = run("ls", shared, wanted)
        assert result.exit_code == 2
        assert name in result.stderr


def test_du_counts_what_the_record_counts_and_tells_foreign_bytes_apart(tmp_path: Path) -> None:
    directory = make_store(tmp_path, 3)
    (tmp_path / "notes.txt").write_bytes(b"x" * 100)
    (directory / "photos").mkdir()
    (directory / "photos" / "a").write_bytes(b"x" * 1000)
    (chunk_files(directory)[0].parent / "b").write_bytes(b"x" * 10)
    found = run_json("du", tmp_path)
    assert found["counted_bytes"] == found["record"]["used_bytes"]
    assert found["foreign_bytes_in_root"] == 100
    assert found["foreign_bytes"] == 100 + 1000 + 4096 + 10
    assert found["foreign_entries"] == 3
    text = run("du", tmp_path, "--max-bytes", "1MiB").stdout
    assert "as found" in text
    assert "1.00 MiB" in text


def test_stat_shows_a_store_a_namespace_and_a_chunk(shared: Path) -> None:
    namespace = next(shared.glob("org_one_*"))
    chunk = chunk_files(namespace)[0]
    assert run_json("stat", shared)["kind"] == "store"
    found = run_json("stat", namespace)
    assert (found["kind"], found["chunks"], found["fields"]["kv_dtype"]) == ("namespace", 3, "bfloat16")
    header = run_json("stat", chunk)
    assert header["verdict"] == "ok"
    assert header["header_namespace"] == namespace_for("org/one").digest
    assert header["header_key"] == header["block_hash"] + "00000000"
    assert "payload checksum" in run("stat", chunk).stdout


def test_stat_of_a_damaged_chunk_says_so_and_ends_with_1(tmp_path: Path) -> None:
    chunk = chunk_files(make_store(tmp_path, 1))[0]
    damage(chunk)
    assert run_json("stat", chunk, exit_code=1)["verdict"] == "damaged: payload_checksum"


def test_reading_commands_and_dry_runs_change_nothing(tmp_path: Path) -> None:
    directory = make_store(tmp_path, 3)
    damage(chunk_files(directory)[0])
    (directory / dead_temp_name()).write_bytes(b"torn")
    before, record = tree_of(tmp_path), (tmp_path / ".kvoffload" / "usage").read_bytes()
    for command in (["ls"], ["du"], ["stat"], ["verify"], ["gc", "--dry-run", "--max-bytes", "0"]):
        run(*command, tmp_path)
    run("purge", tmp_path, "--dry-run")
    assert tree_of(tmp_path) == before
    assert (tmp_path / ".kvoffload" / "usage").read_bytes() == record


def test_verify_finds_every_kind_of_damage_and_fix_removes_it(tmp_path: Path) -> None:
    directory = make_store(tmp_path, 7)
    payload, header, short, longer, renamed, newer, good = chunk_files(directory)
    longer.write_bytes(longer.read_bytes() + bytes(4096))
    damage(payload, 5000)
    damage(header, 20)
    short.write_bytes(short.read_bytes()[:-4096])
    name = renamed.name
    last = name.index("_") - 1
    stranger = renamed.with_name(f"{name[:last]}{'1' if name[last] == '0' else '0'}{name[last + 1 :]}")
    renamed.rename(stranger)
    damage(newer, 8)
    found = run_json("verify", tmp_path, exit_code=1)
    assert {kind: one["chunks"] for kind, one in found["damage"].items()} == {
        "payload_checksum": 1,
        "header_checksum": 1,
        "length": 2,
        "other_key": 1,
    }
    assert found["chunks_of_later_formats"] == 1
    fixed = run_json("verify", tmp_path, "--fix")
    assert all(one["removed"] for one in fixed["findings"])
    assert chunk_files(directory) == sorted([newer, good])
    assert recorded_bytes(tmp_path) == counted_bytes(tmp_path)
    again = run_json("verify", tmp_path)
    assert (again["is_sound"], again["findings"]) == (True, [])


def test_verify_sweeps_after_dead_writers_and_spares_live_ones(tmp_path: Path) -> None:
    from kvoffload.tiers.fs.writer import new_writer

    directory = make_store(tmp_path, 1)
    dead, live = directory / dead_temp_name(), directory / new_writer().temp_name(9)
    dead.write_bytes(b"x")
    live.write_bytes(b"x")
    found = run_json("verify", tmp_path, exit_code=1)
    assert found["orphan_temp_files"] == 1
    assert found["record_fault"] == "says 2 B less than there is"
    assert run_json("verify", tmp_path, "--fix")["swept_temp_files"] == 1
    assert (dead.exists(), live.exists()) == (False, True)


def test_a_store_of_a_later_format_is_reported_and_not_touched(tmp_path: Path) -> None:
    directory = make_store(tmp_path, 2)
    file = directory / "namespace.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chunk_format_version": 9}))
    damage(chunk_files(directory)[0])
    before = tree_of(directory)
    found = run_json("verify", tmp_path, "--fix")
    assert found["namespaces_of_later_formats"] == [directory.name]
    assert run_json("ls", tmp_path)["namespaces"][0]["state"] == "newer format"
    run("gc", tmp_path, "--max-bytes", "0")
    assert run_json("purge", tmp_path, "--yes")["left_alone"] == [directory.name]
    assert tree_of(directory) == before


def test_a_usage_record_of_a_later_version_stops_what_would_change_the_store(tmp_path: Path) -> None:
    make_store(tmp_path, 2)
    record = tmp_path / ".kvoffload" / "usage"
    values = {**json.loads(record.read_text().partition("\n")[2]), "version": 2}
    record.write_text("0" * 32 + "\n" + json.dumps(values) + "\n")
    before = record.read_bytes()
    for command in (["gc"], ["verify", "--fix"], ["purge", "--yes"]):
        result = run(*command, tmp_path)
        assert result.exit_code == 2, result.output
        assert "later version" in result.stderr
    assert record.read_bytes() == before
    assert run("du", tmp_path).exit_code == 0


def test_a_damaged_namespace_file_is_mended_only_from_what_proves_itself(tmp_path: Path) -> None:
    torn, left_over, lost = (make_store(tmp_path, 1, model) for model in ("org/torn", "org/left", "org/lost"))
    whole = {path: (path / "namespace.json").read_text() for path in (torn, left_over, lost)}
    (torn / "namespace.json").write_text(whole[torn].rstrip()[:-3])
    (left_over / dead_temp_name()).write_text(whole[left_over])
    (left_over / "namespace.json").unlink()
    (lost / "namespace.json").write_text(whole[torn])
    found = run_json("verify", tmp_path, "--fix", exit_code=1)
    assert sorted(found["mended_namespaces"]) == sorted([left_over.name, torn.name])
    assert [one["name"] for one in found["unsound_namespaces"]] == [lost.name]
    for path in (torn, left_over):
        assert json.loads((path / "namespace.json").read_text()) == json.loads(whole[path])
    assert found["damage"]["other_namespace"]["chunks"] == 1, "its file says that it is another namespace's"
    assert len(chunk_files(tmp_path)) == 3, "where the description is another directory's, nothing is removed"


def test_chunks_of_a_namespace_that_does_not_say_what_it_is_are_never_removed(tmp_path: Path) -> None:
    directory = make_store(tmp_path, 3)
    (directory / "namespace.json").write_text("{}")
    damage(chunk_files(directory)[0])
    before = chunk_files(directory)
    assert run("verify", tmp_path, "--fix").exit_code == 1
    assert run("gc", tmp_path, "--max-bytes", "0").exit_code == 1
    assert run("purge", tmp_path, "--yes").exit_code == 0
    assert chunk_files(directory) == before


def test_gc_removes_the_least_recently_used_beyond_the_bound(tmp_path: Path) -> None:
    chunks = chunk_files(make_store(tmp_path, 6))
    now = time.time()
    for age, path in enumerate(chunks):
        os.utime(path, (now - age * 1000, now - age * 1000))
    bound = counted_bytes(tmp_path) - 20_000
    planned = run_json("gc", tmp_path, "--dry-run", "--max-bytes", bound)
    assert run_json("gc", tmp_path, "--max-bytes", bound)["is_bound_met"]
    gone = [path for path in chunks if not path.exists()]
    assert gone == chunks[-len(gone) :]
    assert 1 <= len(gone) <= 2
    named = {one["path"] for one in planned["removals"] if one["kind"] == "chunk"}
    assert named == {str(path) for path in gone}
    assert counted_bytes(tmp_path) == planned["left_bytes"] == recorded_bytes(tmp_path)
    assert counted_bytes(tmp_path) <= bound


def test_gc_removes_what_was_not_used_for_so_long(tmp_path: Path) -> None:
    chunks = chunk_files(make_store(tmp_path, 4))
    for path in chunks[:3]:
        os.utime(path, (time.time() - 7200,) * 2)
    assert run_json("gc", tmp_path, "--older-than", "90m")["removed"]["chunk"] == 3
    assert chunk_files(tmp_path) == chunks[3:]
    result = run("gc", tmp_path, "--older-than", "soon")
    assert result.exit_code == 2
    assert "30d" in result.stderr


def test_gc_of_one_namespace_leaves_the_others(tmp_path: Path) -> None:
    one, two = make_store(tmp_path, 3, "org/one"), make_store(tmp_path, 3, "org/two")
    found = run_json("gc", tmp_path, "--namespace", "org_one", "--max-bytes", "20KiB")
    assert found["is_bound_met"]
    assert chunk_files(one) == []
    assert len(chunk_files(two)) == 3
    assert recorded_bytes(tmp_path) == counted_bytes(tmp_path)


def test_purge_asks_and_without_a_terminal_demands_yes(tmp_path: Path) -> None:
    make_store(tmp_path, 2)
    result = run("purge", tmp_path)
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert len(chunk_files(tmp_path)) == 2
    controller, terminal = os.openpty()
    try:
        for answer, left in (("n", 2), ("y", 0)):
            os.write(controller, f"{answer}\n".encode())
            done = subprocess.run(
                [sys.executable, "-m", "kvoffload.cli.main", "purge", str(tmp_path)],
                stdin=terminal,
                stderr=terminal,
                stdout=subprocess.PIPE,
                timeout=30,
                check=False,
            )
            assert done.returncode == (1 if left else 0), done.stdout
            assert len(chunk_files(tmp_path)) == left
    finally:
        os.close(terminal)
        os.close(controller)


def test_purge_of_all_leaves_an_empty_store_that_the_next_engine_uses(tmp_path: Path) -> None:
    directory = make_store(tmp_path, 3)
    assert run_json("purge", tmp_path, "--yes")["removed"]["chunk"] == 3
    assert not directory.exists()
    assert run_json("ls", tmp_path)["namespaces"] == []
    assert recorded_bytes(tmp_path) == counted_bytes(tmp_path)
    assert len(chunk_files(make_store(tmp_path, 3))) == 3


def test_a_namespace_with_foreign_content_stays_after_a_purge_and_its_description_is_not_touched(
    tmp_path: Path,
) -> None:
    directory = make_store(tmp_path, 2)
    (directory / "notes.txt").write_text("mine")
    before = (directory / "namespace.json").stat()
    assert run_json("purge", tmp_path, "--yes")["removed"]["chunk"] == 2
    assert (directory / "namespace.json").stat().st_ino == before.st_ino
    assert (directory / "notes.txt").read_text() == "mine"


def test_help_needs_neither_numpy_nor_xxhash() -> None:
    program = (
        "import sys, kvoffload.cli.main; print([n for n in ('numpy', 'xxhash', 'torch') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command", [("purge", "--yes"), ("gc",), ("ls",), ("du",), ("verify", "--fix"), ("stat",)]
)
@pytest.mark.parametrize("path", ["", " "])
def test_an_empty_path_is_not_the_directory_where_one_happens_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], path: str
) -> None:
    chunks = chunk_files(make_store(tmp_path, 2))
    monkeypatch.chdir(tmp_path)
    result = run(*command, path)
    assert result.exit_code != 0
    assert "the path is empty" in str(result.exception) + result.stderr
    assert chunk_files(tmp_path) == chunks
