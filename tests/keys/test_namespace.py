"""The namespace: whatever changes the meaning of stored bytes changes the digest, and nothing else does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from kvoffload.config.options import OffloadingOptions
from kvoffload.config.schema import (
    LayoutIdentity,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from kvoffload.keys.fingerprint import namespace_of
from kvoffload.testing.configs import example_config, example_group

Change = Callable[[OffloadingConfig], OffloadingConfig]


def within(part: str, **changes: Any) -> Change:
    """Change fields of one part of the configuration."""
    return lambda config: dataclasses.replace(
        config, **{part: dataclasses.replace(getattr(config, part), **changes)}
    )


def top(**changes: Any) -> Change:
    return lambda config: dataclasses.replace(config, **changes)


def group(**changes: Any) -> Change:
    return top(groups=(example_group(0, **changes), example_group(1)))


MEANING: dict[str, Change] = {
    "model.name": within("model", name="other/model"),
    "model.revision": within("model", revision="4567cdef"),
    "model.dtype": within("model", dtype="fp8_e4m3"),
    "model.quantisation": within("model", quantisation="per-head"),
    "cache.hash_algorithm": within("cache", hash_algorithm="sha256_cbor"),
    "cache.hash_seed": within("cache", hash_seed="PYTHONHASHSEED=0"),
    "cache.tokens_per_hash": within("cache", tokens_per_hash=8),
    "cache.blocks_per_chunk": within("cache", blocks_per_chunk=2),
    "layout.family": within("layout", family="canonical"),
    "layout.format_version": within("layout", format_version=2),
    "layout.engine_layout": within("layout", engine_layout="BLHNC"),
    "layout.engine_family": within("layout", engine_family="example-engine/runner-v2"),
    "group.group_id": group(group_id=5),
    "group.tokens_per_block": group(tokens_per_block=32),
    "group.layer_names": group(layer_names=("layer.0", "layer.9")),
    "group.layer_names, their order": group(layer_names=("layer.1", "layer.0")),
    "group.worker_kv_bytes_per_block": group(worker_kv_bytes_per_block=8192),
    "group.page_signature": group(page_signature="MLA"),
    "fewer groups": top(groups=(example_group(0),)),
    "groups, their order": top(groups=(example_group(1), example_group(0))),
    "parallel.tp_size": within("parallel", tp_size=4),
    "parallel.pp_size": within("parallel", pp_size=2),
    "parallel.pcp_size": within("parallel", pcp_size=2),
    "parallel.dcp_size": within("parallel", dcp_size=2),
    "parallel.is_parallelism_agnostic": within("parallel", is_parallelism_agnostic=True),
}
NO_MEANING: dict[str, Change] = {
    "engine_id": top(engine_id="engine-77"),
    "enable_kv_cache_events": top(enable_kv_cache_events=True),
    "parallel.rank": within("parallel", rank=1),
    "parallel.data_parallel_index": within("parallel", data_parallel_index=3),
    "parallel.data_parallel_size": within("parallel", data_parallel_size=4),
    "cache.prefix_caching": within("cache", prefix_caching=False),
    "cache.boundary_unit_tokens": within("cache", boundary_unit_tokens=64),
    "group.reach_tokens": group(reach_tokens=255),
    "group.local_tokens": group(local_tokens=256),
    "options.cpu_bytes_to_use": within("options", cpu_bytes_to_use=2**30),
    "options.eviction_policy": within("options", eviction_policy="arc"),
    "options.store_threshold": within("options", store_threshold=2),
    "options.record_dir": within("options", record_dir="/var/tmp/traces"),
    "options.store_max_tokens": within("options", store_max_tokens=64),
    "options.offload_prompt_only": within("options", offload_prompt_only=False),
    "options.pending_timeout_s": within("options", pending_timeout_s=1.0),
    "spec_options": top(spec_options=object()),
    # Its rows are canonical ones: TP 1 and TP 8 of a latent model share them.
    "replicated_layout": top(replicated_layout=True),
}
FOLLOWS_FROM_OTHERS = {
    # What it asks for stands in `layout`.
    "canonical_layout",
    # What it says of the bytes stands in `page_signature`.
    "group.layers",
    "group.is_state",
    # The product of the sizes.
    "parallel.world_size",
}


@pytest.fixture
def base() -> OffloadingConfig:
    return example_config(world_size=2, num_groups=2)


@pytest.mark.parametrize("name", MEANING)
def test_what_changes_the_meaning_of_the_bytes_changes_the_digest(name: str, base: OffloadingConfig) -> None:
    changed = MEANING[name](base)
    assert changed != base
    assert namespace_of(changed).digest != namespace_of(base).digest
    assert namespace_of(changed).directory_name != namespace_of(base).directory_name


@pytest.mark.parametrize("name", NO_MEANING)
def test_what_does_not_change_the_meaning_keeps_the_namespace(name: str, base: OffloadingConfig) -> None:
    changed = NO_MEANING[name](base)
    assert changed != base
    assert namespace_of(changed) == namespace_of(base)


def test_no_two_changes_lead_into_one_namespace(base: OffloadingConfig) -> None:
    digests = [namespace_of(change(base)).digest for change in MEANING.values()]
    assert len(set(digests)) == len(digests)


def test_every_field_of_the_configuration_is_on_one_of_the_lists() -> None:
    """Whoever adds a field has to decide."""
    parts = {
        "model": OffloadingModelConfig,
        "cache": OffloadingCacheConfig,
        "parallel": OffloadingParallelConfig,
        "layout": LayoutIdentity,
        "group": OffloadingGroupConfig,
    }
    fields = {f"{part}.{f.name}" for part, kind in parts.items() for f in dataclasses.fields(kind)}
    fields |= {f.name for f in dataclasses.fields(OffloadingConfig)} - set(parts) - {"groups", "options"}
    assert fields <= MEANING.keys() | NO_MEANING.keys() | FOLLOWS_FROM_OTHERS


@pytest.mark.parametrize("name", ["tp_size", "pp_size", "pcp_size", "dcp_size", "rank", "world_size"])
def test_agnostic_bytes_are_shared_by_every_parallel_layout(name: str, base: OffloadingConfig) -> None:
    agnostic = MEANING["parallel.is_parallelism_agnostic"](base)
    changed = within("parallel", **{name: 8})(agnostic)
    assert namespace_of(changed) == namespace_of(agnostic)
    # A worker's share of a block depends on how many share it.
    groups = tuple(dataclasses.replace(g, worker_kv_bytes_per_block=512) for g in agnostic.groups)
    assert namespace_of(top(groups=groups)(changed)) == namespace_of(agnostic)


@pytest.mark.parametrize(
    ("model", "start"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama_Llama-3.1-8B_"),
        ("/models/my model", "models_my_model_"),
        ("../../etc", "etc_"),
        ("模型", "model_"),
        ("", "model_"),
        ("..", "model_"),
        ("a" * 300, "a" * 80 + "_"),
        ("x\0y\nz", "x_y_z_"),
    ],
)
def test_the_directory_name_is_readable_and_one_safe_component(model: str, start: str) -> None:
    name = namespace_of(within("model", name=model)(example_config())).directory_name
    assert name.startswith(start)
    assert name.isascii()
    assert name.isprintable()
    assert len(name) <= 97
    assert not set(name) & set('/\\ :*?"<>|')
    assert not name.startswith((".", "-"))


def test_models_whose_readable_names_collide_stay_apart() -> None:
    names = ("a/b", "a_b", "a:b", "a b")
    directories = {namespace_of(within("model", name=n)(example_config())).directory_name for n in names}
    assert len(directories) == len(names)


def test_the_digested_text_is_canonical_json_and_differences_are_readable(base: OffloadingConfig) -> None:
    namespace = namespace_of(base)
    fields = json.loads(namespace.fields_json)
    assert json.dumps(fields, sort_keys=True, separators=(",", ":")) == namespace.fields_json
    other = namespace_of(MEANING["model.dtype"](base))
    assert namespace.differences(other) == ("kv_dtype: 'bfloat16' here, 'fp8_e4m3' there",)
    assert namespace.differences(namespace) == ()
    agnostic = namespace_of(MEANING["parallel.is_parallelism_agnostic"](base))
    assert any(line.startswith("parallel: ") for line in namespace.differences(agnostic))


def test_the_digest_of_an_example_never_changes() -> None:
    """If this fails, everything that anybody has stored becomes a miss: raise FORMAT_VERSION on purpose."""
    assert namespace_of(example_config()).directory_name == "example_model_d52b01453e85cddd"


def test_options_are_no_part_of_the_fields() -> None:
    text = namespace_of(example_config()).fields_json
    names = {f.name for f in dataclasses.fields(OffloadingOptions)} - {"blocks_per_chunk", "hash_seed"}
    assert not [name for name in names if name in json.loads(text)]
