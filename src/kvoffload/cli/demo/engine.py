"""The demo's engine: a child process that is started once, watched, and stopped on every way out."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvoffload.cli.demo.client import Client
from kvoffload.errors import KvError

_POLL_S = 0.25
_KILL_S = 5.0
_DYING_S = 5.0
_LAST_LINES = 6
_LINE_CHARS = 240
# An error at the beginning of a line, behind the engine's own marks at most; not the mention of one in a warning.
_TELLING = re.compile(
    r"^(\([^)]*\) )?(ERROR \S+ \S+ \[[^\]]*\] )?[\w.]*(Error|Exception): \S|kvoffload: error:"
)


class EngineFailedError(KvError):
    """The engine did not start, or died."""


class EngineProcess:
    """An engine as a child in a process group of its own. Whoever starts it must stop it: use `contextlib.closing`.

    Args:
        argv: The command, see `serve_command`.
        environment: The child's environment.
        log_path: Takes its output; overwritten.
        grace_s: How long it may take to end by itself when it is asked to.
    """

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], log_path: Path, grace_s: float = 10.0
    ) -> None:
        self._argv = list(argv)
        self._grace_s = grace_s
        self._environment = dict(environment)
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns at once."""
        with self._log_path.open("wb") as log:
            # A session of its own: Ctrl-C goes to us alone, and the whole group can be killed at once.
            self._process = subprocess.Popen(  # noqa: S603
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def wait_ready(self, client: Client, timeout_s: float) -> None:
        """Return when the engine answers.

        Raises:
            EngineFailedError: it died or did not get ready in time; quotes its log.
        """
        deadline = time.monotonic() + timeout_s
        while not client.is_healthy():
            self.check_alive()
            if time.monotonic() > deadline:
                raise EngineFailedError(
                    f"the engine was not ready after {timeout_s:.0f} s{self._log_quote()}"
                )
            time.sleep(_POLL_S)

    def check_alive(self) -> None:
        """Raise EngineFailedError, with a quote of its log, if the engine has ended."""
        assert self._process is not None, "not started, or closed already"
        code = self._process.poll()
        if code is not None:
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            raise EngineFailedError(f"the engine ended by itself ({how}){self._log_quote()}")

    def explain_failure(self) -> None:
        """After a request failed: raise EngineFailedError if the engine is dying; return if it lives on."""
        deadline = time.monotonic() + _DYING_S
        while time.monotonic() < deadline:
            self.check_alive()
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the engine and everything it started. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.terminate()
            process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Whatever is left of the group, also after a second Ctrl-C: workers outlive an engine that was killed.
            _kill_group(process.pid)
            process.wait(_KILL_S)

    def _log_quote(self) -> str:
        text = self._log_path.read_text(errors="replace")
        return f"; its log {self._log_path} says:\n" + "\n".join(f"  {line}" for line in telling_lines(text))


def serve_command(arguments: Sequence[str]) -> list[str]:
    """`kvoffload serve …` of this very installation."""
    return [sys.executable, "-m", "kvoffload.cli.main", "serve", *arguments]


def telling_lines(log: str) -> list[str]:
    """The lines of a log that most likely say what went wrong: the first error, and the end."""
    lines = [line.strip()[:_LINE_CHARS] for line in log.splitlines() if line.strip()]
    first_error = [line for line in lines if _TELLING.search(line)][:1]
    end = lines[-_LAST_LINES:]
    return [line for line in first_error if line not in end] + end


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the demo's engine."""
    # This variable would override the size of the device cache, on which the whole demo rests.
    kept = {name: value for name, value in environment.items() if name != "VLLM_CPU_KVCACHE_SPACE"}
    return {**kept, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
