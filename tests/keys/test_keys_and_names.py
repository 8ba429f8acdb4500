"""Keys pack and unpack; names map to keys and back, foreign names map to nothing, directories stay small."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.errors import KvError
from kvoffload.keys.file_mapper import SUFFIX, FileMapper
from kvoffload.keys.fingerprint import namespace_of
from kvoffload.keys.offload_key import block_hash_of, group_index_of, group_suffix, make_offload_key
from kvoffload.testing.configs import example_config, example_group

hashes = st.binary(min_size=4, max_size=32)
groups = st.integers(0, 2**32 - 1)
MAPPER = FileMapper(namespace_of(example_config()))
DIRECTORY_LIMIT = 4096


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=64), groups)
def test_a_key_gives_back_what_it_was_made_of(block_hash: bytes, group: int) -> None:
    key = make_offload_key(block_hash, group)
    assert (block_hash_of(key), group_index_of(key)) == (block_hash, group)
    assert key == block_hash + group_suffix(group)


@settings(max_examples=100, deadline=None)
@given(hashes, hashes, groups, groups)
def test_keys_are_equal_only_for_equal_parts(one: bytes, two: bytes, group_one: int, group_two: int) -> None:
    same = make_offload_key(one, group_one) == make_offload_key(two, group_two)
    # Hashes of one engine have one length: only then can parts not run into each other.
    if len(one) == len(two):
        assert same == ((one, group_one) == (two, group_two))


@pytest.mark.parametrize("group", [-1, 2**32])
def test_a_group_that_does_not_fit_is_refused(group: int) -> None:
    with pytest.raises(OverflowError):
        make_offload_key(b"hash", group)


def test_an_empty_hash_names_nothing() -> None:
    with pytest.raises(AssertionError):
        make_offload_key(b"", 0)


@settings(max_examples=200, deadline=None)
@given(hashes, groups)
def test_names_map_to_keys_and_back(block_hash: bytes, group: int) -> None:
    key = make_offload_key(block_hash, group)
    name = MAPPER.name_of(key)
    assert MAPPER.key_of(name) == key
    path = PurePosixPath(name)
    assert path.parts[0] == MAPPER.base
    assert len(path.parts) == 4
    assert ".." not in path.parts
    assert path.suffix == SUFFIX
    assert name.isascii()


def test_the_name_shows_hash_and_group() -> None:
    name = MAPPER.name_of(make_offload_key(bytes.fromhex("ab12cd34ef"), 3))
    assert name == f"{MAPPER.base}/ab/12/ab12cd34ef_g3.kv"


GOOD = f"{MAPPER.base}/ab/12/ab12cd34ef_g3.kv"
FOREIGN = [
    "",
    "/",
    GOOD + "/",
    "/" + GOOD,
    "./" + GOOD,
    GOOD.replace(MAPPER.base, "other_0123456789abcdef"),
    GOOD.replace("/ab/", "/cd/"),
    GOOD.replace("/ab/12/", "/12/ab/"),
    GOOD.replace("/ab/12/", "/"),
    GOOD.replace("/ab/12/", "//ab/12/"),
    GOOD.replace("/ab/12/", "/ab/../ab/12/"),
    GOOD.replace("_g3", ""),
    GOOD.replace("_g3", "_g"),
    GOOD.replace("_g3", "_g-1"),
    GOOD.replace("_g3", "_g+3"),
    GOOD.replace("_g3", "_g03"),
    GOOD.replace("_g3", "_g 3"),
    GOOD.replace("_g3", "_g3_0"),
    GOOD.replace("_g3", "_g٣"),
    GOOD.replace("_g3", f"_g{2**32}"),
    GOOD.replace("_g3", "_g" + "9" * 5000),
    GOOD.replace("ab12cd34ef_", "AB12CD34EF_"),
    GOOD.replace("ab12cd34ef_", "ab 12 cd 34 ef_"),
    GOOD.replace("ab12cd34ef_", "ab12cd34e_"),
    GOOD.replace("ab12cd34ef_", "ab12_"),
    GOOD.replace("ab12cd34ef_", "zz12cd34ef_"),
    GOOD.removesuffix(SUFFIX),
    GOOD + SUFFIX,
    GOOD + ".tmp",
    GOOD.upper(),
    GOOD + "\0",
    GOOD + "\n",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_name_is_refused(name: str) -> None:
    with pytest.raises(KvError, match="is not the name of a chunk"):
        MAPPER.key_of(name)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=40),
        st.text("abcdef0123456789_g/.kv", max_size=40).map(lambda t: f"{MAPPER.base}/{t}"),
    )
)
def test_any_text_is_a_chunks_only_name_or_a_known_error(name: str) -> None:
    try:
        key = MAPPER.key_of(name)
    except KvError:
        return
    assert MAPPER.name_of(key) == name


def test_fifty_thousand_chunks_crowd_no_directory() -> None:
    entries: Counter[str] = Counter()
    seen: set[str] = set()
    for number in range(50_000):
        path = MAPPER.name_of(make_offload_key(hashlib.sha256(b"%d" % number).digest(), number % 3))
        while path and path not in seen:
            seen.add(path)
            path = path.rpartition("/")[0]
            entries[path] += 1
    assert max(entries.values()) <= DIRECTORY_LIMIT, entries.most_common(3)


def test_two_namespaces_never_share_a_name() -> None:
    other = FileMapper(namespace_of(example_config(groups=(example_group(7),))))
    key = make_offload_key(b"hash", 0)
    assert other.name_of(key) != MAPPER.name_of(key)
    with pytest.raises(KvError):
        other.key_of(MAPPER.name_of(key))
