"""Per-request wishes (`kv_transfer_params`) become a frozen dataclass; what is not valid switches the cache off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request, None where it has none."""

    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None


_OFF = RequestLimits(max_load_tokens=0, max_offload_tokens=0)


def parse_limits(params: object) -> tuple[RequestLimits, str | None]:
    """Read the limits; keys of other connectors are not ours to judge.

    Returns:
        The limits and None, or limits that switch the cache off for this request and what is wrong with it.
    """
    if params is None:
        return RequestLimits(), None
    if not isinstance(params, Mapping):
        return _OFF, f"kv_transfer_params is {type(params).__name__}, it must be a mapping"
    for name in ("max_load_tokens", "max_offload_tokens"):
        value = params.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            return _OFF, f"kv_transfer_params: {name}={value!r} must be a whole number of tokens, 0 or more"
    return RequestLimits(params.get("max_load_tokens"), params.get("max_offload_tokens")), None
