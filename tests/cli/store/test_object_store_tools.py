"""`kvoffload du` and `gc` of an object store, here in a directory: what they tell and what they remove."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvoffload.cli.main import app
from kvoffload.keys.fingerprint import Namespace
from kvoffload.layout.chunk_format import file_bytes
from kvoffload.testing.tier_driver import TierDriver, make_keys
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.tier import ObjTier

CHUNK = file_bytes(4096)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def told(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with two namespaces: 12 chunks in objects of their own, and 5 in a pack."""
    url = f"file://{tmp_path}/store"
    for model, count, below in (("first", 12, 0), ("second", 5, 10**6)):
        fields = json.dumps({"layout_family": "direct", "layout_version": 1, "model": model})
        namespace = Namespace(model, json.dumps(json.loads(fields), sort_keys=True, separators=(",", ":")))
        tier = ObjTier(ObjTierConfig(url=url, threads=2, pack_below_bytes=below), namespace, (4096,))
        driver = TierDriver(tier, (4096,), lambda tier: tier.drain(0.02), 30.0)
        driver.store(make_keys(count))
        tier.shutdown()
    (tmp_path / "store" / "foreign").write_text("x")
    return url


def files(url: str) -> set[str]:
    root = Path(url.removeprefix("file://"))
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_du_tells_what_is_there(url: str) -> None:
    found = told("du", url)
    assert found["foreign_objects"] == 1
    first, second = found["namespaces"]
    assert (first["chunks"], first["objects"], first["bytes"]) == (12, 12, 12 * CHUNK)
    assert (second["chunks"], second["objects"], second["bytes"]) == (5, 1, 5 * CHUNK)
    assert first["orphans"] == 0
    assert "foreign objects  1" in run("du", url).stdout


def test_a_dry_run_tells_and_changes_nothing(url: str) -> None:
    before = files(url)
    found = told("gc", url, "--dry-run", "--max-bytes", str(6 * CHUNK))
    assert [row["superfluous"] for row in found["namespaces"]] == [6, 0]
    assert found["is_bound_met"]
    assert files(url) == before
    assert "nothing was changed" in run("gc", url, "--dry-run").stdout


def test_gc_meets_the_bound_of_each_namespace(url: str) -> None:
    told("gc", url, "--max-bytes", str(6 * CHUNK))
    assert [row["chunks"] for row in told("du", url)["namespaces"]] == [6, 5]
    assert "foreign" in files(url)


def test_gc_of_one_namespace_leaves_the_others(url: str) -> None:
    told("gc", url, "--namespace", "second", "--max-bytes", "1")
    assert [row["chunks"] for row in told("du", url)["namespaces"]] == [12, 0]


def test_gc_by_age_takes_nothing_that_is_young(url: str) -> None:
    found = told("gc", url, "--older-than", "1h")
    assert [row["expired"] for row in found["namespaces"]] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("gc", "s3://bucket/p?secret_key=hush"), "looks like a secret"),
        (("gc", "{url}", "--namespace", "third"), "names no namespace"),
        (("du", "{url}", "--max-bytes", "1GiB"), "is for a directory"),
        (
            ("du", "s3://some-bucket/p?endpoint=http://127.0.0.1:9&call_retries=0&anonymous=true"),
            "cannot be used: unreachable",
        ),
    ],
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], complaint: str, url: str) -> None:
    result = run(*(one.format(url=url) for one in arguments))
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "hush" not in result.stderr
    assert "\n" not in result.stderr.strip()


@pytest.mark.parametrize("tool", ["ls", "stat", "verify", "purge"])
def test_a_tool_for_directories_says_so_and_repeats_no_address(tool: str) -> None:
    result = run(tool, "s3://AKID:hush@bucket/x?endpoint=http://127.0.0.1:9")
    assert result.exit_code == 2
    assert f"{tool} looks at directories only" in str(result.exception) + result.output
    assert "hush" not in str(result.exception) + result.output


@pytest.mark.parametrize("tool", ["du", "gc"])
def test_a_directory_that_is_not_there_is_not_made(tool: str, tmp_path: Path) -> None:
    result = run(tool, f"file://{tmp_path}/typo")
    assert result.exit_code == 2
    assert "does not exist" in str(result.exception) + result.output
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_does_not_answer_is_told_with_a_remedy() -> None:
    result = run("du", "s3://bucket/x?endpoint=http://127.0.0.1:1&anonymous=true&call_retries=0")
    assert result.exit_code == 2
    assert "unreachable; check the endpoint" in str(result.exception) + result.output
