"""Two sets of weights never share an identity, and a copy on another host has the same one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.clock import ManualClock
from kvoffload.connectors.vllm.identity import AdapterIdentities, content_digest, is_certain, model_revision

MEGABYTE = 1 << 20


def _make(path: Path, size: int = 8 * MEGABYTE) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"hidden_size": 512}')
    (path / "model.safetensors").write_bytes(os.urandom(size))
    return path


def test_a_copy_of_a_model_has_the_same_identity(tmp_path: Path) -> None:
    model = _make(tmp_path / "model")
    shutil.copytree(model, tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "README.md").write_text("not a weight")
    assert model_revision(str(model), None) == model_revision(str(tmp_path / "elsewhere"), None)


@pytest.mark.parametrize("place", [0, 0.1, 0.37, 0.5, 0.73, 0.98])
def test_a_layer_that_was_trained_again_gives_another_identity(tmp_path: Path, place: float) -> None:
    model = _make(tmp_path / "model")
    before = content_digest(model)
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(int(place * 8 * MEGABYTE))
        file.write(os.urandom(MEGABYTE // 8))
    assert content_digest(model) != before


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 3 * MEGABYTE])
def test_of_a_small_file_every_byte_counts(tmp_path: Path, size: int) -> None:
    model = _make(tmp_path / "model", size)
    before = content_digest(model)
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[size // 2] ^= 1
    weights.write_bytes(content)
    assert content_digest(model) != before


def test_a_changed_configuration_gives_another_identity(tmp_path: Path) -> None:
    model = _make(tmp_path / "model")
    before = content_digest(model)
    (model / "config.json").write_text('{"hidden_size": 513}')
    assert content_digest(model) != before


def test_a_model_that_is_known_by_its_name_alone_is_not_certain(tmp_path: Path) -> None:
    assert is_certain(model_revision(str(_make(tmp_path / "model")), None))
    assert not is_certain(model_revision("nobody/has-this-model", None))


def test_a_directory_without_weights_is_not_certain(tmp_path: Path) -> None:
    model = _make(tmp_path / "model")
    (model / "model.safetensors").unlink()
    (model / "model.tensors").write_bytes(b"streamed from elsewhere")
    assert not is_certain(model_revision(str(model), None))


def _salt(adapters: AdapterIdentities, clock: ManualClock, adapter_id: int, path: Path) -> bytes | None:
    """What is said when the thread has looked again."""
    clock.advance(10)
    adapters.salt_of(adapter_id, str(path))
    adapters._thread.submit(lambda: None).result()
    return adapters.salt_of(adapter_id, str(path))


def test_an_adapter_that_was_replaced_in_its_place_has_other_keys_under_a_new_id_and_none_under_the_old(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    adapters = AdapterIdentities(clock)
    adapter = _make(tmp_path / "adapter", MEGABYTE)
    assert adapters.salt_of(1, str(adapter)) is None, "it waited for the files"
    first = _salt(adapters, clock, 1, adapter)
    assert first
    assert _salt(adapters, clock, 1, adapter) == first
    (adapter / "model.safetensors").write_bytes(os.urandom(MEGABYTE))
    # Time stamps of files are coarser than this test is quick.
    os.utime(adapter / "model.safetensors", (1, 1))
    assert _salt(adapters, clock, 1, adapter) is None
    assert _salt(adapters, clock, 1, adapter) is None
    assert _salt(adapters, clock, 2, adapter) not in (None, first)


def test_an_adapter_that_cannot_be_seen_has_no_identity(tmp_path: Path) -> None:
    clock = ManualClock()
    adapters = AdapterIdentities(clock)
    assert _salt(adapters, clock, 1, tmp_path / "nowhere") is None
    (tmp_path / "empty").mkdir()
    assert _salt(adapters, clock, 2, tmp_path / "empty") is None


def test_adapters_are_forgotten_beyond_a_bound_and_a_forgotten_one_never_has_an_identity_again(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    adapters = AdapterIdentities(clock, max_adapters=2)
    adapter = _make(tmp_path / "adapter", MEGABYTE)
    salt = _salt(adapters, clock, 1, adapter)
    assert salt
    assert _salt(adapters, clock, 2, adapter) == salt
    assert _salt(adapters, clock, 1, adapter) == salt, "the one that was not asked for the longest goes first"
    assert _salt(adapters, clock, 3, adapter) == salt
    assert len(adapters._known) == 2
    # The engine has the old weights under this id, and nobody knows any more that they were others.
    (adapter / "model.safetensors").write_bytes(os.urandom(MEGABYTE))
    os.utime(adapter / "model.safetensors", (1, 1))
    assert _salt(adapters, clock, 2, adapter) is None
    assert _salt(adapters, clock, 2, tmp_path / "adapter" / ".") is None, "under no path either"
    assert _salt(adapters, clock, 4, adapter) not in (None, salt), "a new id is new"
    assert _salt(adapters, clock, 1, adapter) is None
    assert len(adapters._known) == 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=40))
def test_no_id_is_made_known_twice(ids: list[int]) -> None:
    adapters = AdapterIdentities(ManualClock(), max_adapters=3)
    first: dict[int, object] = {}
    for adapter_id in ids:
        entry = adapters._entry(adapter_id, "path")
        assert len(adapters._known) <= 3
        assert entry is None or first.setdefault(adapter_id, entry) is entry
    adapters.close()
