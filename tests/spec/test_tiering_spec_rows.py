"""What a tiering spec tells its tiers of the rows: all of a row on one node, the ranges of its ranks on one of several."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvoffload.clock import ManualClock
from kvoffload.config.pages import AttentionPage, LayerFacts
from kvoffload.config.schema import OffloadingConfig
from kvoffload.keys.offload_key import make_offload_key
from kvoffload.layout import canonical
from kvoffload.layout.partial import RowShape
from kvoffload.metrics.recorder import Recorder
from kvoffload.spec.factory import OffloadingSpecFactory
from kvoffload.spec.tiering import TieringOffloadingSpec
from kvoffload.testing.configs import example_config, example_group

BLOCK_BYTES = 64 * 1024


class SecondNode(TieringOffloadingSpec):
    """Of an engine of four ranks, a node with the last two."""

    @property
    def ranks_here(self) -> Sequence[int]:
        return (2, 3)


def config_of(root: Path, family: str) -> OffloadingConfig:
    options, _ = OffloadingSpecFactory.parse_options(
        {
            "cpu_bytes_to_use": "4MiB",
            "spec_name": "TieringOffloadingSpec",
            "secondary_tiers": [{"type": "fs", "root_dir": str(root), "min_free_bytes": 0, "max_retries": 0}],
        }
    )
    page = AttentionPage(kv_heads=8, parts=(256, 256), block_tokens=16)
    names = ("layer.0", "layer.1")
    share = BLOCK_BYTES // 4
    layers = tuple(LayerFacts(name, page, share) for name in names)
    groups = tuple(
        example_group(
            group_id, layer_names=names, layers=layers, worker_kv_bytes_per_block=len(names) * share
        )
        for group_id in (0, 2)
    )
    # Of its own: tests that run side by side must not find each other's region.
    engine_id = f"test-{uuid.uuid4()}"
    config = example_config(options=options, world_size=4, groups=groups, engine_id=engine_id)
    return dataclasses.replace(config, layout=dataclasses.replace(config.layout, family=family))


def forms_of(spec: TieringOffloadingSpec) -> list:
    """How the chunks of groups 0 and 2 lie in their files, as the tier sees it."""
    from concurrent.futures import ThreadPoolExecutor

    from kvoffload.memory.shared_region import SharedOffloadRegion

    with ThreadPoolExecutor(4) as threads:
        opened = [threads.submit(SharedOffloadRegion.open, spec.region_spec, rank) for rank in range(4)]
        try:
            spec.make_manager(Recorder(), ManualClock())
            place = spec._tiers[0]._around.place
            assert not place.has_group_of(make_offload_key(b"hash", 1)), "a group that is not offloaded"
            return [place.chunk_file(make_offload_key(b"hash", group)).form for group in (0, 2)]
        finally:
            spec.close()
            for region in opened:
                region.result().close()


@pytest.mark.parametrize("family", ["direct", canonical.FAMILY])
def test_on_one_node_rows_are_loaded_whole(tmp_path: Path, family: str) -> None:
    forms = forms_of(TieringOffloadingSpec(config_of(tmp_path, family)))
    assert [form.reads for form in forms] == [None, None]
    assert [form.payload_bytes for form in forms] == [2 * BLOCK_BYTES] * 2
    # Pieces cost something, so only rows that some engine may want a part of have several.
    expected = 2 * BLOCK_BYTES if family == "direct" else 16 * 1024
    assert [form.piece_bytes for form in forms] == [expected] * 2


def test_a_node_with_some_of_the_ranks_loads_their_ranges_of_the_same_chunks(tmp_path: Path) -> None:
    config = config_of(tmp_path, canonical.FAMILY)
    spec = SecondNode(config)
    ranges = ((BLOCK_BYTES // 2, BLOCK_BYTES // 2), (3 * BLOCK_BYTES // 2, BLOCK_BYTES // 2))
    shape = RowShape(2 * BLOCK_BYTES, 16 * 1024, ranges)
    assert spec._shapes([2 * BLOCK_BYTES] * 2) == (shape, RowShape(0), shape)
    for form in forms_of(spec):
        assert form.is_partial
        assert form.part_bytes == BLOCK_BYTES
        assert form.file_bytes == 4096 + 2 * BLOCK_BYTES
