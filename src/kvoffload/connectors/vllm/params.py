"""Per-request wishes (`kv_transfer_params`) become frozen dataclasses; what is not valid switches the cache off.

Whoever sends requests may put anything in here: nothing raises, and everything that is accepted is within bounds.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvoffload.config.options import HOST_NAME
from kvoffload.manager.wishes import NO_WISHES, Priority, Stay, Wishes

MAX_TOKENS = 2**53
"""More than that is no number of tokens (and no exact number in JSON)."""
MAX_PIN_S = 7 * 86_400.0
MAX_TTL_S = 365 * 86_400.0

_MEDIA = ("CPU", "STORAGE")
_LOCALITIES = ("LOCAL", "REMOTE")
_MAX_ENTRIES = 64

Tiers = Mapping[str, str | None]
"""The tiers below the host: name → medium, None if it has none."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request asks for; None where it has no limit."""

    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None
    wishes: Wishes = NO_WISHES


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a request's wishes."""

    parameter: str
    text: str
    """One line: what was found, and what is valid."""


OFF = RequestLimits(max_load_tokens=0, max_offload_tokens=0)


class _NotValid(Exception):  # noqa: N818 - it never leaves this file
    def __init__(self, parameter: str, value: object, valid: str) -> None:
        shown = f"{parameter}={_shown(value)}" if parameter else _shown(value)
        super().__init__(f"kv_transfer_params: {shown}: {valid}")
        self.parameter = parameter or "kv_transfer_params"


def parse_limits(params: object, tiers: Tiers) -> tuple[RequestLimits, Fault | None]:
    """Read the wishes; keys of other connectors are not ours to judge.

    Args:
        params: As the request's author wrote it.
        tiers: The tiers below the host.

    Returns:
        The wishes and None, or wishes that switch the cache off for this request and what is wrong with it.
    """
    if params is None:
        return RequestLimits(), None
    try:
        return _parse(params, tiers), None
    except _NotValid as error:
        return OFF, Fault(error.parameter, str(error))


def _parse(params: object, tiers: Tiers) -> RequestLimits:
    if not isinstance(params, Mapping):
        raise _NotValid("", params, "must be a mapping")
    limits = RequestLimits(
        _tokens(params, "max_load_tokens"), _tokens(params, "max_offload_tokens"), _wishes(params, tiers)
    )
    return OFF if _flag(params, "skip") else limits


def _wishes(params: Mapping[Any, Any], tiers: Tiers) -> Wishes:
    keep_s, ttl_s = _pin_s(params), _seconds(params, "ttl_s", MAX_TTL_S)
    if keep_s is not None and ttl_s is not None and ttl_s < keep_s:
        raise _NotValid("pin_ttl_s", keep_s, f"must not be more than ttl_s={ttl_s}")
    store_tiers = _tier_names(params, "kv_store_tiers", tiers)
    if ttl_s is not None and store_tiers:
        raise _NotValid(
            "kv_store_tiers", sorted(store_tiers), "cannot hold together with ttl_s: tiers below keep no ttl"
        )
    stay = Stay(_priority(params), keep_s, ttl_s)
    return Wishes(stay, _tier_names(params, "kv_load_tiers", tiers), store_tiers)


def _tokens(params: Mapping[Any, Any], name: str) -> int | None:
    value = params.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise _NotValid(name, value, f"must be a whole number of tokens, 0 to {MAX_TOKENS}")
    return value


def _flag(params: Mapping[Any, Any], name: str) -> bool:
    value = params.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _NotValid(name, value, "must be true or false")


def _seconds(params: Mapping[Any, Any], name: str, max_s: float) -> float | None:
    value = params.get(name)
    if value is None:
        return None
    # Written so that "not a number" fails too, and compared before it becomes a float: that may overflow.
    if type(value) not in (int, float) or not 0 < value <= max_s or not math.isfinite(value):
        raise _NotValid(name, value, f"must be seconds, above 0 and at most {max_s:.0f}")
    return float(value)


def _pin_s(params: Mapping[Any, Any]) -> float | None:
    seconds = _seconds(params, "pin_ttl_s", MAX_PIN_S)
    if _flag(params, "pin"):
        if seconds is None:
            raise _NotValid("pin", True, f"needs pin_ttl_s, in seconds, at most {MAX_PIN_S:.0f}")
        return seconds
    if seconds is not None and params.get("pin") is None:
        raise _NotValid("pin_ttl_s", seconds, "needs pin: true")
    return None


def _priority(params: Mapping[Any, Any]) -> Priority:
    value = params.get("priority")
    if value is None:
        return Priority.NORMAL
    # Compared, not looked up: it may be unhashable.
    for priority in Priority:
        if type(value) is str and value == priority.value:
            return priority
    raise _NotValid("priority", value, f"must be one of {', '.join(p.value for p in Priority)}")


def _tier_names(params: Mapping[Any, Any], name: str, tiers: Tiers) -> frozenset[str] | None:
    """Names of tiers, or the matchers that vLLM's own offloading has: `{"medium": …, "locality": …}`."""
    value = params.get(name)
    if value is None:
        return None
    if type(value) is not list or len(value) > _MAX_ENTRIES:
        raise _NotValid(name, value, f"must be a list of at most {_MAX_ENTRIES} tiers; {_valid(tiers)}")
    chosen: set[str] = set()
    for entry in value:
        if isinstance(entry, Mapping):
            chosen |= _matched(name, entry, tiers)
        elif type(entry) is not str or not (entry == HOST_NAME or entry in tiers):
            raise _NotValid(name, entry, f"is no tier; {_valid(tiers)}")
        else:
            chosen.add(entry)
    return frozenset(chosen & tiers.keys())


def _matched(name: str, entry: Mapping[Any, Any], tiers: Tiers) -> set[str]:
    unknown = [key for key in entry if key not in ("medium", "locality")]
    if unknown:
        raise _NotValid(name, entry, "a mapping in it may have medium and locality only")
    medium = _one_of(name, entry.get("medium"), _MEDIA)
    _one_of(name, entry.get("locality"), _LOCALITIES)
    return {tier for tier, of_tier in tiers.items() if medium is None or of_tier in (None, medium)}


def _one_of(name: str, value: object, valid: tuple[str, ...]) -> str | None:
    if value is None:
        return None
    if type(value) is not str or value.upper() not in valid:
        raise _NotValid(name, value, f"must be one of {', '.join(valid)}")
    return value.upper()


def _valid(tiers: Tiers) -> str:
    return f"valid: {', '.join([HOST_NAME, *tiers])}, or {{'medium': {' or '.join(_MEDIA)}}}"


def _shown(value: object) -> str:
    """A value that anybody may have sent, in a few words."""
    shorten: Callable[[object], str] = reprlib.Repr().repr
    try:
        return shorten(value)
    except Exception:  # noqa: BLE001 - e.g. a number of too many digits to be written down
        return f"a {type(value).__name__}"
