"""`--fs PATH[:CAP]` of `serve`: a directory below host memory, in the words of a command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kvoffload.cli.serve_options import TIERING_SPEC
from kvoffload.config.units import parse_bytes
from kvoffload.errors import ConfigError


def parse_fs(texts: Sequence[str]) -> list[dict[str, object]]:
    """Entries of `secondary_tiers` for what stood behind each `--fs`, in the order given.

    Raises:
        ConfigError: no path, or something behind the last colon that is no size.
    """
    tiers = [_parse(text) for text in texts]
    for number, tier in enumerate(tiers[1:], start=2):
        tier["name"] = f"fs{number}"
    return tiers


def tier_switches(tiers: Sequence[dict[str, object]]) -> dict[str, object]:
    """The options that make an engine use these tiers; none if there are none."""
    return {"spec_name": TIERING_SPEC, "secondary_tiers": list(tiers)} if tiers else {}


def make_directories(tiers: Sequence[dict[str, object]]) -> None:
    """Make the directories now: better a line before the engine starts than one after the model is loaded.

    Raises:
        ConfigError: one cannot be made or written to.
    """
    for tier in tiers:
        path = Path(str(tier["root_dir"]))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--fs {path}: cannot make this directory ({error.strerror}); give another one"
            ) from None
        if not os.access(path, os.W_OK | os.X_OK):
            raise ConfigError(
                f"--fs {path}: this user may not write there; change its permissions, or give another directory"
            )


def _parse(text: str) -> dict[str, object]:
    path, colon, cap = text.rpartition(":")
    if not colon:
        path = text
    if not path:
        raise ConfigError(f"--fs {text!r}: give PATH or PATH:CAP, e.g. --fs /var/cache/kv:100GiB")
    tier: dict[str, object] = {"type": "fs", "root_dir": str(Path(path).expanduser().absolute())}
    if colon:
        # A path with a colon in it needs a cap behind it: guessing would make a directory of a misspelt size.
        tier["max_bytes"] = parse_bytes(cap, f"--fs {text!r}: what stands behind the last colon")
    return tier
