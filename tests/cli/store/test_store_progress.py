"""While a large store is walked, a person at a terminal sees that it goes on; nobody else sees anything of it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from store_files import make_store, run

COMMANDS = (("ls",), ("du",), ("gc",), ("gc", "--dry-run"), ("verify",), ("purge", "--yes"))


def on_terminal(*arguments: str) -> tuple[str, str]:
    """(stdout, what a terminal on stderr was sent) of a command."""
    above, below = pty.openpty()
    code = "from kvoffload.cli.main import app; app()"
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            stderr=below,
            env=environment,
            check=True,
            timeout=60,
        )
        os.close(below)
        shown = os.read(above, 65536).decode("utf-8", "replace")
    except OSError:
        shown = ""
    finally:
        os.close(above)
    return done.stdout.decode(), shown


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_walk_tells_a_terminal_how_far_it_is(tmp_path: Path, command: tuple[str, ...]) -> None:
    make_store(tmp_path, 4)
    stdout, shown = on_terminal(*command, str(tmp_path))
    assert "4 chunks" in shown
    assert "looking" not in stdout


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_is_told_where_there_is_no_terminal(tmp_path: Path, command: tuple[str, ...]) -> None:
    make_store(tmp_path, 4)
    result = run(*command, tmp_path)
    assert result.exit_code == 0
    assert "looking" not in result.output
