"""Our own format for recorded traffic: JSON lines with the hash of every block, for any size of block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from kvoffload.errors import ConfigError
from kvoffload.sim.traces.base import KeyTable, Trace, TraceRequest

_MAX_NOTE = 500


def _is_whole(line: str) -> bool:
    """Whether a last line without an end is one: an engine that is killed while it records leaves half of one."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _note(found: object) -> str | None:
    """A line that is safe on a terminal."""
    return found[:_MAX_NOTE] if isinstance(found, str) and found.isprintable() else None


class BlockHashTrace(Trace):
    """First line `{"block_tokens": 16}`, then a request a line.

    `{"arrival_s": 0.25, "input_tokens": 70, "output_tokens": 9, "blocks": ["9f3a…", …]}`: chained hashes as texts
    or whole numbers, of all whole blocks; a last one that is not full may be there or not.
    """

    def __init__(self, path: Path) -> None:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        try:
            header = json.loads(first)
            block_tokens = header["block_tokens"]
        except (ValueError, KeyError, TypeError):
            header, block_tokens = {}, None
        if not isinstance(block_tokens, int) or block_tokens < 1:
            raise ConfigError(f'{path}: the first line must be {{"block_tokens": N}}')
        super().__init__(path, block_tokens)
        self.note = _note(header.get("note"))
        self._table = KeyTable()

    def _lines(self) -> Iterator[tuple[int, str]]:
        lines = super()._lines()
        next(lines)
        return ((number, line) for number, line in lines if line.endswith("\n") or _is_whole(line))

    def _parse(self, line: str) -> TraceRequest:
        fields = json.loads(line)
        return self._request(
            float(fields["arrival_s"]),
            (int(fields["input_tokens"]), int(fields.get("output_tokens", 0))),
            self._table.keys_of(fields["blocks"]),
        )
