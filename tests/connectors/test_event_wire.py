"""vLLM's events as they come over the wire: both forms are read, tokens are not, and nonsense is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("msgspec")
pytest.importorskip("zmq")

import msgspec
from publishing import BLOCK_TOKENS, CLEARED, TOKEN, batch, removed, stored

from kvoffload.connectors.events.wire import decode_batch

PACK = msgspec.msgpack.encode


@pytest.mark.parametrize("as_array", [False, True])
def test_both_forms_of_an_event_say_the_same(as_array: bool) -> None:
    found = decode_batch(batch(5.0, stored([b"one", b"two"], b"zero", as_array)))
    assert found is not None
    (event,) = found.stored
    assert len(set(event.hashes)) == 2
    assert event.parent is not None
    assert (event.block_tokens, event.group, event.kind, event.medium) == (
        BLOCK_TOKENS,
        0,
        "full_attention",
        "GPU",
    )
    assert str(TOKEN) not in repr(found)


def test_an_array_of_an_early_version_has_no_group_and_no_medium() -> None:
    found = decode_batch(PACK([1.0, [["BlockStored", [1, 2], None, [TOKEN] * 32, 16, None]]]))
    assert found is not None
    (event,) = found.stored
    assert (event.group, event.kind, event.medium, event.parent) == (0, None, None, None)


def test_a_hash_is_the_same_as_a_parent_and_numbers_are_not_taken_for_texts() -> None:
    found = decode_batch(batch(1.0, stored([2**64 - 1, b"18446744073709551615"]), stored([b"x"], 2**64 - 1)))
    assert found is not None
    number, text = found.stored[0].hashes
    assert number != text
    assert found.stored[1].parent == number


def test_an_event_that_is_not_understood_costs_the_others_nothing() -> None:
    wrong = [
        {"type": "SomethingNew", "x": 1},
        stored([b"a"], block_size=0),
        stored([b"a"], block_size="large"),
        7,
        ["BlockStored"],
        [],
    ]
    events = [removed([b"gone"]), CLEARED, ["AllBlocksCleared"], ["BlockRemoved", [b"gone"], "GPU"]]
    found = decode_batch(batch(1.0, *wrong, *events, stored([b"good"], new_field={"nested": [1]})))
    assert found is not None
    assert (found.unreadable, found.clears, len(found.stored)) == (len(wrong), 2, 1)


@given(
    st.binary() | st.recursive(st.none() | st.integers(-5, 5) | st.text(), st.lists, max_leaves=9).map(PACK)
)
def test_nonsense_is_no_batch_and_raises_nothing(payload: bytes) -> None:
    found = decode_batch(payload)
    assert found is None or not found.stored


def test_a_time_that_is_no_number_makes_no_batch() -> None:
    assert decode_batch(batch(float("nan"), stored([b"a"]))) is None
    assert decode_batch(batch(float("inf"), stored([b"a"]))) is None


@pytest.mark.parametrize("depth", [10, 100_000])
def test_what_is_nested_without_end_is_nonsense(depth: int) -> None:
    nested = b"\x91" * depth + b"\xc0"
    unknown_field = b"\x82" + PACK("type") + PACK("BlockStored") + PACK("new") + nested
    for event in (nested, unknown_field):
        found = decode_batch(b"\x93" + PACK(1.0) + b"\x91" + event + PACK(0))
        assert found is None or found.unreadable == 1
