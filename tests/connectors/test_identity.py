"""Two sets of weights never share an identity, and a copy on another host has the same one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

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


def test_an_adapter_that_was_replaced_in_its_place_has_other_keys(tmp_path: Path) -> None:
    adapters = AdapterIdentities()
    adapter = _make(tmp_path / "adapter", MEGABYTE)
    first = adapters.salt_of(str(adapter))
    assert first
    assert adapters.salt_of(str(adapter)) == first
    (adapter / "model.safetensors").write_bytes(os.urandom(MEGABYTE))
    assert adapters.salt_of(str(adapter)) not in (None, first)


def test_an_adapter_that_cannot_be_seen_has_no_identity(tmp_path: Path) -> None:
    assert AdapterIdentities().salt_of(str(tmp_path / "nowhere")) is None
    (tmp_path / "empty").mkdir()
    assert AdapterIdentities().salt_of(str(tmp_path / "empty")) is None
