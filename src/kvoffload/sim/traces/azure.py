"""Azure's LLM inference traces (published with Splitwise, ISCA 2024): when, and how long. Not what."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import ClassVar

from kvoffload.sim.traces.base import Trace, TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class AzureTrace(Trace):
    """CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens.

    It does not say which prompts begin alike. So it shows load and lengths, and nothing about hits: `knows_blocks` is
    false, prompts have no keys, and inventing some would invent the answer.
    """

    knows_blocks: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        super().__init__(path, block_tokens=1)
        self._start_s: float | None = None

    def _lines(self) -> Iterator[tuple[int, str]]:
        self._start_s = None
        lines = super()._lines()
        next(lines)
        return lines

    def _parse(self, line: str) -> TraceRequest:
        when, context, generated = next(csv.reader([line]))
        # Seven digits of a second are one more than Python reads.
        moment = datetime.fromisoformat(when.strip()[:26]).replace(tzinfo=timezone.utc).timestamp()
        if self._start_s is None:
            self._start_s = moment
        return self._request(moment - self._start_s, (int(context), int(generated)), ())
