"""Whatever stands in a store's directory and is not ours: no tool removes, changes or follows it."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from store_files import chunk_files, dead_temp_name, make_store, run

KINDS = ("file", "directory", "full directory", "link", "dangling link", "link to directory", "fifo")
HASH = "ab" * 32
NAMES = (
    "notes.txt",
    "ab",
    "abc",
    f"{HASH}_g0.kv",
    f"cd{HASH[2:]}_g0.kv",
    f"{HASH}_g00.kv",
    f"{HASH.upper()}_g0.kv",
    "tmp-1.kvtmp",
    "namespace.json.bak",
    "usage",
    "foreign_0123456789abcdef",
    "line\nbreak",
    os.fsdecode(b"no\xfftext"),
)
PLACES = (
    "",
    ".kvoffload",
    "NAMESPACE",
    "NAMESPACE/ab",
    "NAMESPACE/ab/ab",
    "NAMESPACE/LEAF",
    "other_0123456789abcdef/ab/ab",
)
COMMANDS = (
    ("gc", "--max-bytes", "0"),
    ("gc", "--older-than", "0s"),
    ("verify", "--fix"),
    ("purge", "--yes"),
)
entries = st.lists(
    st.tuples(st.sampled_from(PLACES), st.sampled_from(NAMES), st.sampled_from(KINDS)), max_size=12
)


def put(path: Path, kind: str, outside: Path) -> bool:
    """Something of a kind at a path; False if there is something already."""
    if os.path.lexists(path) or not path.parent.is_dir():
        return False
    if kind == "file":
        path.write_bytes(b"mine")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind in ("directory", "full directory"):
        path.mkdir()
        if kind == "full directory":
            (path / "photo").write_bytes(b"mine")
    else:
        target = {"link": "file", "dangling link": "nothing", "link to directory": "directory"}[kind]
        path.symlink_to(outside / target)
    return True


def is_ours(place: str, name: str, kind: str) -> bool:
    """What a tool may remove: a regular file with the name of a chunk, in its place; an empty directory of the fan."""
    if kind == "file" and place == "NAMESPACE/ab/ab":
        return name == f"{HASH}_g0.kv"
    return kind == "directory" and name == "ab" and place in ("NAMESPACE", "NAMESPACE/ab")


def picture(root: Path, paths: list[Path]) -> list[tuple[str, int, int, str | None]]:
    found = []
    for path in paths:
        state = os.lstat(path)
        is_link = path.is_symlink()
        found.append((str(path), state.st_ino, state.st_mtime_ns, os.readlink(path) if is_link else None))
        if path.is_dir() and not is_link:
            assert state.st_mode
            found.extend(("", 0, 0, str(inner)) for inner in sorted(path.iterdir()))
    return found


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(foreign=entries, command=st.sampled_from(COMMANDS), is_described=st.booleans())
def test_no_tool_touches_what_is_not_ours(
    foreign: list[tuple[str, str, str]], command: tuple[str, ...], is_described: bool
) -> None:
    base = Path(tempfile.mkdtemp(prefix="kvoffload-foreign-"))
    try:
        outside, root = base / "outside", base / "store"
        (outside / "directory").mkdir(parents=True)
        (outside / "file").write_bytes(b"mine")
        (outside / "directory" / "photo").write_bytes(b"mine")
        directory = make_store(root, 3)
        leaf = chunk_files(directory)[0].parent.relative_to(directory)
        (root / "other_0123456789abcdef" / "ab" / "ab").mkdir(parents=True)
        (directory / dead_temp_name()).write_bytes(b"torn")
        if not is_described:
            (directory / "namespace.json").unlink()
        kept: list[Path] = []
        for place, name, kind in foreign:
            where = root / place.replace("NAMESPACE", directory.name).replace("LEAF", str(leaf))
            if place in ("NAMESPACE/ab", "NAMESPACE/ab/ab"):
                with suppress(OSError):
                    where.mkdir(parents=True, exist_ok=True)
            if put(where / name, kind, outside) and not is_ours(place, name, kind):
                kept.append(where / name)
        if not is_described:
            kept.extend(chunk_files(directory))
        before = picture(root, kept)
        result = run(*command, root)
        assert result.exit_code in (0, 1), result.output
        assert picture(root, kept) == before
        assert (outside / "file").read_bytes() == b"mine"
        assert (outside / "directory" / "photo").read_bytes() == b"mine"
        assert (directory / dead_temp_name()).exists() is not is_described
        if is_described and command[0] != "verify":
            assert [path for path in chunk_files(directory) if path not in kept] == []
    finally:
        shutil.rmtree(base)
