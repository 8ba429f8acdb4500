"""The store tools on chunks of both versions, of one piece and of many: all are counted, verified, shown and evicted."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from store_files import chunk_files, counted_bytes, damage, namespace_for, recorded_bytes, run, run_json

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tiers" / "fs"))

from fs_support import Store, make_keys, to_version_1

from kvoffload.layout.partial import RowShape

ROW, PIECE = 240 * 4096, 4096
"""More pieces than one page of a header holds."""


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four chunks of 240 pieces, the first of them as the version before pieces wrote it."""
    root = tmp_path_factory.mktemp("versions") / "store"
    shapes = (RowShape(ROW, PIECE),)
    with Store(root, namespace=namespace_for("org/model"), payload_bytes=shapes, max_bytes=10**9) as store:
        store.store(make_keys(4))
        to_version_1(chunk_files(store.directory)[0])
        store.walk()
    return root


@pytest.fixture
def files(pattern: Path, tmp_path: Path) -> list[Path]:
    shutil.copytree(pattern, tmp_path / "store")
    return chunk_files(tmp_path / "store")


def test_both_versions_are_sound_and_shown(files: list[Path]) -> None:
    old, new, *_ = files
    root = files[0].parents[3]
    assert (old.stat().st_size, new.stat().st_size) == (4096 + ROW, 8192 + ROW)
    found = run_json("verify", root)
    assert (found["is_sound"], found["chunks"], found["chunks_of_later_formats"]) == (True, 4, 0)
    assert run_json("ls", root)["namespaces"][0]["chunks"] == 4
    shown = [run_json("stat", path) for path in (old, new)]
    assert [one["verdict"] for one in shown] == ["ok", "ok"]
    assert [one["format_version"] for one in shown] == [1, 2]
    assert [one["piece_bytes"] for one in shown] == [ROW, PIECE]
    assert "piece bytes       4.00 KiB" in run("stat", new).stdout


@pytest.mark.parametrize("number", [0, 1], ids=["version 1", "version 2"])
@pytest.mark.parametrize(
    ("offset", "kind"),
    [
        (300, "header_checksum"),
        (8192 + 5, "payload_checksum"),
        (4096 + 237 * 4096, "payload_checksum"),
        (-1, "payload_checksum"),
    ],
)
def test_damage_anywhere_is_found_and_removed(files: list[Path], number: int, offset: int, kind: str) -> None:
    root = files[0].parents[3]
    damage(files[number], offset)
    found = run_json("verify", root, exit_code=1)
    assert [(one["kind"], one["path"]) for one in found["findings"]] == [(kind, str(files[number]))]
    run_json("verify", root, "--fix")
    assert not files[number].exists()
    assert run_json("verify", root)["is_sound"]


def test_the_last_page_of_a_long_header_is_verified(files: list[Path]) -> None:
    damage(files[1], 8100)
    found = run_json("verify", files[0].parents[3], exit_code=1)
    assert [one["kind"] for one in found["findings"]] == ["header_checksum"]


def test_eviction_takes_both_and_keeps_count(files: list[Path]) -> None:
    root = files[0].parents[3]
    assert recorded_bytes(root) == counted_bytes(root)
    run_json("gc", root, "--max-bytes", counted_bytes(root) - 1)
    assert sum(path.exists() for path in files) == 3
    # (The directories of root and namespace stay, so nothing at all is a bound that cannot be met.)
    run_json("gc", root, "--max-bytes", 0, exit_code=1)
    assert not any(path.exists() for path in files)
    assert recorded_bytes(root) == counted_bytes(root)
