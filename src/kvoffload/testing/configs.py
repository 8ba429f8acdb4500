"""Complete example configurations, so that a test names only what it is about. No engine, no memory."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvoffload.config.options import OffloadingOptions
from kvoffload.config.schema import (
    LayoutIdentity,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from kvoffload.layout import direct


def example_config(
    *, options: OffloadingOptions | None = None, world_size: int = 1, num_groups: int = 1, **changes: Any
) -> OffloadingConfig:
    """A small valid configuration in the direct layout.

    Args:
        options: The user's options; 1 MiB of host memory if not given.
        world_size: Workers; all of them tensor parallel.
        num_groups: Groups of two layers, 16 tokens and 4096 bytes per block and worker.
        **changes: Fields of OffloadingConfig to be replaced.
    """
    config = OffloadingConfig(
        groups=tuple(example_group(index) for index in range(num_groups)),
        model=OffloadingModelConfig(
            name="example/model", revision="0123abcd", dtype="bfloat16", quantisation="none"
        ),
        cache=OffloadingCacheConfig(
            tokens_per_hash=16,
            blocks_per_chunk=1,
            hash_algorithm="sha256",
            hash_seed="engine-default",
            prefix_caching=True,
        ),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=world_size,
            tp_size=world_size,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            is_parallelism_agnostic=False,
        ),
        layout=LayoutIdentity(
            family=direct.FAMILY,
            format_version=direct.FORMAT_VERSION,
            engine_layout="LBHNC",
            engine_family="example-engine",
        ),
        engine_id="engine-0",
        enable_kv_cache_events=False,
        replicated_layout=False,
        canonical_layout=False,
        options=options or OffloadingOptions(cpu_bytes_to_use=2**20),
        spec_options=None,
    )
    return dataclasses.replace(config, **changes)


def example_group(index: int, **changes: Any) -> OffloadingGroupConfig:
    """The group with this index of `example_config`, with some of its fields replaced."""
    group = OffloadingGroupConfig(
        group_id=index,
        tokens_per_block=16,
        layer_names=(f"layer.{2 * index}", f"layer.{2 * index + 1}"),
        worker_kv_bytes_per_block=4096,
        page_signature="FullAttention heads=2 head_size=32 dtype=bfloat16",
    )
    return dataclasses.replace(group, **changes)
