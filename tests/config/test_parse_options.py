"""Options: what is valid is parsed, everything else is one line that says what to do."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.config.options import OffloadingOptions
from kvoffload.config.parse import parse_dataclass, parse_options
from kvoffload.config.units import format_bytes, parse_bytes
from kvoffload.errors import ConfigError

NAMES = {field.name for field in dataclasses.fields(OffloadingOptions)}


def options_of(**raw: Any) -> OffloadingOptions:
    return parse_options({"cpu_bytes_to_use": 1024, **raw})[0]


def refusal_of(**raw: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        options_of(**raw)
    message = str(caught.value)
    assert "\n" not in message
    assert "kv_connector_extra_config" in message
    return message


def test_defaults_stand_in_the_dataclass_and_only_the_size_must_be_given() -> None:
    assert options_of() == OffloadingOptions(cpu_bytes_to_use=1024)
    message = refusal_of_nothing()
    assert "cpu_bytes_to_use" in message
    assert "8GiB" in message


def refusal_of_nothing() -> str:
    with pytest.raises(ConfigError) as caught:
        parse_options({})
    return str(caught.value)


def test_the_names_that_users_of_the_engine_know_are_there() -> None:
    known = {
        "cpu_bytes_to_use",
        "block_size",
        "blocks_per_chunk",
        "spec_name",
        "spec_module_path",
        "secondary_tiers",
        "eviction_policy",
        "store_threshold",
        "offload_prompt_only",
        "canonical_layout",
        "self_describing_kv_events",
    }
    assert known <= NAMES


def test_an_unknown_option_is_refused_with_the_valid_ones_and_the_nearest() -> None:
    message = refusal_of(evicton_policy="lru")
    assert "'evicton_policy'" in message
    assert "did you mean 'eviction_policy'?" in message
    assert all(name in message for name in NAMES)


def test_all_unknown_options_are_named_at_once() -> None:
    message = refusal_of(qqq=1, zzz=2)
    assert "'qqq'" in message
    assert "'zzz'" in message
    assert "did you mean" not in message


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("eviction_policy", 3, "str"),
        ("eviction_policy", None, "str"),
        ("block_size", "16", "int"),
        ("block_size", 16.0, "int"),
        ("block_size", True, "int"),
        ("blocks_per_chunk", [1], "int"),
        ("offload_prompt_only", 1, "bool"),
        ("offload_prompt_only", "false", "bool"),
        ("store_threshold", 2.5, "int"),
        ("store_threshold", True, "int"),
        ("pending_timeout_s", "5", "float"),
        ("pending_timeout_s", True, "float"),
        ("hash_seed", 0, "str"),
        ("spec_module_path", 1, "str"),
        ("cpu_bytes_to_use", None, "8GiB"),
        ("cpu_bytes_to_use", True, "8GiB"),
        ("cpu_bytes_to_use", [1], "8GiB"),
    ],
)
def test_a_value_of_another_type_is_refused_and_the_right_type_is_named(
    name: str, value: object, wanted: str
) -> None:
    message = refusal_of(**{name: value})
    assert name in message
    assert repr(value) in message
    assert wanted in message


def test_whole_numbers_are_fine_where_seconds_are_wanted() -> None:
    assert options_of(pending_timeout_s=3).pending_timeout_s == 3.0


def test_none_is_fine_where_an_option_may_be_absent() -> None:
    assert options_of(block_size=None, hash_seed=None, spec_module_path=None) == options_of()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_size", 0),
        ("block_size", -16),
        ("blocks_per_chunk", 0),
        ("max_tracker_size", 0),
        ("store_threshold", -1),
        ("store_min_prompt_tokens", -1),
        ("store_max_tokens", 0),
        ("join_timeout_s", 0),
        ("join_timeout_s", -1),
        ("pending_timeout_s", 0.0),
        ("transfer_timeout_s", math.nan),
        ("transfer_timeout_s", math.inf),
        ("pending_timeout_s", 1e12),
        ("cpu_bytes_to_use", -1),
        ("load_policy", "sometimes"),
        ("canonical_order", "HDN"),
        ("canonical_order", "NHD"),
        ("max_pinned_share", 0.95),
        ("max_pinned_share", -0.1),
        ("max_high_priority_share", math.nan),
    ],
)
def test_a_value_out_of_range_is_refused(name: str, value: object) -> None:
    message = refusal_of(**{name: value})
    assert name in message
    assert str(value) in message


def test_an_order_of_the_canonical_layout_needs_that_layout() -> None:
    assert options_of(canonical_order="NHD", canonical_layout=True).canonical_order == "NHD"
    assert "canonical_layout" in refusal_of(canonical_order="NHD")


def test_the_two_sizes_of_a_chunk_exclude_each_other() -> None:
    message = refusal_of(block_size=64, blocks_per_chunk=4)
    assert "block_size=64" in message
    assert "blocks_per_chunk=4" in message
    assert "one of them" in message


def test_the_foreign_mapping_is_not_mutated() -> None:
    raw = {"cpu_bytes_to_use": "1GiB", "spec_options": None}
    parse_options(raw)
    assert raw == {"cpu_bytes_to_use": "1GiB", "spec_options": None}


@dataclasses.dataclass(frozen=True)
class OwnOptions:
    depth: int
    label: str = "x"


def test_a_spec_parses_its_own_options_and_theirs_are_checked_as_well() -> None:
    raw = {"cpu_bytes_to_use": 1, "spec_options": {"depth": 3}}
    assert parse_options(raw, OwnOptions)[1] == OwnOptions(3)
    for own, told in (
        ({"depth": "3"}, "int"),
        ({"depht": 3}, "did you mean 'depth'?"),
        ({}, "depth must be given"),
        ("depth", "not a mapping"),
        (None, "depth must be given"),
    ):
        with pytest.raises(ConfigError, match="spec_options") as caught:
            parse_options({"cpu_bytes_to_use": 1, "spec_options": own}, OwnOptions)
        assert told in str(caught.value)
        assert "GiB" not in str(caught.value), "an example of a size where no size is missing"


def test_own_options_for_a_spec_that_has_none_are_refused() -> None:
    assert "CPUOffloadingSpec has no options of its own" in refusal_of(spec_options={"depth": 3})
    assert parse_options({"cpu_bytes_to_use": 1, "spec_options": None})[1] is None


def test_lists_become_tuples_so_that_nothing_can_change_later() -> None:
    @dataclasses.dataclass(frozen=True)
    class Many:
        names: tuple[str, ...] = ()

    assert parse_dataclass(Many, {"names": ["a", "b"]}, "here") == Many(("a", "b"))


# -- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (4096, 4096),
        (8e9, 8_000_000_000),
        ("4096", 4096),
        ("1B", 1),
        ("2kB", 2000),
        ("2KB", 2000),
        ("2 KiB", 2048),
        ("500 MB", 500_000_000),
        (" 8GiB ", 8 * 2**30),
        ("8gib", 8 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("1TiB", 2**40),
        ("0.1kB", 100),
        ("1.1TB", 1_100_000_000_000),
        ("2.0", 2),
    ],
)
def test_sizes_are_read_as_people_write_them(text: object, size: int) -> None:
    assert parse_bytes(text, "here") == size
    assert type(parse_bytes(text, "here")) is int


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "8 GiBs",
        "-1GiB",
        "-1",
        "8Gi",
        "1e9",
        "0x10",
        "1,5GiB",
        "1_000",
        "8GiB/s",
        math.nan,
        math.inf,
        -1,
        "9" * 400,
    ],
)
def test_what_is_no_size_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ConfigError, match=r"here: .* is not a size; .*8GiB"):
        parse_bytes(text, "here")


@pytest.mark.parametrize("text", [0.5, "0.5", "0.5B", "1.25b"])
def test_a_fraction_of_a_byte_is_taken_for_a_forgotten_unit(text: object) -> None:
    number = str(text).lower().removesuffix("b")
    with pytest.raises(ConfigError, match=f"did you mean '{number}GiB'"):
        parse_bytes(text, "here")


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=12), st.integers(), st.floats(), st.none(), st.booleans()))
def test_no_value_makes_anything_but_a_size_or_a_config_error(value: object) -> None:
    try:
        size = parse_bytes(value, "here")
    except ConfigError:
        return
    assert type(size) is int
    assert size >= 0


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**50))
def test_sizes_for_people_carry_the_exact_number(size: int) -> None:
    text = format_bytes(size)
    exact = text.partition("(")[2].removesuffix(" bytes)") or text.removesuffix(" bytes")
    assert int(exact) == size


@pytest.mark.parametrize(
    ("tiers", "told"),
    [
        ([{"root_dir": "/a"}, {"root_dir": "/b"}], "the same name 'fs'; give each tier a name of its own"),
        ([{"root_dir": "/a", "name": "host"}], "stands for host memory where requests name tiers"),
        ([{"root_dir": "/a"}, {"root_dir": "/a/", "name": "b"}], "the same root_dir '/a'"),
        ([{"root_dir": "/a", "deadline_s": 0}], "deadline_s=0.0 must be above 0 seconds"),
        ([{"root_dir": "/a", "deadline_s": float("nan")}], "deadline_s=nan must be above 0 seconds"),
        ([{"root_dir": "/a", "max_store_bytes_in_flight": 0}], "must be at least 1"),
        ([{"root_dir": "/a", "failures_to_open": 0}], "must be at least 1"),
        ([{"root_dir": "/a", "max_retries": -1}], "max_retries=-1 must be 0 to 100"),
    ],
)
def test_tiers_that_contradict_each_other_or_themselves_are_refused(
    tiers: list[dict[str, Any]], told: str
) -> None:
    from kvoffload.tiers.factory import parse_tiers

    with pytest.raises(ConfigError, match=told.replace(".", r"\.")) as error:
        parse_tiers([{"type": "fs", **tier} for tier in tiers])
    assert str(error.value).count("secondary_tiers[") in (1, 2)
