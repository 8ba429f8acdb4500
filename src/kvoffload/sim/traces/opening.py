"""Which format a trace has, from its first line."""

from __future__ import annotations

import json
from pathlib import Path

from kvoffload.errors import ConfigError
from kvoffload.sim.traces.azure import COLUMNS, AzureTrace
from kvoffload.sim.traces.base import Trace
from kvoffload.sim.traces.block_hashes import BlockHashTrace
from kvoffload.sim.traces.mooncake import MooncakeTrace


def open_traffic(path: Path) -> Trace:
    """As `open_trace`. Raises ConfigError also if not one request is in it: then nothing can be told from it."""
    found = open_trace(path)
    if next(iter(found), None) is None:
        raise ConfigError(f"{path}: has no requests yet; give a trace with some traffic")
    return found


def open_trace(path: Path) -> Trace:
    """The reader for a file. Raises ConfigError if there is none."""
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline(1_000_000)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a trace: {error}") from error
    if [name.strip() for name in first.lstrip("\ufeff").split(",")] == list(COLUMNS):
        return AzureTrace(path)
    try:
        fields = json.loads(first)
    except ValueError:
        fields = None
    if isinstance(fields, dict) and "hash_ids" in fields:
        return MooncakeTrace(path)
    if isinstance(fields, dict) and "block_tokens" in fields:
        return BlockHashTrace(path)
    raise ConfigError(
        f"{path}: neither a Mooncake trace (JSON lines with hash_ids), nor block hashes (JSON lines, "
        f'the first one {{"block_tokens": N}}), nor an Azure trace (CSV {",".join(COLUMNS)})'
    )
