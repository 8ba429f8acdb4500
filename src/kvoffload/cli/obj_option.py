"""`--obj URL[?OPTION=VALUE&…]`: an object store below everything else, in the words of a command line."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

from kvoffload.config.options import LaneOptions
from kvoffload.config.parse import parse_dataclass
from kvoffload.errors import ConfigError
from kvoffload.tiers.obj.address import parse_address
from kvoffload.tiers.obj.client import open_client
from kvoffload.tiers.obj.options import ObjTierConfig

_SECRET = re.compile(
    r"secret|token|password|access_key|account_key|sas|signature|credential(?!s_)", re.IGNORECASE
)
_WORDS = {"cap": "max_bytes", "ttl": "ttl_s"}
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def parse_obj(texts: Sequence[str]) -> list[dict[str, object]]:
    """Entries of `secondary_tiers` for what stood behind each `--obj`, in the order given.

    Raises:
        ConfigError: an address or an option that is not valid; a secret is never repeated.
    """
    tiers = [_parse(text) for text in texts]
    for number, tier in enumerate(tiers[1:], start=2):
        tier.setdefault("name", f"obj{number}")
    return tiers


def check_stores(tiers: Sequence[Mapping[str, object]]) -> None:
    """Look at what can be known without asking a store: better a line now than one after the model is loaded.

    Raises:
        ConfigError: the client is not installed, or a file that is named cannot be read.
    """
    for tier in tiers:
        open_client(_own(tier))


def config_of(text: str) -> ObjTierConfig:
    """The options of the tier alone, as tools need them. Raises ConfigError."""
    return _own(_parse(text))


def _own(tier: Mapping[str, object]) -> ObjTierConfig:
    own = {field.name for field in dataclasses.fields(ObjTierConfig)}
    return parse_dataclass(ObjTierConfig, {name: tier[name] for name in tier if name in own}, "--obj")


def _parse(text: str) -> dict[str, object]:
    url, _, query = text.partition("?")
    shown = f"--obj {parse_address(url).text}"
    tier: dict[str, object] = {"type": "obj", "url": url}
    for name, value in parse_qsl(query, keep_blank_values=True):
        option = _WORDS.get(name, name)
        if _SECRET.search(option) and option not in _options():
            raise ConfigError(
                f"{shown}: an option that looks like a secret is refused, as it stands in command lines and logs; give "
                "credentials by environment variables, a credentials_file or a workload identity"
            )
        if option not in _options():
            raise ConfigError(
                f"{shown}: unknown option {name!r}; valid options: {', '.join(sorted(_options()))}"
            )
        if option in tier:
            raise ConfigError(f"{shown}: {name} is given twice")
        tier[option] = _value_of(value)
    return tier


def _options() -> set[str]:
    """Of the tier and of its lane."""
    return {field.name for kind in (ObjTierConfig, LaneOptions) for field in dataclasses.fields(kind)} - {
        "url"
    }


def _value_of(text: str) -> object:
    if text in ("true", "false") or _NUMBER.fullmatch(text):
        value: object = json.loads(text)
        return value
    return text
