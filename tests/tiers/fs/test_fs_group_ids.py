"""Keys carry the engine's own group ids: a group that is not offloaded leaves a gap, and nothing is mixed up behind it."""

from __future__ import annotations

from pathlib import Path

from kvoffload.keys.fingerprint import namespace_of
from kvoffload.keys.offload_key import make_offload_key
from kvoffload.layout.chunk_format import HEADER_BYTES
from kvoffload.testing.configs import example_config
from kvoffload.tiers.fs.place import StorePlace
from kvoffload.tiers.fs.writer import WriterId


def test_sizes_go_by_group_id_and_a_gap_has_none(tmp_path: Path) -> None:
    place = StorePlace(
        str(tmp_path), namespace_of(example_config()), (8192, 0, 4096), WriterId("host", 1, 1, 1)
    )
    first, gap, last, unknown = (make_offload_key(b"hash", group) for group in (0, 1, 2, 3))
    assert [place.has_group_of(key) for key in (first, gap, last, unknown)] == [True, False, True, False]
    assert place.payload_bytes_of(first) == 8192
    assert place.chunk_file(last).payload_bytes == 4096
    assert place.smallest_file_bytes == place.file_bytes_of(last) >= 4096 + HEADER_BYTES
