"""Wrappers together, with faults on: no wrong byte, no lost report; and the ceilings that wrappers have."""

from __future__ import annotations

import ast
import io
import random
import tokenize
from pathlib import Path

import pytest
from tier_stacks import (
    BIG_BYTES,
    WRAPPERS,
    checksummed,
    delayed,
    medium_of,
    memory,
    metered,
    retrying,
    stack,
    throttled,
)

import kvoffload.tiers.wrappers
from kvoffload.clock import ManualClock
from kvoffload.errors import ConfigError
from kvoffload.keys.fingerprint import Namespace
from kvoffload.testing.tier_driver import TierDriver, make_key
from kvoffload.testing.tier_model import TierLife
from kvoffload.tiers.base import Tier, TierContext, Verb
from kvoffload.tiers.wrappers.base import TierWrapper
from kvoffload.tiers.wrappers.faults import POSSIBLE, Fault, FaultConfig
from kvoffload.tiers.wrappers.faulty import FaultyTier

PAYLOAD_BYTES = (4096, 12288)
RATES = {
    verb: dict.fromkeys(sorted(faults, key=lambda f: f.value), 0.04) for verb, faults in POSSIBLE.items()
}
FOLDER = Path(kvoffload.tiers.wrappers.__file__).parent


def live(seed: int, tier: Tier, faulty: FaultyTier) -> None:
    driver = TierDriver(tier, PAYLOAD_BYTES, lambda t: t.drain(0.5), patience_s=10.0)
    keys = [make_key(number, number % 2) for number in range(12)]
    try:
        TierLife(driver, random.Random(seed), keys, is_reliable=False).run(120)
    except AssertionError as error:
        raise AssertionError(f"life of seed {seed}: {error}\n{faulty.plan.replay()}") from error
    finally:
        tier.shutdown()


@pytest.mark.parametrize("seed", range(12))
def test_with_every_kind_of_fault_no_wrong_byte_gets_out_and_no_report_is_lost(seed: int) -> None:
    clock = ManualClock()
    inner = memory(clock, latency_s=0.01)
    faulty = FaultyTier(inner, FaultConfig(seed=seed, rates=RATES), inner.medium)
    live(seed, stack(faulty, clock, (metered, throttled, retrying, checksummed, delayed)), faulty)
    assert {planned.fault for planned in faulty.plan.history}


def test_without_checksums_the_same_faults_are_noticed_by_the_test() -> None:
    def lives() -> None:
        for seed in range(20):
            clock = ManualClock()
            inner = memory(clock, latency_s=0.01)
            rates = {Verb.LOAD: {Fault.FLIP_LOADED: 0.05}}
            faulty = FaultyTier(inner, FaultConfig(seed=seed, rates=rates), inner.medium)
            live(seed, retrying(faulty, clock), faulty)

    with pytest.raises(AssertionError, match=r"wrong bytes(.|\n)*FaultConfig\(schedule="):
        lives()


def test_retries_above_faults_make_an_unreliable_tier_a_reliable_one() -> None:
    for seed in range(6):
        clock = ManualClock()
        rates = {verb: {Fault.FAIL: 0.1} for verb in Verb}
        faulty = FaultyTier(memory(clock), FaultConfig(seed=seed, rates=rates))
        tier: Tier = faulty
        # Three times three tries: what fails then fails once in a billion.
        for _ in range(2):
            tier = retrying(tier, clock)
        driver = TierDriver(tier, PAYLOAD_BYTES, lambda t: t.drain(1.0), patience_s=10.0)
        TierLife(driver, random.Random(seed), [make_key(n) for n in range(8)]).run()
        assert faulty.plan.history


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_hands_everything_through_and_says_that_it_is_there(name: str) -> None:
    clock = ManualClock()
    inner = memory(clock, max_bytes=BIG_BYTES)
    tier = WRAPPERS[name](inner, clock)
    assert isinstance(tier, TierWrapper)
    assert tier.name == inner.name
    assert tier.describe() == f"{inner.describe()}, {tier.adds}"
    driver = TierDriver(tier, PAYLOAD_BYTES, lambda t: t.drain(1.0), patience_s=10.0)
    keys = [make_key(number) for number in range(3)]
    driver.store(keys)
    assert tier.stats().capacity_bytes == BIG_BYTES
    assert tier.stats().stored_chunks == 3
    assert tier.stats().counters.keys() >= inner.stats().counters.keys()
    assert {chunk.key for chunk in tier.scan()} == set(keys)
    tier.touch([keys[0]])
    assert [key for key, _, _ in medium_of(tier).items()][-1] == keys[0]
    assert tier.clear()
    assert list(tier.scan()) == []
    tier.shutdown()
    assert inner._closed


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_no_tier_of_its_own(name: str) -> None:
    clock = ManualClock()
    kind = type(WRAPPERS[name](memory(clock), clock))
    with pytest.raises(ConfigError, match=kind.__name__):
        kind.open(None, TierContext(Namespace("model", "{}"), (4096,)))


def test_counters_of_two_equal_wrappers_add_up() -> None:
    clock = ManualClock()
    tier = metered(metered(memory(clock), clock), clock)
    driver = TierDriver(tier, PAYLOAD_BYTES, lambda t: t.drain(1.0), patience_s=10.0)
    driver.store([make_key(1)])
    assert tier.stats().counters["store_jobs"] == 2


def code_lines(path: Path) -> int:
    """Lines with code: no blank ones, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_wrapper_has_80_lines_of_code_at_most(path: Path) -> None:
    assert code_lines(path) <= 80
