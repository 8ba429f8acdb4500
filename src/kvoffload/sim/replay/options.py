"""What a replay is told: tiers with their speeds, the engine's speed, the policy; and how texts become that."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvoffload.config.units import parse_bytes
from kvoffload.errors import ConfigError

_ENTRY = re.compile(r"\s*([A-Za-z][\w-]*)\s*=\s*([^@]+?)\s*(?:@\s*(.+?)\s*)?")
_SYNTAX = (
    "NAME=SIZE or NAME=SIZE@READ/WRITE/LATENCY, as host=64GiB or fs=1TiB@5GB/2GB/0.5ms (speeds per second)"
)
_ADMISSION = ("store_threshold", "store_min_prompt_tokens", "store_max_tokens")
_LATENCY = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class TierSpec:
    """One tier; the first one is host memory."""

    name: str
    size_bytes: int
    read_bytes_per_s: float
    write_bytes_per_s: float
    latency_s: float
    """Of one load, however long."""


_HOST = TierSpec("host", 0, 20e9, 20e9, 20e-6)
_BELOW = TierSpec("fs", 0, 3e9, 1.5e9, 1e-3)
"""Deliberately plain figures: host memory over PCIe, and one NVMe drive. Give your own."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Everything that a replay depends on, beside the trace."""

    tiers: tuple[TierSpec, ...]
    policy: str = "lru"
    bytes_per_token: int = 131_072
    """32 layers, 8 KV heads of 128, 16 bits."""
    prefill_tokens_per_s: float = 50_000.0
    """Of all engines together that the tiers serve; requests are prefilled one after the other."""
    store_threshold: int = 0
    """Admission of the first tier: see OffloadingOptions."""
    store_min_prompt_tokens: int = 0
    """Likewise, of all tiers: what the host does not store does not reach those below."""
    store_max_tokens: int | None = None
    """Likewise."""
    write_backlog_s: float = 10.0
    """What a tier below has to write may fall this far behind; what comes then is not stored."""


def parse_tiers(text: str) -> tuple[TierSpec, ...]:
    """Tiers from a text, the fastest first. Raises ConfigError."""
    tiers: list[TierSpec] = []
    for entry in text.split(","):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(f"--tiers: {entry!r} is not valid; give {_SYNTAX}")
        name, size, speeds = match.groups()
        plain = replace(
            _BELOW if tiers else _HOST, name=name, size_bytes=parse_bytes(size, f"--tiers: {name}")
        )
        tiers.append(_with_speeds(plain, speeds))
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names):
        raise ConfigError(f"--tiers: {', '.join(names)}: each name once")
    return tuple(tiers)


def parse_sweep(text: str, tiers: tuple[TierSpec, ...]) -> list[tuple[TierSpec, ...]]:
    """The same tiers with other sizes of one of them: `host=8GiB,64GiB,256GiB`. Raises ConfigError."""
    name, _, sizes = text.partition("=")
    if name.strip() not in [tier.name for tier in tiers] or not sizes:
        raise ConfigError(
            f"--sweep: {text!r} is not valid; give a tier of --tiers and sizes, as host=8GiB,64GiB"
        )
    return [
        tuple(replace(tier, size_bytes=size) if tier.name == name.strip() else tier for tier in tiers)
        for size in (parse_bytes(part.strip(), "--sweep") for part in sizes.split(","))
    ]


def with_admission(options: ReplayOptions, text: str) -> ReplayOptions:
    """The same with admission from a text: `store_threshold=2,store_max_tokens=32768`. Raises ConfigError."""
    found: dict[str, int] = {}
    for entry in text.split(","):
        name, _, number = (part.strip() for part in entry.partition("="))
        if name not in _ADMISSION or name in found or not number.isdecimal():
            raise ConfigError(
                f"--admission: {entry.strip()!r} is not valid; give NAME=NUMBER,… with {', '.join(_ADMISSION)}, each once"
            )
        found[name] = int(number)
    if found.get("store_max_tokens") == 0:
        raise ConfigError("--admission: store_max_tokens=0 must be at least 1")
    return replace(options, **found)  # type: ignore[arg-type]


def _with_speeds(tier: TierSpec, text: str | None) -> TierSpec:
    if text is None:
        return tier
    read, write, latency, *rest = [*(part.strip() for part in text.split("/")), "", ""]
    match = _LATENCY.fullmatch(latency) if latency else None
    if any(rest) or (latency and match is None):
        raise ConfigError(f"--tiers: {tier.name}: {text!r} are no speeds; give {_SYNTAX}")
    read_per_s = parse_bytes(read, f"--tiers: {tier.name}, read")
    write_per_s = parse_bytes(write, f"--tiers: {tier.name}, write") if write else read_per_s
    if min(read_per_s, write_per_s) < 1:
        raise ConfigError(f"--tiers: {tier.name}: speeds must be above 0")
    latency_s = float(match[1]) * _SECONDS[match[2]] if match else tier.latency_s
    return replace(tier, read_bytes_per_s=read_per_s, write_bytes_per_s=write_per_s, latency_s=latency_s)
