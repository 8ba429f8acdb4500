"""What a command line says about offloading becomes the options of the connector, checked before an engine starts."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, Sequence

from kvoffload.config.options import OffloadingOptions
from kvoffload.config.validate import resolve_hash_seed
from kvoffload.errors import ConfigError
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.spec.factory import OffloadingSpecFactory

_DEFAULT_HASH_ALGORITHM = "sha256"
TIERING_SPEC = "TieringOffloadingSpec"


def parse_assignments(assignments: Sequence[str], taken: Mapping[str, str]) -> dict[str, object]:
    """`KEY=VALUE` texts as a mapping; a value is JSON, or a text if the option is one or if it is not JSON.

    Args:
        assignments: What stood behind each `--option`.
        taken: Options that have a switch of their own, with its name.

    Raises:
        ConfigError: not of the form KEY=VALUE, given twice, or an option that has its own switch.
    """
    found: dict[str, object] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise ConfigError(f"--option {assignment}: give KEY=VALUE, e.g. --option store_threshold=2")
        if key in taken:
            raise ConfigError(f"--option {assignment}: give {taken[key]} instead")
        if key in found:
            raise ConfigError(f"--option {key} is given twice")
        found[key] = _value_of(key, text)
    return found


def check_options(options: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, object]:
    """The options as the engine shall get them, proved to be valid.

    A PYTHONHASHSEED in the environment is declared: whoever starts the engine here has set it on purpose.

    Raises:
        ConfigError: what the connector itself would refuse later, when the model is already loaded.
    """
    checked = dict(options)
    if "secondary_tiers" in checked:
        checked.setdefault("spec_name", TIERING_SPEC)
    seed = environment.get("PYTHONHASHSEED")
    if seed is not None:
        checked.setdefault("hash_seed", seed)
    parsed, _ = OffloadingSpecFactory.parse_options(checked)
    resolve_hash_seed(_DEFAULT_HASH_ALGORITHM, seed, parsed.hash_seed)
    EVICTION_POLICIES.resolve(parsed.eviction_policy, parsed.cache_policy_module_path)
    return checked


def _value_of(key: str, text: str) -> object:
    hint = typing.get_type_hints(OffloadingOptions).get(key)
    if hint is str or str in typing.get_args(hint):
        return text
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value
