"""Stores on disk for the tests of the store tools, made by the tier itself, and the tools as a user calls them."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tiers" / "fs"))

from fs_support import Store, make_keys, make_namespace, record_of
from typer.main import get_command
from typer.testing import CliRunner, Result

from kvoffload.cli.main import app
from kvoffload.keys.fingerprint import Namespace

DEAD_TEMP = "tmp-{host}-{pid}-1-1-7.kvtmp"


def namespace_for(model: str) -> Namespace:
    return make_namespace(
        model, kv_dtype="bfloat16", tokens_per_hash=16, blocks_per_chunk=8, parallel={"tp": 2, "pp": 1}
    )


_patterns = tempfile.TemporaryDirectory(prefix="store-tools-")


def make_store(root: Path, chunks: int = 4, model: str = "org/model") -> Path:
    """A store with chunks of a model; returns the namespace's directory."""
    if root.joinpath(".kvoffload").exists():
        return _make_with_tier(root, chunks, model)
    pattern = Path(_patterns.name) / f"{model.replace('/', '_')} {chunks}"
    if not pattern.exists():
        _make_with_tier(pattern, chunks, model)
    shutil.copytree(pattern, root, dirs_exist_ok=True)
    return root / namespace_for(model).directory_name


def _make_with_tier(root: Path, chunks: int, model: str) -> Path:
    with Store(root, namespace=namespace_for(model), max_bytes=10**9) as store:
        store.store(make_keys(chunks, model))
        # A walk that began before the stores counts some of them twice, until the next one.
        store.walk()
        return store.directory


def chunk_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*.kv") if path.is_file() and not path.is_symlink())


def damage(path: Path, offset: int = 5000) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def dead_temp_name() -> str:
    """Of a process of this machine that has ended (process numbers end below this one)."""
    from kvoffload.tiers.fs.writer import new_writer

    return DEAD_TEMP.format(host=new_writer().host, pid=2**22 + 1)


# Made once: making it takes longer than most of the commands that the tests run.
_command = get_command(app)


def run(*arguments: object) -> Result:
    with mock.patch("typer.testing._get_command", return_value=_command):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_json(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return dict(json.loads(result.stdout))


def counted_bytes(root: Path) -> int:
    return int(run_json("du", root)["counted_bytes"])


def recorded_bytes(root: Path) -> int:
    return int(record_of(root)["used_bytes"])
