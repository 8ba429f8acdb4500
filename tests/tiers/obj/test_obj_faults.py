"""Whatever a store or the way to it does wrong: a miss or a skipped store, counted, within the deadlines; then it recovers.

A proxy that misbehaves stands before a real S3 server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import Fault, FaultyProxy
from obj_support import drive, open_tier
from s3_server import BUCKET, S3Server

from kvoffload.errors import ConfigError
from kvoffload.testing.tier_driver import TierDriver, make_keys
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.types import LookupResult

pytestmark = pytest.mark.services

DONE, MISSING, FAILED, REJECTED, CORRUPT = (
    Outcome.DONE,
    Outcome.MISSING,
    Outcome.FAILED,
    Outcome.REJECTED,
    Outcome.CORRUPT,
)
QUICK = {
    "request_timeout_s": 0.3,
    "call_deadline_s": 0.8,
    "call_retries": 2,
    "hedge_after_s": 0.0,
    "poll_interval_s": 30.0,
}
DATA = ".pack"
JOURNAL = "/journal/"
Make = Callable[..., TierDriver]
_places = itertools.count()


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3.port) as proxy:
        yield proxy


@pytest.fixture
def make(proxy: FaultyProxy, s3_options: dict[str, Any]) -> Iterator[Make]:
    url = f"s3://{BUCKET}/faults/{next(_places)}"
    made: list[TierDriver] = []

    def make(**options: Any) -> TierDriver:
        tier = open_tier(url, **{**s3_options, "endpoint": proxy.endpoint, **QUICK, **options})
        made.append(drive(tier))
        return made[-1]

    yield make
    proxy.rule = lambda _method, _path: None
    for driver in made:
        driver.tier.shutdown()


LOADS = {
    Fault.THROTTLE: (FAILED, "get_throttled"),
    Fault.ERROR: (FAILED, "get_server_error"),
    Fault.DENY: (FAILED, "get_denied"),
    Fault.EXPIRED: (FAILED, "get_expired_credentials"),
    Fault.SKEWED: (FAILED, "get_clock_skew"),
    Fault.CUT_BEFORE: (FAILED, "get_unreachable"),
    Fault.TRUNCATE: (FAILED, "get_unreachable"),
    Fault.SHORT: (CORRUPT, "corrupt_short_header"),
    Fault.FLIP: (CORRUPT, "corrupt_payload_checksum"),
    Fault.WRONG_ETAG: (DONE, "requests_get"),
    Fault.DRIP: (FAILED, "get_timeout"),
    Fault.HANG: (FAILED, "get_timeout"),
    Fault.LOSE_ANSWER: (FAILED, "get_unreachable"),
}


@pytest.mark.parametrize("fault", LOADS, ids=lambda fault: fault.name)
def test_a_faulty_read_is_a_miss_that_is_counted_and_passes(
    fault: Fault, make: Make, proxy: FaultyProxy
) -> None:
    driver = make()
    keys = make_keys(4)
    assert driver.store(keys) == [DONE] * 4
    outcome, counter = LOADS[fault]
    proxy.always(fault, "GET", DATA)
    # The last chunk: a byte of it is wrong, and it is what a shorter answer lacks.
    assert driver.load(keys)[-1] is outcome
    assert driver.tier.stats().counters.get(counter, 0) > 0, driver.tier.stats().counters
    proxy.always(None)
    again = driver.load(keys)
    if outcome is CORRUPT:
        assert set(again) <= {DONE, MISSING}
        assert driver.store(keys) == [DONE] * 4
        again = driver.load(keys)
    assert again == [DONE] * 4


@pytest.mark.parametrize(
    "fault",
    [fault for fault in Fault if fault not in (Fault.DENY, Fault.EXPIRED, Fault.SKEWED)],
    ids=lambda fault: fault.name,
)
def test_a_read_that_fails_once_is_repeated(fault: Fault, make: Make, proxy: FaultyProxy) -> None:
    driver = make(call_deadline_s=5.0)
    keys = make_keys(4)
    driver.store(keys)
    proxy.times(1, fault, "GET", DATA)
    assert driver.load(keys) == [DONE] * 4
    assert "corrupt" not in driver.tier.stats().counters


STORES = {
    Fault.THROTTLE: (REJECTED, "put_throttled"),
    Fault.ERROR: (FAILED, "put_server_error"),
    Fault.DENY: (REJECTED, "put_denied"),
    Fault.EXPIRED: (REJECTED, "put_expired_credentials"),
    Fault.SKEWED: (REJECTED, "put_clock_skew"),
    Fault.CUT_BEFORE: (FAILED, "put_unreachable"),
    Fault.HANG: (FAILED, "put_timeout"),
}


@pytest.mark.parametrize("where", [DATA, JOURNAL])
@pytest.mark.parametrize("fault", STORES, ids=lambda fault: fault.name)
def test_a_faulty_write_is_no_store_that_is_counted_and_passes(
    fault: Fault, where: str, make: Make, proxy: FaultyProxy
) -> None:
    driver = make()
    keys = make_keys(4)
    outcome, counter = STORES[fault]
    proxy.always(fault, "PUT", where)
    assert driver.store(keys) == [outcome] * 4
    assert driver.tier.stats().counters.get(counter, 0) > 0, driver.tier.stats().counters
    assert driver.lookup(keys) == [LookupResult.MISS] * 4
    proxy.always(None)
    driver.tier._storing._not_writable_until_s = float("-inf")
    assert driver.store(keys) == [DONE] * 4
    assert driver.load(keys) == [DONE] * 4


def test_a_store_that_may_not_write_is_left_alone_and_still_read(make: Make, proxy: FaultyProxy) -> None:
    driver = make()
    old, new = make_keys(4), make_keys(4, first=10)
    driver.store(old)
    proxy.always(Fault.DENY, "PUT")
    assert driver.store(new) == [REJECTED] * 4
    before = proxy.count("PUT")
    assert driver.store(new) == [REJECTED] * 4
    assert proxy.count("PUT") == before, "it asks again at once"
    assert driver.tier.stats().counters["rejected_not_writable"] == 4
    assert driver.load(old) == [DONE] * 4


def test_a_write_whose_answer_is_lost_is_done(make: Make, proxy: FaultyProxy) -> None:
    driver = make()
    keys = make_keys(4)
    proxy.times(1, Fault.LOSE_ANSWER, "PUT", DATA)
    assert driver.store(keys) == [DONE] * 4
    assert driver.load(keys) == [DONE] * 4


def test_a_late_read_is_asked_for_twice(make: Make, proxy: FaultyProxy) -> None:
    driver = make(hedge_after_s=0.05, request_timeout_s=5.0, call_deadline_s=6.0)
    keys = make_keys(4)
    driver.store(keys)
    proxy.times(1, Fault.HANG, "GET", DATA)
    assert driver.load(keys) == [DONE] * 4
    counters = driver.tier.stats().counters
    assert (counters["hedged_reads"], counters["hedges_won"]) == (1, 1)


def test_a_job_on_a_store_that_hangs_ends_after_one_request_for_each_thread(
    make: Make, proxy: FaultyProxy
) -> None:
    driver = make(pack_below_bytes=0, threads=4)
    old, new = make_keys(12), make_keys(12, first=40)
    driver.store(old)
    proxy.always(Fault.HANG)
    before = len(proxy.seen)
    assert driver.load(old) == [FAILED] * 12
    # Two tries for each thread have time, and one look at the journal.
    assert len(proxy.seen) - before <= 2 * 4 + 1, "every chunk is waited for"
    assert driver.tier.stats().counters["reads_not_tried"] >= 12 - 4
    assert driver.store(new) == [FAILED] * 12
    assert driver.tier.stats().counters["writes_not_tried"] >= 12 - 4


def test_a_throttling_store_is_asked_less(make: Make, proxy: FaultyProxy) -> None:
    driver = make(call_retries=50, call_deadline_s=1.0)
    keys = [make_keys(1, first=number) for number in range(8)]
    for key in keys:
        driver.store(key)
    proxy.always(Fault.THROTTLE, "GET", ".kv")
    before = proxy.count("GET")
    for key in keys:
        driver.start(Verb.LOAD, key)
    driver.finish()
    # Eight loads with pauses of their own would ask four times each and more; together they wait for one pause.
    assert proxy.count("GET") - before <= 8 * 4


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.SHORT, Fault.FLIP, Fault.HANG, Fault.TRUNCATE])
def test_a_journal_that_cannot_be_read_is_a_miss_until_it_can(
    fault: Fault, make: Make, proxy: FaultyProxy
) -> None:
    one, two = make(), make()
    keys = make_keys(4)
    proxy.always(fault, "GET", JOURNAL)
    one.store(keys)
    assert two.load(keys) == [MISSING] * 4
    proxy.always(None)
    two.until(lambda: two.load(keys) == [DONE] * 4, "never reads the journal")


def test_an_engine_starts_while_the_store_is_away(make: Make, proxy: FaultyProxy) -> None:
    proxy.always(Fault.CUT_BEFORE)
    driver = make(warm_up_s=0.1, poll_interval_s=0.05)
    keys = make_keys(4)
    assert driver.lookup(keys) == [LookupResult.MISS] * 4
    assert driver.load(keys) == [MISSING] * 4
    assert driver.store(keys) == [FAILED] * 4
    assert not driver.tier.clear(), "says that all is gone, and asked nobody"
    proxy.always(None)
    driver.until(lambda: driver.store(keys) == [DONE] * 4, "does not recover")
    assert driver.load(keys) == [DONE] * 4


@pytest.mark.parametrize(
    ("fault", "words"),
    [(Fault.DENY, "credentials"), (Fault.EXPIRED, "renew"), (Fault.SKEWED, "clock")],
    ids=["denied", "expired", "skewed"],
)
def test_a_store_that_refuses_at_the_start_is_an_error_that_says_why(
    fault: Fault, words: str, make: Make, proxy: FaultyProxy
) -> None:
    proxy.always(fault)
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_server_that_is_killed_and_comes_back_is_used_again(
    s3: S3Server, s3_options: dict[str, Any], tmp_path: Path
) -> None:
    del tmp_path
    options = {**s3_options, **QUICK, "poll_interval_s": 0.1}
    driver = drive(open_tier(f"s3://{BUCKET}/stopped", **options))
    old, new = make_keys(6), make_keys(6, first=50)
    driver.store(old)
    s3.kill()
    try:
        assert driver.load(old) == [FAILED] * 6
        assert driver.store(new) == [FAILED] * 6
        assert driver.lookup([*old, *new]) == [LookupResult.HIT] * 6 + [LookupResult.MISS] * 6
    finally:
        s3.start()
    driver.until(lambda: driver.store(new) == [DONE] * 6, "does not recover")
    assert driver.load([*old, *new]) == [DONE] * 12
    driver.tier.shutdown()
