"""The demo's engine process: whatever happens, nothing is left running. The engine is played by small programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from kvoffload.cli.demo.client import Client
from kvoffload.cli.demo.engine import (
    EngineFailedError,
    EngineProcess,
    engine_environment,
    free_port,
    serve_command,
    telling_lines,
)

# Starts a worker, tells its id, and both ignore SIGTERM: as an engine that hangs.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(worker.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def engine(tmp_path):
    """Makes an engine from a program; closes it at the end."""
    made = []

    def make(program):
        one = EngineProcess([sys.executable, "-c", program], os.environ, tmp_path / "engine.log", grace_s=0.5)
        made.append(one)
        one.start()
        return one

    yield make
    for one in made:
        one.close()


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_engine_that_dies_is_told_with_its_exit_code_and_its_log(engine, tmp_path):
    one = engine("print('ValueError: no such model'); raise SystemExit(3)")
    with pytest.raises(EngineFailedError) as caught:
        one.wait_ready(Client(free_port()), 20)
    told = str(caught.value)
    assert told.startswith(f"the engine ended by itself (exit code 3); its log {tmp_path}/engine.log says:\n")
    assert "ValueError: no such model" in told


def test_an_engine_that_is_killed_is_told_with_the_signal(engine):
    one = engine("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(EngineFailedError, match="killed by signal 9"):
        one.wait_ready(Client(free_port()), 20)


def test_an_engine_that_does_not_get_ready_is_told_after_the_deadline(engine):
    one = engine("print('still loading', flush=True); import time; time.sleep(600)")
    with pytest.raises(EngineFailedError, match=r"not ready after 1 s; its log"):
        one.wait_ready(Client(free_port()), 0.6)


def test_closing_kills_an_engine_that_ignores_it_and_all_it_started(engine, tmp_path):
    one = engine(STUBBORN)
    log = tmp_path / "engine.log"
    wait_until(lambda: log.read_text().endswith("\n"))
    worker = int(log.read_text())
    assert is_running(worker)
    one.close()
    wait_until(lambda: not is_running(worker))
    one.close()


def test_an_error_inside_the_block_closes_the_engine(tmp_path):
    log = tmp_path / "engine.log"
    one = EngineProcess([sys.executable, "-c", STUBBORN], os.environ, log, grace_s=0.5)

    def interrupted():
        with closing(one):
            one.start()
            wait_until(lambda: log.read_text().endswith("\n"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    worker = int(log.read_text())
    wait_until(lambda: not is_running(worker))


def test_a_failed_request_of_a_dying_engine_is_explained_by_its_log(engine):
    one = engine("import time; time.sleep(0.3); raise RuntimeError('out of memory')")
    with pytest.raises(EngineFailedError, match="RuntimeError: out of memory"):
        one.explain_failure()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_the_demo(number):
    program = (
        "import os, time\n"
        "from kvoffload.cli.demo.command import _signals_end_the_demo\n"
        "try:\n"
        "    with _signals_end_the_demo():\n"
        f"        os.kill(os.getpid(), {int(number)}); time.sleep(60)\n"
        "finally: print('unwound')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (128 + number, "unwound\n")


def test_the_quote_of_a_log_has_the_first_error_and_the_end():
    log = "start\nTypeError: the cause\n" + "noise\n" * 20 + "ended\n\n"
    assert telling_lines(log) == ["TypeError: the cause", *["noise"] * 5, "ended"]
    marked = "(EngineCore pid=7) ERROR 11-29 16:36:08 [core.py:1] torch.OutOfMemoryError: the cause"
    assert telling_lines(f"{marked}\n" + "noise\n" * 20)[0] == marked
    assert telling_lines("WARNING may cause `OSError: x`\n" + "noise\n" * 20) == ["noise"] * 6
    assert telling_lines("only\n") == ["only"]
    assert telling_lines("") == []


def test_the_size_of_the_device_cache_cannot_be_overridden_from_outside():
    environment = engine_environment({"VLLM_CPU_KVCACHE_SPACE": "8", "PATH": "/bin"})
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment
    assert environment["PATH"] == "/bin"
    assert environment["PYTHONUNBUFFERED"] == "1"


def test_the_engine_is_started_through_our_own_serve_command():
    command = [*serve_command(["m", "--cpu-bytes", "1GiB"]), "--dry-run"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert '"kv_connector":"KvoffloadConnector"' in shown
