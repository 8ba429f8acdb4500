"""Mooncake's published traces (FAST 2025): JSON lines with one id per block of 512 tokens."""

from __future__ import annotations

import json
from pathlib import Path

from kvoffload.sim.traces.base import KeyTable, Trace, TraceRequest

BLOCK_TOKENS = 512


class MooncakeTrace(Trace):
    """`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, …]}`, one a line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, BLOCK_TOKENS)
        self._table = KeyTable()

    def _parse(self, line: str) -> TraceRequest:
        fields = json.loads(line)
        return self._request(
            fields["timestamp"] / 1000,
            (int(fields["input_length"]), int(fields["output_length"])),
            self._table.keys_of(fields["hash_ids"]),
        )
