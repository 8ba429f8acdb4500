"""The pure planners against token by token definitions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.keys.offload_key import make_offload_key
from kvoffload.manager.load_plan import chunk_range, plan_load
from kvoffload.manager.request import GroupGeometry, GroupState, RequestInfo, RequestState
from kvoffload.manager.store_plan import plan_store, storable_chunks, storable_tokens
from kvoffload.messages import NO_SLOT
from kvoffload.policies.admission import Admission, PromptOnly
from kvoffload.transfer.ledger import ChunkMove
from kvoffload.types import BlockId, RequestId, SlotId

NULL = 0


@st.composite
def geometries(draw: st.DrawFn) -> GroupGeometry:
    tokens_per_hash = draw(st.integers(1, 3))
    return GroupGeometry(
        group_id=draw(st.integers(0, 9)),
        tokens_per_block=tokens_per_hash * draw(st.integers(1, 3)),
        blocks_per_chunk=draw(st.integers(1, 3)),
        tokens_per_hash=tokens_per_hash,
    )


def state_of(geometry: GroupGeometry, num_chunks: int, blocks: list[int] | None = None) -> GroupState:
    state = GroupState(geometry)
    state.extend_keys([b"%08d" % i for i in range(num_chunks * geometry.hashes_per_chunk)], b"")
    state.block_ids = [BlockId(block) for block in blocks or []]
    return state


# -- keys of a request -------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(geometries(), st.lists(st.integers(0, 7), max_size=6))
def test_keys_grow_with_the_hashes_whatever_the_pieces(geometry: GroupGeometry, pieces: list[int]) -> None:
    state, hashes = GroupState(geometry), []
    for count in pieces:
        hashes += [b"%08d" % (len(hashes) + i) for i in range(count)]
        state.extend_keys(hashes, b"")
        tokens = len(hashes) * geometry.tokens_per_hash
        assert len(state.keys) == tokens // geometry.tokens_per_chunk
        for chunk, name in enumerate(state.keys):
            last_token = (chunk + 1) * geometry.tokens_per_chunk - 1
            assert name == make_offload_key(hashes[last_token // geometry.tokens_per_hash], geometry.group_id)
        assert state.own_keys == set(state.keys)


def test_requests_in_several_groups_have_keys_of_their_own() -> None:
    geometries_of_two = [GroupGeometry(group, 2, 1, 1) for group in (0, 1)]
    info = RequestInfo(RequestId("r"), 4, [b"aaaa", b"bbbb"])
    state = RequestState(info, tuple(map(GroupState, geometries_of_two)))
    state.extend_keys()
    assert state.groups[0].keys != state.groups[1].keys


def test_with_another_salt_the_same_hashes_name_other_chunks() -> None:
    def keys(salt: bytes) -> list[bytes]:
        info = RequestInfo(RequestId("r"), 4, [b"a" * 32, b"b" * 32], key_salt=salt)
        state = RequestState(info, (GroupState(GroupGeometry(0, 2, 1, 2)),))
        state.extend_keys()
        return list(state.groups[0].keys)

    plain, one, two = keys(b""), keys(b"one"), keys(b"two")
    assert len({*plain, *one, *two}) == 6
    assert {len(key) for key in (*plain, *one)} == {len(plain[0])}
    assert keys(b"one") == one


# -- what may be stored ------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 50),
    st.integers(0, 50),
    st.one_of(st.none(), st.integers(0, 50)),
    st.booleans(),
)
def test_no_token_is_storable_that_was_not_written_or_not_asked_for(
    written: int, prompt: int, limit: int | None, prompt_only: bool
) -> None:
    info = RequestInfo(RequestId("r"), prompt, [], max_offload_tokens=limit)
    tokens = storable_tokens(info, written, PromptOnly() if prompt_only else Admission())
    for token in range(60):
        allowed = (
            token < written and not (prompt_only and token >= prompt) and (limit is None or token < limit)
        )
        assert allowed == (token < tokens)


@settings(max_examples=200, deadline=None)
@given(
    geometries(),
    st.integers(0, 5),
    st.lists(st.integers(0, 30), max_size=12),
    st.integers(0, 60),
    st.integers(0, 5),
)
def test_offered_chunks_are_complete_known_have_all_their_blocks_and_come_once(
    geometry: GroupGeometry, num_chunks: int, blocks: list[int], tokens: int, first: int
) -> None:
    state = state_of(geometry, num_chunks, blocks)
    state.next_store_chunk = first
    offered = storable_chunks(state, tokens, NULL)
    per_chunk = geometry.blocks_per_chunk

    def is_storable(chunk: int) -> bool:
        own = blocks[chunk * per_chunk : (chunk + 1) * per_chunk]
        return (
            (chunk + 1) * geometry.tokens_per_chunk <= tokens
            and chunk < num_chunks
            and len(own) == per_chunk
            and NULL not in own
        )

    expected = []
    chunk = first
    while is_storable(chunk):
        expected.append(chunk)
        chunk += 1
    assert list(offered) == expected


@settings(max_examples=100, deadline=None)
@given(geometries(), st.lists(st.integers(0, 5), unique=True, min_size=1))
def test_a_store_pairs_every_block_of_a_chunk_with_its_place(
    geometry: GroupGeometry, chunks: list[int]
) -> None:
    blocks = [100 + i for i in range(6 * geometry.blocks_per_chunk)]
    state = state_of(geometry, 6, blocks)
    moves = [ChunkMove(2, state.keys[chunk], SlotId(50 - chunk), chunk) for chunk in chunks]
    part = plan_store(2, state, moves)
    assert part.group == 2
    found = list(zip(part.block_ids.tolist(), part.slots.tolist(), part.positions.tolist(), strict=True))
    assert found == [
        (blocks[chunk * geometry.blocks_per_chunk + position], 50 - chunk, position)
        for chunk in chunks
        for position in range(geometry.blocks_per_chunk)
    ]


# -- what can be loaded ------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(geometries(), st.data())
def test_a_load_fills_exactly_the_blocks_of_its_tokens(geometry: GroupGeometry, data: st.DataObject) -> None:
    per_block = geometry.tokens_per_block
    first = data.draw(st.integers(0, 8))
    last = data.draw(st.integers(first + 1, 12))
    tokens = range(first * per_block, last * per_block)
    state = state_of(geometry, 12)
    chunks = chunk_range(state.geometry, tokens)
    assert {token // geometry.tokens_per_chunk for token in tokens} == set(chunks)
    slots = [SlotId(chunk + 70) if data.draw(st.booleans()) else None for chunk in chunks]
    blocks = [BlockId(200 + i) for i in range(last + data.draw(st.integers(0, 2)))]
    part = plan_load(1, state, blocks, tokens, slots)
    expected = []
    for block in range(first, last):
        chunk, position = divmod(block, geometry.blocks_per_chunk)
        slot = slots[chunk - chunks.start]
        expected.append((200 + block, NO_SLOT if slot is None else slot, position))
    found = zip(part.block_ids.tolist(), part.slots.tolist(), part.positions.tolist(), strict=True)
    assert list(found) == expected


@pytest.mark.parametrize(("start", "stop"), [(1, 8), (4, 7)])
def test_a_load_that_does_not_begin_and_end_on_a_blocks_edge_is_a_bug_that_is_seen(
    start: int, stop: int
) -> None:
    state = state_of(GroupGeometry(0, 4, 1, 4), 4)
    with pytest.raises(AssertionError):
        plan_load(0, state, [BlockId(i) for i in range(4)], range(start, stop), [SlotId(0), SlotId(1)])


def test_a_load_into_blocks_that_the_request_does_not_have_is_a_bug_that_is_seen() -> None:
    state = state_of(GroupGeometry(0, 4, 1, 4), 4)
    with pytest.raises(AssertionError):
        plan_load(0, state, [BlockId(1)], range(8), [SlotId(0), SlotId(1)])


@settings(max_examples=50, deadline=None)
@given(geometries(), st.integers(0, 8), st.integers(0, 8))
def test_what_was_offered_is_offered_again_only_from_the_chunk_that_failed(
    geometry: GroupGeometry, done: int, failed: int
) -> None:
    state = RequestState(RequestInfo(RequestId("r"), 0, []), (GroupState(geometry),))
    state.groups[0].next_store_chunk = done
    state.restart_stores(failed)
    assert state.groups[0].next_store_chunk == min(done, failed)
