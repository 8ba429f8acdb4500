"""Imports go down only, and the core never brings an engine or torch into the process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
FORBIDDEN = ("torch", "vllm", "transformers")
STANDARD_LIBRARY_ONLY = ("config", "keys", "metrics", "errors", "types", "clock", "registry")
ENTRY_SCRIPTS = ("kvoffload.cli", "kvoffload.connectors")


def modules() -> list[str]:
    """All modules of the core."""
    names = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not name.startswith(ENTRY_SCRIPTS):
            names.append(name)
    return names


IMPORT_ALL = """
import importlib, sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise ImportError(f"{name} was imported")

FORBIDDEN = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Wall())
for name in sys.argv[2].split(","):
    importlib.import_module(name)
found = FORBIDDEN & {name.partition(".")[0] for name in sys.modules}
assert not found, found
"""


def import_in_fresh_process(names: list[str], forbidden: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, ",".join(forbidden), ",".join(names)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_core_imports_neither_torch_nor_an_engine() -> None:
    names = modules()
    assert "kvoffload.manager.manager" in names
    assert "kvoffload.testing.policy_tests" in names
    import_in_fresh_process(names, FORBIDDEN)


def test_the_lowest_floors_need_the_standard_library_only() -> None:
    names = [
        name for name in modules() if name.split(".")[1:2] and name.split(".")[1] in STANDARD_LIBRARY_ONLY
    ]
    assert "kvoffload.keys.fingerprint" in names
    import_in_fresh_process(names, (*FORBIDDEN, "numpy", "typer", "rich"))


def test_the_wall_of_these_tests_stands() -> None:
    with pytest.raises(AssertionError, match="was imported"):
        import_in_fresh_process(["kvoffload.layout.direct", "numpy"], ("numpy",))


@pytest.mark.skipif(util.find_spec("importlinter") is None, reason="import-linter is not installed")
def test_imports_go_down_only() -> None:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "0 broken" in done.stdout
