"""What cannot be served safely is refused at the start, in one clear line that says how to mend it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_process import EngineError, EngineSettings
from shelf import BLOCKS, Shelf

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
from vllm.config import SpeculativeConfig  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)

from kvoffload.config.schema import OffloadingConfig  # noqa: E402
from kvoffload.connectors.vllm.config import build_offloading_config  # noqa: E402
from kvoffload.errors import ConfigError, KvError, UnsupportedModelError  # noqa: E402
from kvoffload.keys.fingerprint import namespace_of  # noqa: E402
from kvoffload.spec.factory import OffloadingSpecFactory  # noqa: E402

LAYERS = ["layer.0", "layer.1"]
FULL = FullAttentionSpec(block_size=128, num_kv_heads=4, head_size=64, dtype=torch.float32)
WINDOW = SlidingWindowSpec(
    block_size=128, num_kv_heads=4, head_size=64, dtype=torch.float32, sliding_window=256
)
STATE = MambaSpec(
    block_size=128,
    shapes=((2, 256),),
    dtypes=(torch.bfloat16,),
    page_size_padded=262_144,
    mamba_cache_mode="align",
)
LATENT = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype=torch.bfloat16, max_tp_shards=1)
LOCAL = ChunkedLocalAttentionSpec(
    block_size=128, num_kv_heads=4, head_size=64, dtype=torch.float32, attention_chunk_size=256
)
NUM_BLOCKS = 10
PAGE_BYTES = FULL.page_size_bytes
WITHIN_S = 20
"""Generous, for busy machines; no joiner may wait for its deadline (60 s)."""


def _cache(*specs: Any) -> KVCacheConfig:
    groups = [
        KVCacheGroupSpec([f"{name}.{index}" for name in LAYERS], spec) for index, spec in enumerate(specs)
    ]
    tensor = KVCacheTensor(
        size=len(LAYERS) * NUM_BLOCKS * PAGE_BYTES,
        layers=groups[0].layer_names,
        layer_stride=NUM_BLOCKS * PAGE_BYTES,
        block_stride=PAGE_BYTES,
    )
    return KVCacheConfig(NUM_BLOCKS, [tensor], groups, kv_cache_layout="LBHNC")


def _engine(tmp_path: Path, *, options: dict[str, Any] | None = None, **changes: Any) -> SimpleNamespace:
    """What `build_offloading_config` reads of vLLM's configuration."""
    parallel = SimpleNamespace(
        rank=0,
        world_size=1,
        nnodes=1,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        prefill_context_parallel_size=1,
        decode_context_parallel_size=1,
        data_parallel_index=0,
        data_parallel_size=1,
    )
    cache = SimpleNamespace(
        block_size=128,
        cache_dtype="auto",
        enable_prefix_caching=True,
        prefix_caching_hash_algo="sha256",
        kv_cache_layout="LBHNC",
        prefix_match_unit=changes.get("prefix_match_unit"),
    )
    for name, value in changes.items():
        for part in (parallel, cache):
            if hasattr(part, name):
                setattr(part, name, value)
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_connector_extra_config={"cpu_bytes_to_use": "1GiB", **(options or {})}, engine_id="engine"
        ),
        parallel_config=parallel,
        cache_config=cache,
        model_config=_model_config(str(tmp_path), **changes),
        load_config=SimpleNamespace(load_format=changes.get("load_format", "auto"), download_dir=None),
        device_config=SimpleNamespace(device_type=changes.get("device_type", "cpu")),
        compilation_config=SimpleNamespace(custom_ops=changes.get("custom_ops", ["all"])),
        speculative_config=changes.get("speculative_config"),
        kv_events_config=None,
        use_v2_model_runner=changes.get("use_v2_model_runner", False),
    )


def _model_config(path: str, **changes: Any) -> SimpleNamespace:
    return SimpleNamespace(
        model=path,
        revision=None,
        use_mla=changes.get("use_mla", False),
        is_prefix_caching_supported=changes.get("is_prefix_caching_supported", True),
        hf_config=SimpleNamespace(to_dict=lambda: {"rope": changes.get("rope"), "_name_or_path": "anywhere"}),
        quantization=changes.get("quantization"),
        dtype=changes.get("dtype", torch.float32),
        seed=changes.get("seed", 0),
        get_total_num_kv_heads=lambda: 4,
        hf_text_config=SimpleNamespace(to_dict=dict),
    )


def _speculative(method: str, draft: str = "draft") -> SpeculativeConfig:
    """vLLM's own answers to what it is asked; only its checks of the draft model's files are left out."""
    made = SpeculativeConfig.__new__(SpeculativeConfig)
    made.method = method
    made.draft_model_config = _model_config(draft)
    return made


def _weights(tmp_path: Path, seed: int, name: str = "draft") -> str:
    path = tmp_path / f"{name}{seed}" if name != "." else tmp_path
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(bytes([seed]) * 100)
    return str(path)


@pytest.fixture(autouse=True)
def _no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


def _refusal(
    engine: SimpleNamespace, cache: KVCacheConfig, kind: type[KvError] = UnsupportedModelError
) -> str:
    with pytest.raises(kind) as error:
        OffloadingSpecFactory.create(build_offloading_config(engine, cache))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_plain_model_is_accepted(tmp_path: Path) -> None:
    config = build_offloading_config(_engine(tmp_path), _cache(FULL))
    (group,) = config.groups
    assert group.tokens_per_block == 128
    assert group.worker_kv_bytes_per_block == len(LAYERS) * PAGE_BYTES
    assert group.layer_names == ("layer.0.0", "layer.1.0")
    assert config.model.dtype.startswith("float32")
    OffloadingSpecFactory.create(config).close()


def test_latent_attention_is_refused_where_the_engine_computes_other_keys_in_every_step(
    tmp_path: Path,
) -> None:
    text = _refusal(_engine(tmp_path, block_size=16, use_mla=True), _cache(LATENT))
    assert "MLA" in text
    assert "-rotary_embedding" in text
    mended = _engine(tmp_path, block_size=16, use_mla=True, custom_ops=["all", "-rotary_embedding"])
    assert build_offloading_config(mended, _cache(LATENT)).groups
    other = _engine(tmp_path, block_size=16, use_mla=True, device_type="cuda")
    assert build_offloading_config(other, _cache(LATENT)).groups[0].tokens_per_block == 16


def test_tasks_without_prefix_caching_are_refused(tmp_path: Path) -> None:
    text = _refusal(_engine(tmp_path, is_prefix_caching_supported=False), _cache(FULL))
    assert "prefix caching" in text


@pytest.mark.parametrize(
    "change",
    [
        {"rope": "yarn"},
        {"quantization": "fp8"},
        {"dtype": torch.bfloat16},
        {"load_format": "dummy", "seed": 1},
    ],
    ids=str,
)
def test_what_changes_the_numbers_of_a_checkpoint_changes_the_namespace(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    plain = namespace_of(build_offloading_config(_engine(tmp_path), _cache(FULL)))
    changed = namespace_of(build_offloading_config(_engine(tmp_path, **change), _cache(FULL)))
    assert plain.digest != changed.digest


def test_windows_states_and_local_stretches_beside_full_attention_are_accepted(tmp_path: Path) -> None:
    config = build_offloading_config(_engine(tmp_path), _cache(FULL, WINDOW, STATE, LOCAL))
    assert [group.reach_tokens for group in config.groups] == [None, 255, 1, None]
    assert [group.is_state for group in config.groups] == [False, False, True, False]
    assert [group.local_tokens for group in config.groups] == [None, None, None, 256]
    # Of a state what it is made of, not what its page is padded to.
    sizes = [group.worker_kv_bytes_per_block for group in config.groups]
    assert sizes == [2 * PAGE_BYTES, 2 * PAGE_BYTES, 2 * 1024, 2 * PAGE_BYTES]
    assert (config.cache.tokens_per_hash, config.cache.boundary_unit_tokens) == (128, 128)
    OffloadingSpecFactory.create(config).close()


def test_odd_groups_start_and_those_that_cannot_be_found_by_prefix_are_left_out(tmp_path: Path) -> None:
    sizes = {"block_size": 3584}
    scratch = CircularBufferSpec(block_size=4, num_kv_heads=1, head_size=64, dtype=torch.float32)
    full, window = dataclasses.replace(FULL, **sizes), dataclasses.replace(WINDOW, **sizes)
    cache = _cache(full, scratch, window, dataclasses.replace(FULL, block_size=64))
    config = build_offloading_config(_engine(tmp_path, options={"cpu_bytes_to_use": "4GiB"}), cache)
    assert [group.group_id for group in config.groups] == [0, 2, 3]
    assert config.cache.tokens_per_hash == 64
    assert config.cache.boundary_unit_tokens == 3584
    OffloadingSpecFactory.create(config).close()


def test_a_chunk_in_tokens_that_does_not_fit_all_groups_is_refused_with_the_other_option(
    tmp_path: Path,
) -> None:
    cache = _cache(dataclasses.replace(FULL, block_size=16), dataclasses.replace(WINDOW, block_size=32))
    text = _refusal(_engine(tmp_path, options={"block_size": 64}), cache, ConfigError)
    assert all(word in text for word in ("block_size=64", "group 0: 16", "group 1: 32", "blocks_per_chunk"))


@pytest.mark.parametrize(
    ("specs", "changes", "words"),
    [
        ((WINDOW,), {}, ["1 group(s)", "SlidingWindowSpec"]),
        ((WINDOW, STATE), {}, ["2 group(s)", "MambaSpec"]),
        ((LOCAL,), {}, ["1 group(s)", "ChunkedLocalAttentionSpec"]),
        ((FULL, WINDOW), {"enable_prefix_caching": False}, ["--enable-prefix-caching"]),
        ((FULL, WINDOW), {"use_v2_model_runner": True}, ["model runner"]),
        (
            (FULL, WINDOW),
            {"speculative_config": _speculative("ngram")},
            ["2 KV cache groups", "speculative decoding", "start without it"],
        ),
        (
            (FULL, STATE),
            {"speculative_config": _speculative("draft_model")},
            ["2 KV cache groups", "speculative decoding", "start without it"],
        ),
        ((FULL, dataclasses.replace(STATE, mamba_cache_mode="none")), {}, ["--mamba-cache-mode align"]),
        ((FULL, STATE), {"prefix_match_unit": 64}, ["hash unit of 64"]),
    ],
    ids=str,
)
def test_groups_that_are_not_proven_are_refused(
    tmp_path: Path, specs: tuple[Any, ...], changes: dict[str, Any], words: list[str]
) -> None:
    text = _refusal(_engine(tmp_path, **changes), _cache(*specs))
    assert all(word in text for word in words), text


def test_the_canonical_layout_of_windows_is_portable_and_that_of_an_unknown_state_is_not(
    tmp_path: Path,
) -> None:
    engine = _engine(tmp_path, options={"canonical_layout": True})
    assert build_offloading_config(engine, _cache(FULL, WINDOW)).parallel.is_parallelism_agnostic
    # The configuration of this model does not say what its states are made of.
    config = build_offloading_config(engine, _cache(FULL, STATE))
    assert not config.parallel.is_parallelism_agnostic
    assert "opaque pages" in config.groups[1].page_signature


def _canonical_state(tmp_path: Path, dtype: torch.dtype, tp: int = 1) -> OffloadingConfig:
    """An LFM2-like model: one layer of full attention, one of short convolutions."""
    engine = _engine(
        tmp_path, options={"canonical_layout": True}, tensor_parallel_size=tp, world_size=tp, block_size=128
    )
    model = {
        "model_type": "lfm2",
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "conv"],
        "hidden_size": 256,
        "num_attention_heads": 4,
        "conv_L_cache": 3,
    }
    engine.model_config.hf_text_config = SimpleNamespace(to_dict=lambda: model)
    cache = _cache(
        dataclasses.replace(FULL, num_kv_heads=4 // tp),
        dataclasses.replace(STATE, shapes=((2, 256 // tp),), dtypes=(dtype,)),
    )
    for number, group in enumerate(cache.kv_cache_groups):
        group.layer_names[:] = [f"model.layers.{number}.layer"]
    return build_offloading_config(engine, cache)


def test_states_of_equally_long_dtypes_have_namespaces_of_their_own_in_the_canonical_layout(
    tmp_path: Path,
) -> None:
    # --mamba-cache-dtype is no part of the model's configuration, nor is it the dtype of the attention's KV.
    half, brain = (_canonical_state(tmp_path, dtype) for dtype in (torch.float16, torch.bfloat16))
    assert half.parallel.is_parallelism_agnostic
    assert namespace_of(half).digest != namespace_of(brain).digest
    spread = _canonical_state(tmp_path, torch.float16, tp=2)
    assert namespace_of(spread).digest == namespace_of(half).digest


def test_a_latent_model_is_kept_once_under_any_tensor_parallel_size(tmp_path: Path) -> None:
    configs = [
        build_offloading_config(
            _engine(
                tmp_path,
                block_size=16,
                use_mla=True,
                device_type="cuda",
                tensor_parallel_size=tp,
                world_size=tp,
            ),
            _cache(LATENT),
        )
        for tp in (1, 2, 4, 8)
    ]
    assert all(config.replicated_layout and config.canonical_layout for config in configs)
    assert len({namespace_of(config).digest for config in configs}) == 1
    specs = [OffloadingSpecFactory.create(config) for config in configs]
    plans = {
        (spec.region_spec.plan.groups[0].rows, spec.region_spec.plan.groups[0].row_stride_bytes)
        for spec in specs
    }
    assert len(plans) == 1, "the same budget holds the same number of chunks"
    # What vLLM does not call the same on all ranks is not taken for it; and a plain model has a part of its own on every rank.
    plain = _engine(tmp_path, tensor_parallel_size=2, world_size=2)
    assert not build_offloading_config(plain, _cache(FULL)).replicated_layout
    engine = _engine(tmp_path, block_size=16, use_mla=True, device_type="cuda")
    unknown = dataclasses.replace(LATENT, max_tp_shards=None)
    config = build_offloading_config(engine, _cache(unknown))
    assert not config.replicated_layout
    assert not config.parallel.is_parallelism_agnostic


def test_large_chunks_of_windows_are_refused(tmp_path: Path) -> None:
    text = _refusal(_engine(tmp_path, options={"blocks_per_chunk": 2}), _cache(FULL, WINDOW), ConfigError)
    assert "blocks_per_chunk" in text


def test_a_subclass_of_full_attention_that_is_not_known_is_refused(tmp_path: Path) -> None:
    # It may keep state elsewhere: its ancestry says nothing.
    fields = {field.name: getattr(FULL, field.name) for field in dataclasses.fields(FullAttentionSpec)}
    assert "SinkFullAttentionSpec" in _refusal(
        _engine(tmp_path), _cache(SinkFullAttentionSpec(**fields, sink_len=4))
    )


@pytest.mark.parametrize(
    "name",
    ["pipeline_parallel_size", "prefill_context_parallel_size", "decode_context_parallel_size", "nnodes"],
)
def test_parallel_layouts_that_are_not_served_are_refused_by_name(tmp_path: Path, name: str) -> None:
    text = _refusal(_engine(tmp_path, **{name: 2}), _cache(FULL))
    assert f"{name}=2" in text
    assert f"{name}=1" in text


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "dflash", "extract_hidden_states"])
def test_drafters_with_kv_of_their_own_are_refused(tmp_path: Path, method: str) -> None:
    text = _refusal(_engine(tmp_path, speculative_config=_speculative(method)), _cache(FULL))
    assert all(word in text for word in (repr(method), "'ngram'", "'draft_model'"))


def test_a_draft_model_is_a_part_of_the_namespace(tmp_path: Path) -> None:
    def digest(seed: int | None) -> str:
        speculative = None if seed is None else _speculative("draft_model", _weights(tmp_path, seed))
        engine = _engine(tmp_path, speculative_config=speculative)
        return namespace_of(build_offloading_config(engine, _cache(FULL))).digest

    assert len({digest(None), digest(1), digest(2)}) == 3
    assert digest(1) == digest(1)


def test_a_draft_model_whose_weights_cannot_be_told_has_no_store(tmp_path: Path) -> None:
    _weights(tmp_path, 0, name=".")
    options = {"secondary_tiers": [{"type": "fs", "root_dir": str(tmp_path / "store")}]}
    speculative = _speculative("draft_model", "nobody/has-this-model")
    known = _engine(tmp_path, options={**options, "model_identity": "v1"}, speculative_config=speculative)
    build_offloading_config(known, _cache(FULL))
    text = _refusal(_engine(tmp_path, options=options, speculative_config=speculative), _cache(FULL))
    assert all(word in text for word in ("nobody/has-this-model", "model_identity"))


def test_a_canonical_layout_with_a_draft_model_is_refused(tmp_path: Path) -> None:
    speculative = _speculative("draft_model", _weights(tmp_path, 1))
    engine = _engine(tmp_path, options={"canonical_layout": True}, speculative_config=speculative)
    text = _refusal(engine, _cache(FULL), ConfigError)
    assert all(word in text for word in ("canonical_layout", "draft model", "leave it out"))


def test_a_hash_with_a_random_seed_is_refused(tmp_path: Path) -> None:
    text = _refusal(_engine(tmp_path, prefix_caching_hash_algo="xxhash"), _cache(FULL), ConfigError)
    assert "xxhash" in text
    assert "--prefix-caching-hash-algo sha256" in text


def test_a_seed_that_is_not_declared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    text = _refusal(_engine(tmp_path), _cache(FULL), ConfigError)
    assert "hash_seed='7'" in text
    config = build_offloading_config(_engine(tmp_path, options={"hash_seed": "7"}), _cache(FULL))
    assert config.cache.hash_seed != build_seedless(tmp_path, monkeypatch)


def build_seedless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("PYTHONHASHSEED")
    return build_offloading_config(_engine(tmp_path), _cache(FULL)).cache.hash_seed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cpu_bytes_to_use": "-1"}, ["cpu_bytes_to_use", "'-1'"]),
        ({"cpu_bytes_to_use": 0}, ["needed", "available", "cpu_bytes_to_use"]),
        ({"cpu_bytes_to_use": 4096}, ["needed", "available", "raise cpu_bytes_to_use"]),
        ({"cpu_byte_to_use": 1}, ["unknown option 'cpu_byte_to_use'", "did you mean 'cpu_bytes_to_use'"]),
        ({"block_size": 100}, ["block_size=100", "128", "blocks_per_chunk"]),
        ({"block_size": 128, "blocks_per_chunk": 2}, ["exclude each other"]),
        ({"eviction_policy": "newest"}, ["unknown eviction policy 'newest'", "lru"]),
        ({"spec_name": "NoSpec"}, ["unknown spec 'NoSpec'", "CPUOffloadingSpec"]),
        (
            {"spec_name": "FaultySpec", "spec_module_path": "no.such.module"},
            ["no.such.module", "cannot be loaded"],
        ),
    ],
    ids=str,
)
def test_options_that_are_not_valid_are_refused_with_what_is(
    tmp_path: Path, options: dict[str, Any], words: list[str]
) -> None:
    text = _refusal(_engine(tmp_path, options=options), _cache(FULL), KvError)
    assert all(word in text for word in words), text


# -- real starts ---------------------------------------------------------------------------------------------------


def _refused_start(shelf: Shelf, label: str, settings: EngineSettings) -> str:
    """The log of an engine that must not start."""
    engine = shelf.engine(settings, label)
    try:
        with pytest.raises(EngineError):
            engine.start()
        assert not engine.alive
    finally:
        engine.stop()
    return engine.log()


def _assert_one_line(log: str, *words: str) -> None:
    """One line says it all, within seconds of the connector's first."""
    lines = [
        line
        for line in log.splitlines()
        if "kvoffload.errors." in line and all(word in line for word in words)
    ]
    assert lines, f"no line with {words}:\n" + "\n".join(log.splitlines()[-60:])
    begun = [line for line in log.splitlines() if "Creating v1 connector" in line]
    assert begun, log[-2000:]
    assert _second_of(lines[0]) - _second_of(begun[0]) <= WITHIN_S


def _second_of(line: str) -> int:
    """The time of day of a line of the engine's log."""
    hours, minutes, seconds = re.search(r"(\d\d):(\d\d):(\d\d)", line).groups()
    return 3600 * int(hours) + 60 * int(minutes) + int(seconds)


def _settings(
    shelf: Shelf, *, model: str = "llama", options: dict[str, Any] | None = None, **settings: Any
) -> EngineSettings:
    return EngineSettings(
        model=shelf.model(model),
        kvoffload={"cpu_bytes_to_use": "64MiB", **(options or {})},
        **{"blocks": BLOCKS, **settings},
    )


def test_a_real_start_with_a_random_hash_seed_is_refused(shelf: Shelf) -> None:
    settings = _settings(shelf, mode="serve", engine_args={"prefix_caching_hash_algo": "xxhash"})
    log = _refused_start(shelf, "xxhash", settings)
    _assert_one_line(log, "ConfigError", "xxhash", "--prefix-caching-hash-algo sha256")


def test_a_real_start_with_less_than_one_row_is_refused(shelf: Shelf) -> None:
    log = _refused_start(shelf, "one-row", _settings(shelf, options={"cpu_bytes_to_use": 1000}))
    _assert_one_line(
        log, "RegionSizeError", "needed", "available 1000 bytes", "raise cpu_bytes_to_use to at least"
    )


def test_a_real_start_with_more_than_the_machine_has_is_refused_on_all_workers(shelf: Shelf) -> None:
    log = _refused_start(shelf, "too-big", _settings(shelf, tp=2, options={"cpu_bytes_to_use": "900TiB"}))
    for rank in (0, 1):
        own = "\n".join(line for line in log.splitlines() if f"Worker_TP{rank}" in line)
        _assert_one_line(own, "RegionSizeError", "needed", "available", "cpu_bytes_to_use")


def test_a_real_start_of_a_hybrid_model_with_large_chunks_is_refused(shelf: Shelf) -> None:
    log = _refused_start(
        shelf, "hybrid", _settings(shelf, model="gemma3", blocks=70, options={"blocks_per_chunk": 2})
    )
    _assert_one_line(log, "ConfigError", "chunks of 2 blocks", "leave blocks_per_chunk")
