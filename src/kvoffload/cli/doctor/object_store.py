"""Checks of an object store: everything an obj tier asks of it, done once with a small object that is removed afterwards."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from kvoffload.cli.doctor.check import Check, fail, ok, warn
from kvoffload.errors import ConfigError
from kvoffload.tiers.obj.address import parse_address
from kvoffload.tiers.obj.client import ObjectClient, open_client
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.trouble import ObjectError, Trouble

_SCRATCH = "kvoffload-doctor"
_BYTES = 1024**2
_WARN_SKEW_S = 30.0
_FAIL_SKEW_S = 600.0


def check_object_store(
    config: ObjTierConfig, now_s: Callable[[], float] = time.time, client: ObjectClient | None = None
) -> Iterator[Check]:
    """Everything about an object store.

    Args:
        config: Where it is.
        now_s: The wall clock.
        client: The store; None: made from the options.
    """
    yield ok("object store", parse_address(config.url).text)
    try:
        client = client or open_client(config)
    except ConfigError as error:
        yield fail(
            "client", str(error), "mend the option, the environment variable or the file that is named"
        )
        return
    name = f"{_SCRATCH}/{secrets.token_hex(8)}"
    try:
        yield from _check(client, name, now_s)
    finally:
        with suppress(ObjectError):
            client.delete([name])


def _check(client: ObjectClient, name: str, now_s: Callable[[], float]) -> Iterator[Check]:
    data = memoryview(secrets.token_bytes(_BYTES))
    step = "put"
    try:
        before_s = now_s()
        client.put(name, [data[:4096], data[4096:]], create=True)
        after_s = now_s()
        yield ok("put", "works")
        step = "conditional put"
        yield _check_condition(client, name, data)
        step = "get"
        yield _check_get(client, name, data)
        step = "list"
        yield _check_list(client, name)
        step = "clock"
        yield _check_clock(client.info(name).modified_s, before_s, after_s)
        step = "delete"
        client.delete([name])
        yield _check_gone(client, name)
    except ObjectError as error:
        yield fail(step, str(error), error.remedy)
        return
    yield ok("speed", _speed(client, data, name))
    yield ok("lifecycle", "give the bucket a rule that aborts incomplete uploads in parts after a day")


def _check_condition(client: ObjectClient, name: str, data: memoryview) -> Check:
    try:
        client.put(name, [data[:1]], create=True)
    except ObjectError as error:
        if error.trouble is Trouble.EXISTS:
            return ok("conditional put", "the first writer wins")
        raise
    return fail(
        "conditional put",
        "a second writer replaces the first one's object without being told",
        "give a store that honours If-None-Match: without it a short object may replace a whole one",
    )


def _check_get(client: ObjectClient, name: str, data: memoryview) -> Check:
    whole, part = client.get_whole(name), client.get(name, 1000, 5000)
    if bytes(whole) != bytes(data) or bytes(part) != bytes(data[1000:6000]):
        return fail("get", "other bytes come back than were put", "do not use this store")
    return ok("get", "works, by range too")


def _check_list(client: ObjectClient, name: str) -> Check:
    found = [info.name for info in client.list(_SCRATCH)]
    later = [info.name for info in client.list(_SCRATCH, name)]
    if name not in found or name in later:
        return fail(
            "list", "a new object is not listed, or listings do not begin where asked", "use another store"
        )
    return ok("list", "shows what was put at once")


def _check_gone(client: ObjectClient, name: str) -> Check:
    try:
        client.info(name)
    except ObjectError as error:
        if error.trouble is Trouble.MISSING:
            return ok("delete", "works")
        raise
    return fail("delete", "a deleted object is still there", "check whether these credentials may delete")


def _check_clock(modified_s: float, before_s: float, after_s: float) -> Check:
    # The store tells whole seconds.
    skew_s = min(0.0, modified_s + 1 - before_s) or max(0.0, modified_s - after_s)
    text = f"the store's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's"
    if abs(skew_s) > _FAIL_SKEW_S:
        return fail("clock", text, "set both clocks (NTP): signatures will be refused")
    if abs(skew_s) > _WARN_SKEW_S:
        return warn("clock", text, "set both clocks (NTP): others see late what is stored here")
    return ok("clock", "that of new objects is this machine's")


def _speed(client: ObjectClient, data: memoryview, name: str) -> str:
    began = time.perf_counter()
    client.put(name, [data], create=False)
    put_s = time.perf_counter() - began
    began = time.perf_counter()
    client.get_whole(name)
    get_s = time.perf_counter() - began
    return f"1 MiB put in {put_s * 1000:.0f} ms, got in {get_s * 1000:.0f} ms"
