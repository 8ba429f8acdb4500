"""The start: is this the namespace of this engine? A store that cannot be asked now is a warning, a wrong one an error."""

from __future__ import annotations

import logging

from kvoffload.errors import ConfigError
from kvoffload.keys.fingerprint import Namespace
from kvoffload.tiers.namespace_text import check_namespace, namespace_text, parse_namespace
from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.trouble import REFUSED, ObjectError, Trouble

logger = logging.getLogger(__name__)


def check_ownership(around: Around, address: str) -> None:
    """Read `namespace.json`, or write it.

    Raises:
        ConfigError: it is another configuration's, or the store refuses this engine.
    """
    name = f"obj tier: {address}"
    try:
        found = _read_or_write(around)
    except ObjectError as error:
        if error.trouble in REFUSED:
            raise ConfigError(f"{name} cannot be used: {error}; {error.remedy}") from None
        logger.warning(
            "%s cannot be reached now: %s; chunks are missed and stores skipped until it can", name, error
        )
        return
    check_namespace(found, around.place.namespace, f"{address}/{around.place.base}")


def _read_or_write(around: Around) -> Namespace | None:
    caller, place = around.caller, around.place
    try:
        return parse_namespace(bytes(caller.get_whole(place.namespace_file)))
    except ObjectError as error:
        if error.trouble is not Trouble.MISSING:
            raise
    write_namespace(around)
    return None


def write_namespace(around: Around) -> None:
    """Write `namespace.json` if it is not there and this engine may. Raises ObjectError."""
    if not around.config.read_only:
        text = namespace_text(around.place.namespace)
        around.caller.put(around.place.namespace_file, [memoryview(text)], create=True)
