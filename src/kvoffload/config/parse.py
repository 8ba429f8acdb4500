"""Foreign mappings become frozen dataclasses here, and nowhere else.

Every key must be known, every value must have the right type; an error names the key, the value that was
found and what is valid.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from kvoffload.config.options import MAX_SHARE, MAX_WAIT_S, OffloadingOptions
from kvoffload.config.pages import HeadOrder
from kvoffload.errors import ConfigError

T = TypeVar("T")

WHERE = "kv_connector_extra_config"
LOAD_POLICIES = ("always", "never", "auto")
_SPEC_OPTIONS_KEY = "spec_options"


def parse_dataclass(cls: type[T], raw: Mapping[str, object], where: str) -> T:
    """Build `cls` (a dataclass) from a mapping.

    Args:
        cls: A dataclass; a field may carry `metadata={"parse": f}` with `f(value, where) -> parsed`.
        raw: The foreign mapping; not mutated.
        where: Where it comes from, for messages.

    Raises:
        ConfigError: unknown key (lists the valid ones), missing key, or a value of another type.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    unknown = [key for key in raw if key not in fields]
    if unknown:
        raise ConfigError(_unknown_message(unknown, sorted(fields), where))
    missing = [
        name
        for name, f in fields.items()
        if name not in raw and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        example = f", e.g. {missing[0]}='8GiB'" if fields[missing[0]].metadata.get("parse") else ""
        raise ConfigError(f"{where}: {', '.join(missing)} must be given{example}")
    values = {
        name: _parse_value(fields[name], hints[name], value, f"{where}: {name}")
        for name, value in raw.items()
    }
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(error_with_place(where, str(error))) from None


def error_with_place(where: str, text: str) -> str:
    """The message of a dataclass that found a value out of range, with where it comes from, once."""
    return text if text.startswith(where) else f"{where}: {text}"


def _unknown_message(unknown: list[str], valid: list[str], where: str) -> str:
    close = difflib.get_close_matches(unknown[0], valid, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{where}: unknown option {', '.join(map(repr, unknown))}{hint}; valid options: {', '.join(valid)}"


def _parse_value(spec: dataclasses.Field[Any], hint: object, value: object, where: str) -> object:
    parse = spec.metadata.get("parse")
    if parse is not None:
        return parse(value, where)
    accepted = _accepted_types(hint)
    if value is None and type(None) in accepted:
        return None
    if isinstance(value, list) and tuple in accepted:
        return tuple(value)
    if isinstance(value, int) and not isinstance(value, bool) and float in accepted:
        return float(value)
    if any(type(value) is kind for kind in accepted):
        return value
    names = " or ".join(sorted(kind.__name__ for kind in accepted if kind is not type(None)))
    raise ConfigError(f"{where}: {value!r} is of type {type(value).__name__}; give {names}")


def _accepted_types(hint: object) -> tuple[type, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for part in typing.get_args(hint) for kind in _accepted_types(part))
    origin = typing.get_origin(hint)
    return (origin if isinstance(origin, type) else typing.cast("type", hint),)


def parse_options(
    raw: Mapping[str, object], spec_options_type: type[Any] | None = None
) -> tuple[OffloadingOptions, object]:
    """Parse `kv_connector_extra_config`.

    Args:
        raw: The mapping as the engine hands it over; not mutated.
        spec_options_type: The dataclass of the spec's own options (key `spec_options`), None if it has none.

    Returns:
        The options, and the spec's own options (None if it has none).

    Raises:
        ConfigError: as `parse_dataclass`, and for values out of range or options that exclude each other.
    """
    rest = {key: value for key, value in raw.items() if key != _SPEC_OPTIONS_KEY}
    options = parse_dataclass(OffloadingOptions, rest, WHERE)
    _check_choices(options)
    _check_ranges(options)
    own = raw.get(_SPEC_OPTIONS_KEY)
    if spec_options_type is None:
        if own is not None:
            raise ConfigError(
                f"{WHERE}: spec_options is given, but {options.spec_name} has no options of its own"
            )
        return options, None
    if own is not None and not isinstance(own, Mapping):
        raise ConfigError(f"{WHERE}: spec_options: {own!r} is not a mapping")
    return options, parse_dataclass(spec_options_type, own or {}, f"{WHERE}: spec_options")


def _check_choices(options: OffloadingOptions) -> None:
    for name, valid in (("load_policy", LOAD_POLICIES), ("canonical_order", tuple(HeadOrder.__members__))):
        value = getattr(options, name)
        if value not in valid:
            raise ConfigError(f"{WHERE}: {name}={value!r} is not known; valid: {', '.join(valid)}")
    if options.canonical_order != HeadOrder.HND.value and not options.canonical_layout:
        raise ConfigError(
            f"{WHERE}: canonical_order={options.canonical_order!r} means nothing without canonical_layout; set that, or leave it out"
        )


def _check_ranges(options: OffloadingOptions) -> None:
    if options.block_size is not None and options.blocks_per_chunk is not None:
        raise ConfigError(
            f"{WHERE}: block_size={options.block_size} and blocks_per_chunk={options.blocks_per_chunk} exclude each "
            "other; give one of them"
        )
    for name in (
        "block_size",
        "blocks_per_chunk",
        "max_tracker_size",
        "store_max_tokens",
        "record_max_bytes",
    ):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"{WHERE}: {name}={value} must be at least 1")
    for name in ("store_threshold", "store_min_prompt_tokens"):
        if getattr(options, name) < 0:
            raise ConfigError(
                f"{WHERE}: {name}={getattr(options, name)} must not be negative; 0 stores always"
            )
    for name in ("max_pinned_share", "max_high_priority_share"):
        if not 0 <= getattr(options, name) <= MAX_SHARE:
            raise ConfigError(f"{WHERE}: {name}={getattr(options, name)} must be 0 to {MAX_SHARE}")
    if not 0 <= options.drain_timeout_s <= MAX_WAIT_S:
        raise ConfigError(
            f"{WHERE}: drain_timeout_s={options.drain_timeout_s} must be 0 to {MAX_WAIT_S:.0f} seconds"
        )
    for name in ("join_timeout_s", "pending_timeout_s", "transfer_timeout_s", "promotion_deadline_s"):
        # Written so that "not a number" fails too. Larger waits overflow in the operating system's timers.
        if not 0 < getattr(options, name) <= MAX_WAIT_S:
            raise ConfigError(
                f"{WHERE}: {name}={getattr(options, name)} must be above 0 seconds and at most {MAX_WAIT_S:.0f}"
            )
