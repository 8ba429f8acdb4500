"""Chunk format: what was written is read, of every released version, and nothing else is."""

import hashlib
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_fixtures import CASES, CASES_OF, CREATED_NS, FIXTURES, IDENTITY, make_file, payload_of

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import (
    ALIGNMENT_BYTES,
    CHECKSUM_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAX_HEADER_BYTES,
    MAX_KEY_BYTES,
    MAX_PIECES,
    ChunkHeader,
    ChunkIdentity,
    Damage,
    PieceSums,
    check_header,
    check_payload,
    check_pieces,
    checksum,
    decode_header,
    encode_header,
    file_bytes,
    fitting_piece_bytes,
    header_bytes,
    header_for,
    padded_bytes,
    piece_checksums,
    told_header_bytes,
)


@st.composite
def any_header(draw: st.DrawFn) -> ChunkHeader:
    pieces = draw(st.integers(0, 6) | st.just(232))
    piece_bytes = draw(st.integers(1, 2**20)) * ALIGNMENT_BYTES
    return ChunkHeader(
        identity=ChunkIdentity(
            namespace_digest=draw(st.binary(min_size=32, max_size=32)),
            layout_family=draw(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=16)),
            layout_version=draw(st.integers(0, 2**32 - 1)),
        ),
        key=OffloadKey(draw(st.binary(min_size=1, max_size=MAX_KEY_BYTES))),
        payload_bytes=max(0, pieces * piece_bytes - draw(st.integers(0, piece_bytes - 1))),
        piece_bytes=piece_bytes,
        checksums=draw(st.randoms(use_true_random=False)).randbytes(pieces * CHECKSUM_BYTES),
        created_ns=draw(st.integers(0, 2**63)),
    )


headers = any_header()


def encoded(header: ChunkHeader) -> bytearray:
    area = bytearray(b"\xff" * header_bytes(header.payload_bytes, header.piece_bytes))
    encode_header(header, area)
    return area


@given(headers)
def test_what_was_encoded_is_decoded(header: ChunkHeader) -> None:
    area = encoded(header)
    assert decode_header(area) == header
    assert decode_header(area + b"what follows") == header
    assert told_header_bytes(area) == len(area)
    assert decode_header(area[:-1]) is Damage.SHORT_HEADER


@given(headers, st.data())
def test_every_flipped_bit_of_a_header_is_noticed(header: ChunkHeader, data: st.DataObject) -> None:
    area = encoded(header)
    # The beginning has the fields; the rest is the table.
    bit = data.draw(st.integers(0, 400 * 8) | st.integers(0, len(area) * 8 - 1))
    area[bit // 8] ^= 1 << bit % 8
    assert isinstance(decode_header(area), Damage)
    assert isinstance(decode_header(area + bytes(MAX_HEADER_BYTES)), Damage)


@given(st.binary(max_size=2 * HEADER_BYTES))
def test_any_bytes_are_decoded_without_an_exception(data: bytes) -> None:
    assert isinstance(decode_header(data), Damage)


@given(st.binary(max_size=300), st.integers(0, 2**20), st.sampled_from((1, 2)), st.sampled_from((1, 2, 17)))
def test_any_bytes_with_a_valid_start_and_checksum_are_decoded_without_an_exception(
    fields: bytes, start: int, version: int, pages: int
) -> None:
    page = bytearray(HEADER_BYTES * pages)
    page[start % 400 : start % 400 + len(fields)] = fields
    page[:16] = b"KVOCHUNK" + struct.pack("<II", version, len(page))
    del page[HEADER_BYTES * pages :]
    length = told_header_bytes(page)
    page[length - 16 : length] = checksum(bytes(page[: length - 16]))
    assert isinstance(decode_header(page), (Damage, ChunkHeader))


@given(st.integers(0, 2**40))
def test_lengths_are_multiples_of_the_page_and_hold_the_payload(size: int) -> None:
    assert padded_bytes(size) % ALIGNMENT_BYTES == 0
    assert size <= padded_bytes(size) < size + ALIGNMENT_BYTES
    assert file_bytes(size) == HEADER_BYTES + padded_bytes(size)


@given(st.integers(0, 2**40), st.integers(0, 2**26))
def test_a_payload_of_any_length_has_a_bounded_number_of_pieces(size: int, wanted: int) -> None:
    piece = fitting_piece_bytes(size, wanted)
    assert piece >= max(wanted, ALIGNMENT_BYTES)
    assert piece % ALIGNMENT_BYTES == 0
    assert piece * MAX_PIECES >= size
    length = header_bytes(size, piece)
    assert length % ALIGNMENT_BYTES == 0
    assert length <= MAX_HEADER_BYTES
    assert file_bytes(size, piece) == length + padded_bytes(size)
    if not wanted:
        assert length == HEADER_BYTES, "one piece needs more than a page"


def test_headers_have_one_page_as_long_as_that_will_do() -> None:
    pages = [header_bytes(count * 4096, 4096) // 4096 for count in (0, 1, 231, 232, 487, 488, MAX_PIECES)]
    assert pages == [1, 1, 1, 2, 2, 3, 17]
    assert MAX_HEADER_BYTES == 17 * 4096


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


payloads = st.builds(
    lambda seed, size: random.Random(seed).randbytes(size),
    st.integers(0, 2**32),
    st.integers(1, 200) | st.integers(1, 40_000),
)


@given(payloads, st.integers(0, 3), st.data())
def test_a_changed_or_short_payload_is_noticed(payload: bytes, pages: int, data: st.DataObject) -> None:
    header = header_for(IDENTITY, OffloadKey(b"key"), payload, 0, pages * 4096)
    assert check_payload(header, payload) is None
    assert check_payload(header, payload + b"padding") is None
    changed = flipped(payload, data.draw(st.integers(0, len(payload) * 8 - 1)))
    assert check_payload(header, changed) is Damage.PAYLOAD_CHECKSUM
    assert check_payload(header, payload[:-1]) is Damage.LENGTH


@given(payloads, st.integers(1, 3), st.data())
def test_a_changed_bit_is_noticed_by_whoever_looks_at_its_piece_and_by_nobody_else(
    payload: bytes, pages: int, data: st.DataObject
) -> None:
    piece = pages * 4096
    header = header_for(IDENTITY, OffloadKey(b"key"), payload, 0, piece)
    pieces = [(start, start + piece) for start in range(0, len(payload), piece)]
    bit = data.draw(st.integers(0, len(payload) * 8 - 1))
    changed = flipped(payload, bit)
    touched = data.draw(st.lists(st.sampled_from(pieces), unique=True).map(sorted))
    is_touched = any(start <= bit // 8 < end for start, end in touched)
    assert check_pieces(header, changed, touched) is (Damage.PAYLOAD_CHECKSUM if is_touched else None)
    # Several pieces as one part are the same thing.
    first, last = data.draw(st.tuples(st.sampled_from(pieces), st.sampled_from(pieces)).map(sorted))
    is_touched = first[0] <= bit // 8 < last[1]
    found = check_pieces(header, changed, [(first[0], last[1])])
    assert found is (Damage.PAYLOAD_CHECKSUM if is_touched else None)


@given(payloads, st.integers(1, 3), st.lists(st.integers(1, 9000)))
def test_the_checksums_of_bytes_that_come_in_parts_are_those_of_the_whole(
    payload: bytes, pages: int, cuts: list[int]
) -> None:
    sums = PieceSums(pages * 4096)
    rest = memoryview(payload)
    for cut in (*cuts, len(payload)):
        sums.update(rest[:cut])
        rest = rest[cut:]
    assert sums.checksums() == piece_checksums(payload, pages * 4096)


def flipped(payload: bytes, bit: int) -> bytes:
    changed = bytearray(payload)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.kv")), ids=lambda path: path.stem)
def test_files_of_every_version_are_read_for_ever(path: Path) -> None:
    version, _, name = path.stem.removeprefix("v").partition("_")
    key, size = CASES[name]
    data = path.read_bytes()
    found = decode_header(data)
    assert isinstance(found, ChunkHeader), found
    assert found.version == int(version)
    length = header_bytes(size, found.piece_bytes)
    assert len(data) == length + padded_bytes(size)
    assert check_header(found, IDENTITY, key, size) is None
    assert found.created_ns == CREATED_NS
    assert check_payload(found, data[length:]) is None
    assert data[length : length + size] == payload_of(name)
    assert check_payload(found, flipped(data[length:], size * 8 - 1)) is Damage.PAYLOAD_CHECKSUM
    if version == "1":
        assert found.payload_checksum == checksum(payload_of(name))


def test_a_fixture_of_every_case_and_version_exists() -> None:
    assert {path.stem for path in FIXTURES.glob("*.kv")} == {
        f"v{version}_{name}" for version in range(1, FORMAT_VERSION + 1) for name in CASES_OF[version]
    }


def test_the_format_did_not_change_without_a_new_version() -> None:
    for name in CASES:
        assert make_file(name) == (FIXTURES / f"v{FORMAT_VERSION}_{name}.kv").read_bytes(), name


def test_the_offsets_in_the_documentation_are_those_of_the_code() -> None:
    """The table of docs/chunk-format.md, as code."""
    data = make_file("pieces")
    key, size = CASES["pieces"]
    payload = payload_of("pieces")
    table = b"".join(checksum(payload[start : start + 4096]) for start in range(0, size, 4096))
    assert len(table) == 6 * 16
    assert data[0:8] == b"KVOCHUNK"
    assert struct.unpack_from("<II", data, 8) == (2, 4096)
    assert data[16:48] == hashlib.sha256(b"a namespace").digest()
    assert data[48:64] == b"direct".ljust(16, b"\0")
    assert struct.unpack_from("<II", data, 64) == (1, len(key))
    assert data[72:88] == checksum(table)
    assert struct.unpack_from("<QQQ", data, 88) == (size, 6 * 4096, CREATED_NS)
    assert data[112 : 112 + len(key)] == key
    assert data[112 + len(key) : 368] == bytes(368 - 112 - len(key))
    assert struct.unpack_from("<QQ", data, 368) == (4096, 6)
    assert data[384:480] == table
    assert data[480:4080] == bytes(3600)
    assert data[4080:4096] == checksum(data[:4080])


@pytest.mark.parametrize(("pieces", "length"), [(231, 4096), (300, 8192), (MAX_PIECES, MAX_HEADER_BYTES)])
def test_a_long_table_makes_a_long_header_with_its_checksum_at_the_end(pieces: int, length: int) -> None:
    sums = random.Random(pieces).randbytes(16 * pieces)
    header = ChunkHeader(IDENTITY, OffloadKey(b"key"), pieces * 4096 - 7, 4096, sums, 0)
    area = encoded(header)
    assert struct.unpack_from("<I", area, 12) == (length,)
    assert len(area) == length
    assert area[384 : 384 + pieces * 16] == sums
    assert area[-16:] == checksum(area[:-16])
    assert decode_header(area) == header
