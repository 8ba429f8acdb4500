"""Chunk format: what was written is read, of every released version, and nothing else is."""

import hashlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_fixtures import CASES, CREATED_NS, FIXTURES, IDENTITY, make_file, payload_of

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import (
    ALIGNMENT_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAX_KEY_BYTES,
    ChunkHeader,
    ChunkIdentity,
    Damage,
    check_header,
    check_payload,
    checksum,
    decode_header,
    encode_header,
    file_bytes,
    padded_bytes,
)

headers = st.builds(
    ChunkHeader,
    identity=st.builds(
        ChunkIdentity,
        namespace_digest=st.binary(min_size=32, max_size=32),
        layout_family=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=16),
        layout_version=st.integers(0, 2**32 - 1),
    ),
    key=st.binary(min_size=1, max_size=MAX_KEY_BYTES).map(OffloadKey),
    payload_bytes=st.integers(0, 2**50),
    payload_checksum=st.binary(min_size=16, max_size=16),
    created_ns=st.integers(0, 2**63),
)


def encoded(header: ChunkHeader) -> bytearray:
    page = bytearray(b"\xff" * HEADER_BYTES)
    encode_header(header, page)
    return page


@given(headers)
def test_what_was_encoded_is_decoded(header: ChunkHeader) -> None:
    assert decode_header(encoded(header)) == header


@given(headers, st.integers(0, HEADER_BYTES * 8 - 1))
def test_every_flipped_bit_of_a_header_is_noticed(header: ChunkHeader, bit: int) -> None:
    page = encoded(header)
    page[bit // 8] ^= 1 << bit % 8
    assert isinstance(decode_header(page), Damage)


@given(st.binary(max_size=2 * HEADER_BYTES))
def test_any_bytes_are_decoded_without_an_exception(data: bytes) -> None:
    assert isinstance(decode_header(data), Damage)


@given(st.binary(max_size=300), st.integers(0, 2**20))
def test_any_bytes_with_a_valid_start_and_checksum_are_decoded_without_an_exception(
    fields: bytes, start: int
) -> None:
    page = bytearray(HEADER_BYTES)
    page[start % 200 : start % 200 + len(fields)] = fields
    page[:12] = b"KVOCHUNK" + struct.pack("<I", FORMAT_VERSION)
    del page[HEADER_BYTES:]
    page[-16:] = checksum(bytes(page[:-16]))
    assert isinstance(decode_header(page), (Damage, ChunkHeader))


@given(st.integers(0, 2**40))
def test_lengths_are_multiples_of_the_page_and_hold_the_payload(size: int) -> None:
    assert padded_bytes(size) % ALIGNMENT_BYTES == 0
    assert size <= padded_bytes(size) < size + ALIGNMENT_BYTES
    assert file_bytes(size) == HEADER_BYTES + padded_bytes(size)


def test_a_later_version_is_told_from_damage_before_its_header_is_checked() -> None:
    page = bytearray(make_file("plain")[:HEADER_BYTES])
    page[8:12] = struct.pack("<I", FORMAT_VERSION + 1)
    assert decode_header(page) is Damage.UNKNOWN_VERSION
    # Its header may be shorter than ours.
    assert decode_header(page[:100]) is Damage.UNKNOWN_VERSION


@given(headers, headers)
def test_a_header_fits_only_what_was_asked_for(header: ChunkHeader, other: ChunkHeader) -> None:
    assert check_header(header, header.identity, header.key, header.payload_bytes) is None
    damage = check_header(header, other.identity, other.key, other.payload_bytes)
    is_equal = (header.identity, header.key, header.payload_bytes) == (
        other.identity,
        other.key,
        other.payload_bytes,
    )
    assert (damage is None) == is_equal


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_changed_or_short_payload_is_noticed(payload: bytes, data: st.DataObject) -> None:
    header = ChunkHeader(IDENTITY, OffloadKey(b"key"), len(payload), checksum(payload), 0)
    assert check_payload(header, payload) is None
    assert check_payload(header, payload + b"padding") is None
    bit = data.draw(st.integers(0, len(payload) * 8 - 1))
    changed = bytearray(payload)
    changed[bit // 8] ^= 1 << bit % 8
    assert check_payload(header, changed) is Damage.PAYLOAD_CHECKSUM
    assert check_payload(header, payload[:-1]) is Damage.LENGTH


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("v1_*.kv")), ids=lambda path: path.stem)
def test_files_of_version_1_are_read_for_ever(path: Path) -> None:
    name = path.stem.removeprefix("v1_")
    key, size = CASES[name]
    data = path.read_bytes()
    assert len(data) == file_bytes(size)
    found = decode_header(data[:HEADER_BYTES])
    assert isinstance(found, ChunkHeader), found
    assert check_header(found, IDENTITY, key, size) is None
    assert found.created_ns == CREATED_NS
    assert check_payload(found, data[HEADER_BYTES:]) is None
    assert data[HEADER_BYTES : HEADER_BYTES + size] == payload_of(name)


def test_a_fixture_of_every_case_and_version_exists() -> None:
    assert {path.stem for path in FIXTURES.glob("*.kv")} == {
        f"v{version}_{name}" for version in range(1, FORMAT_VERSION + 1) for name in CASES
    }


def test_the_format_did_not_change_without_a_new_version() -> None:
    for name in CASES:
        assert make_file(name) == (FIXTURES / f"v{FORMAT_VERSION}_{name}.kv").read_bytes(), name


def test_the_offsets_in_the_documentation_are_those_of_the_code() -> None:
    """The table of docs/chunk-format.md, as code."""
    data = make_file("padded")
    key, size = CASES["padded"]
    assert data[0:8] == b"KVOCHUNK"
    assert struct.unpack_from("<II", data, 8) == (1, 4096)
    assert data[16:48] == hashlib.sha256(b"a namespace").digest()
    assert data[48:64] == b"direct".ljust(16, b"\0")
    assert struct.unpack_from("<II", data, 64) == (1, len(key))
    assert data[72:88] == checksum(payload_of("padded"))
    assert struct.unpack_from("<QQQ", data, 88) == (size, 8192, CREATED_NS)
    assert data[112 : 112 + len(key)] == key
    assert data[112 + len(key) : 4080] == bytes(4080 - 112 - len(key))
    assert data[4080:4096] == checksum(data[:4080])
