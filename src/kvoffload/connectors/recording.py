"""Writes what an engine is asked for as a trace that `kvoffload simulate` reads. Off unless asked for; no engine here.

The connector sees every request. The engine's KV events tell less (`events/`): what the device's cache stores and drops, so
a prompt that it has already makes none, and prompts that run together are not told apart.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kvoffload.connectors.trace_lines import BlockNames, trace_line

logger = logging.getLogger(__name__)

_MAX_WAITING = 1024
_CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """What is told of a request."""

    arrival_s: float
    input_tokens: int
    block_hashes: Sequence[bytes]
    """Chained, one for each whole block of the prompt."""
    salt: bytes = b""
    """Prompts with another salt have nothing in common."""


class TraceRecorder:
    """A file of its own in a directory, written by a thread: the caller never waits, whatever the disk does.

    Neither tokens nor the engine's hashes are written, but hashes of these under a secret that is forgotten at the
    end: who knows a prompt cannot find it in a trace, nor one trace's prompts in another.

    Args:
        directory: Is made if it is not there; `~` is the home directory, as in `root_dir` of an fs tier.
        block_tokens: Tokens of a block.
        max_bytes: The file does not grow beyond.
    """

    def __init__(self, directory: Path, block_tokens: int, max_bytes: int) -> None:
        self._directory = directory
        self._block_tokens = block_tokens
        self._max_bytes = max_bytes
        self._names = BlockNames()
        self._waiting: queue.Queue[RecordedRequest | None] = queue.Queue(_MAX_WAITING)
        self._start_s: float | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="kvoffload-recording", daemon=True)
        self._thread.start()

    def add(self, request: RecordedRequest) -> bool:
        """Have a request written; to be told in the order of arrival. False: it will not be, for want of room or a disk."""
        if self._is_over:
            return False
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Write what waits, but not for long. Idempotent."""
        try:
            self._waiting.put(None, timeout=_CLOSE_TIMEOUT_S)
        except queue.Full:
            self._is_over = True
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            with self._open() as file:
                self._write(file)
        except (OSError, RuntimeError) as error:
            # (RuntimeError: there is no home directory.)
            logger.warning("kvoffload: no trace is recorded any more: %s", error)
        finally:
            self._is_over = True

    def _open(self) -> IO[bytes]:
        directory = self._directory.expanduser()
        directory.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        path = directory / f"trace-{stamp}-{os.getpid()}-{secrets.token_hex(2)}.jsonl"
        logger.info("kvoffload: recording requests (hashes only) in %s", path)
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    def _write(self, file: IO[bytes]) -> None:
        written = file.write(trace_line({"block_tokens": self._block_tokens}))
        file.flush()
        for request in self._requests():
            line = self._line_of(request)
            if written + len(line) > self._max_bytes:
                logger.info("kvoffload: the recorded trace is full: %d bytes", written)
                return
            written += file.write(line)
            if self._waiting.empty():
                file.flush()

    def _requests(self) -> Iterator[RecordedRequest]:
        while True:
            request = self._waiting.get()
            if request is None:
                return
            yield request

    def _line_of(self, request: RecordedRequest) -> bytes:
        if self._start_s is None:
            self._start_s = request.arrival_s
        names = [self._names.name(block_hash, request.salt) for block_hash in request.block_hashes]
        return trace_line(
            {
                "arrival_s": round(request.arrival_s - self._start_s, 6),
                "input_tokens": request.input_tokens,
                "blocks": names,
            }
        )
