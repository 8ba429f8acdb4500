"""Durations as people write them on a command line: 30d, 12h, 90m, 45s. Nothing else lives here."""

from __future__ import annotations

import re

from kvoffload.errors import ConfigError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PATTERN = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([smhdw])\s*")


def parse_duration(text: str, where: str) -> float:
    """Seconds of a text: a number and a unit (s, m, h, d, w).

    Raises:
        ConfigError: it is none.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{where}: {text!r} is not a duration; give a number and a unit: 45s, 90m, 12h, 30d, 2w"
        )
    return float(match.group(1)) * _SECONDS[match.group(2)]
