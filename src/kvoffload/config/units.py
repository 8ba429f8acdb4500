"""Sizes as people write them ("8GiB", "500 MB", 4294967296), and fields of options that take them."""

from __future__ import annotations

import re
from dataclasses import field
from fractions import Fraction
from typing import Any

from kvoffload.errors import ConfigError

_FACTORS = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), start=1)},
}
_PATTERN = re.compile(r"\s*(\d{1,40}(?:\.\d{1,40})?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: object, where: str) -> int:
    """Turn a size into bytes.

    Args:
        value: A whole number of bytes, or a text: number and unit (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB).
        where: Name of the option, for the message.

    Raises:
        ConfigError: negative, fractional bytes, unknown unit, or not a size at all.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ConfigError(f"{where}: {value!r} is not a size; give bytes or a text like '8GiB'")
    match = _PATTERN.fullmatch(str(value) if isinstance(value, str) else repr(value))
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise ConfigError(
            f"{where}: {value!r} is not a size; give bytes or a text like '8GiB' (units: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)"
        )
    size: Fraction = Fraction(match.group(1)) * factor
    if factor == 1 and size.denominator != 1:
        raise ConfigError(f"{where}: {value!r} is a fraction of a byte; did you mean '{match.group(1)}GiB'?")
    return round(size)


def format_bytes(size: int) -> str:
    """Bytes for people: `4.00 GiB (4294967296 bytes)`; small sizes in bytes alone."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(size) >= 1024**power:
            return f"{size / 1024**power:.2f} {unit} ({size} bytes)"
    return f"{size} bytes"


def size_field(default: str | None = None) -> Any:
    """A field of an options dataclass that takes sizes in bytes, also as "8GiB"; without a default it must be given."""
    if default is None:
        return field(metadata={"parse": parse_bytes})
    return field(default=parse_bytes(default, "default"), metadata={"parse": parse_bytes})


def optional_size_field() -> Any:
    """The same for one that may be left out: None by default."""

    def parse(value: object, where: str) -> int | None:
        return None if value is None else parse_bytes(value, where)

    return field(default=None, metadata={"parse": parse})
