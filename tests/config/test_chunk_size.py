"""Chunk sizes against groups: what does not divide is an error that names sizes, groups and the other option."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.config.validate import check_divides_hash, resolve_blocks_per_chunk
from kvoffload.errors import ConfigError


def test_without_either_option_a_chunk_is_a_block() -> None:
    assert resolve_blocks_per_chunk([16, 32], None, None) == 1


def test_blocks_per_chunk_holds_for_groups_of_any_size() -> None:
    assert resolve_blocks_per_chunk([3584, 4, 64], None, 5) == 5


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 512), st.integers(1, 20), st.integers(1, 4))
def test_a_token_size_that_divides_gives_its_number_of_blocks(block: int, count: int, groups: int) -> None:
    assert resolve_blocks_per_chunk([block] * groups, block * count, None) == count


def test_a_token_size_for_groups_of_different_sizes_names_sizes_groups_and_the_other_option() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_blocks_per_chunk([16, 32], 64, None)
    message = str(caught.value)
    for part in ("block_size=64", "group 0: 16", "group 1: 32", "blocks_per_chunk"):
        assert part in message


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 512), st.integers(1, 4000))
def test_a_token_size_that_does_not_divide_names_one_that_does(block: int, size: int) -> None:
    if size % block == 0:
        assert resolve_blocks_per_chunk([block], size, None) == size // block
        return
    with pytest.raises(ConfigError) as caught:
        resolve_blocks_per_chunk([block], size, None)
    message = str(caught.value)
    assert f"block_size={size} tokens is not a multiple" in message
    assert f"group 0: {block}" in message
    assert "blocks_per_chunk" in message
    proposed = int(message.partition("use block_size=")[2].partition(" ")[0])
    assert resolve_blocks_per_chunk([block], proposed, None) == proposed // block


def test_blocks_must_be_whole_numbers_of_hashes_and_the_bad_groups_are_named() -> None:
    check_divides_hash([16, 32, 48], 16)
    with pytest.raises(ConfigError) as caught:
        check_divides_hash([3584, 4, 3584, 64], 64)
    assert "group 1: 4" in str(caught.value)
    assert "group 0" not in str(caught.value)
    assert "64 tokens" in str(caught.value)
