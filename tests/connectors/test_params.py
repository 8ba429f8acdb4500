"""What a request's author may write into `kv_transfer_params`, and what becomes of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload.connectors.vllm.params import (
    MAX_PIN_S,
    MAX_TOKENS,
    MAX_TTL_S,
    OFF,
    RequestLimits,
    parse_limits,
)
from kvoffload.manager.wishes import Priority, Stay, Wishes

TIERS = {"fs": "STORAGE", "spare": "STORAGE", "ram": "CPU", "odd": None}
NAMES = (
    "max_load_tokens",
    "max_offload_tokens",
    "kv_load_tiers",
    "kv_store_tiers",
    "skip",
    "priority",
    "pin",
    "pin_ttl_s",
    "ttl_s",
)


def wished(**params: Any) -> RequestLimits:
    limits, fault = parse_limits(params, TIERS)
    assert fault is None, fault
    return limits


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": True}, dict.fromkeys(NAMES)])
def test_who_wishes_nothing_gets_everything(params: Any) -> None:
    assert parse_limits(params, TIERS) == (RequestLimits(), None)


def test_every_wish_is_read() -> None:
    found = wished(
        max_load_tokens=5,
        max_offload_tokens=0,
        kv_load_tiers=["fs", "host"],
        kv_store_tiers=[],
        priority="high",
        pin=True,
        pin_ttl_s=600,
    )
    assert found == RequestLimits(5, 0, Wishes(Stay(Priority.HIGH, 600.0), frozenset({"fs"}), frozenset()))


def test_skip_switches_both_sides_off() -> None:
    assert wished(skip=True) == OFF
    assert wished(skip=True, priority="high", max_load_tokens=8) == OFF
    assert wished(skip=False) == RequestLimits()


def test_chunks_with_a_ttl_go_to_no_tier_that_keeps_none() -> None:
    wishes = wished(ttl_s=1.5).wishes
    assert wishes.stay.ttl_s == 1.5
    assert wishes.cascades_to == frozenset()


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        ([], []),
        (["host"], []),
        (["fs"], ["fs"]),
        (["ram", "ram", "odd"], ["ram", "odd"]),
        ([{"medium": "STORAGE"}], ["fs", "spare", "odd"]),
        ([{"medium": "cpu", "locality": "local"}], ["ram", "odd"]),
        ([{}], list(TIERS)),
        ([{"medium": "CPU"}, "fs"], ["ram", "odd", "fs"]),
    ],
    ids=str,
)
def test_tiers_are_named_or_matched_as_in_the_engines_own_offloading(raw: list, names: list[str]) -> None:
    assert wished(kv_load_tiers=raw).wishes == Wishes(load_tiers=frozenset(names))
    assert wished(kv_store_tiers=raw).wishes == Wishes(store_tiers=frozenset(names))


NOT_VALID = [
    ("max_load_tokens", -1),
    ("max_load_tokens", True),
    ("max_offload_tokens", 2**53 + 1),
    ("max_offload_tokens", 1.0),
    ("max_offload_tokens", math.nan),
    ("kv_load_tiers", "fs"),
    ("kv_load_tiers", ["disk"]),
    ("kv_load_tiers", [["fs"]]),
    ("kv_load_tiers", [{"medium": "TAPE"}]),
    ("kv_load_tiers", [{"medium": ["CPU"]}]),
    ("kv_load_tiers", [{"locality": "NEAR"}]),
    ("kv_load_tiers", [{"name": "fs"}]),
    ("kv_store_tiers", ["fs"] * 65),
    ("kv_store_tiers", {"fs": 1}),
    ("skip", 1),
    ("skip", "no"),
    ("priority", 1),
    ("priority", "HIGH"),
    ("priority", ["high"]),
    ("pin", "yes"),
    ("pin", True),
    ("pin_ttl_s", 60),
    ("pin_ttl_s", 0),
    ("pin_ttl_s", math.inf),
    ("pin_ttl_s", 10**400),
    ("ttl_s", True),
    ("ttl_s", -0.0),
    ("ttl_s", "1"),
]


@pytest.mark.parametrize(("name", "value"), NOT_VALID, ids=[f"{n}-{i}" for i, (n, _) in enumerate(NOT_VALID)])
def test_what_is_not_valid_costs_the_cache_and_is_named(name: str, value: Any) -> None:
    limits, fault = parse_limits({name: value}, TIERS)
    assert limits == OFF
    assert fault is not None
    assert fault.parameter == name
    assert fault.text.startswith(f"kv_transfer_params: {name}=")
    assert "\n" not in fault.text
    assert len(fault.text) < 300


@pytest.mark.parametrize(
    ("params", "parameter"),
    [
        ({"pin": True, "pin_ttl_s": 60, "ttl_s": 59}, "pin_ttl_s"),
        ({"ttl_s": 60, "kv_store_tiers": ["fs"]}, "kv_store_tiers"),
        ({"skip": True, "ttl_s": -1}, "ttl_s"),
    ],
)
def test_wishes_that_contradict_each_other_are_not_valid(params: dict, parameter: str) -> None:
    limits, fault = parse_limits(params, TIERS)
    assert limits == OFF
    assert fault is not None
    assert fault.parameter == parameter


def test_an_unknown_tier_is_answered_with_the_known_ones() -> None:
    _, fault = parse_limits({"kv_load_tiers": ["disk"]}, TIERS)
    assert fault is not None
    assert "'disk'" in fault.text
    assert "host, fs, spare, ram, odd" in fault.text


class Rude:
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([53, 63, 20_000]).flatmap(
        lambda bits: st.sampled_from([1, -1]).map(lambda sign: sign * 2**bits)
    ),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=5),
    st.sampled_from(["host", "fs", "ram", "low", "high", "CPU", "storage"]),
    st.builds(Rude),
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
seconds = st.one_of(values, st.floats(0.001, 10**7))
wishes = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(NAMES, values),
        "pin": st.booleans(),
        "pin_ttl_s": seconds,
        "ttl_s": seconds,
        "kv_load_tiers": st.lists(st.sampled_from(["host", "fs", "x"]) | values, max_size=3) | values,
    },
)


@given(st.one_of(values, wishes))
def test_nothing_raises_and_what_is_accepted_is_within_bounds(params: Any) -> None:
    limits, fault = parse_limits(params, TIERS)
    assert (fault is not None) <= (limits == OFF)
    if fault is not None:
        assert len(fault.text) < 600
    for tokens in (limits.max_load_tokens, limits.max_offload_tokens):
        assert tokens is None or (type(tokens) is int and 0 <= tokens <= MAX_TOKENS)
    stay = limits.wishes.stay
    assert isinstance(stay.priority, Priority)
    assert stay.keep_s is None or 0 < stay.keep_s <= MAX_PIN_S
    assert stay.ttl_s is None or (0 < stay.ttl_s <= MAX_TTL_S and limits.wishes.cascades_to == frozenset())
    assert stay.keep_s is None or stay.ttl_s is None or stay.keep_s <= stay.ttl_s
    for tiers in (limits.wishes.load_tiers, limits.wishes.store_tiers):
        assert tiers is None or tiers <= TIERS.keys()
