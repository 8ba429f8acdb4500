"""Specs by name, and from outside of the package by module path, with options of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvoffload.clock import ManualClock
from kvoffload.config.options import OffloadingOptions
from kvoffload.errors import ConfigError
from kvoffload.metrics.recorder import Recorder
from kvoffload.spec.base import OffloadingSpec
from kvoffload.spec.cpu import CPUOffloadingSpec
from kvoffload.spec.factory import OffloadingSpecFactory
from kvoffload.testing.configs import example_config

OUTSIDE = """
from dataclasses import dataclass

from kvoffload.spec.cpu import CPUOffloadingSpec
from kvoffload.config.units import parse_bytes

@dataclass(frozen=True)
class Options:
    depth: int
    label: str = "none"

class MySpec(CPUOffloadingSpec):
    options_type = Options

    def describe(self):
        return f"my spec, depth {self.config.spec_options.depth}"

class NoSpec:
    pass
"""


@pytest.fixture
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "outside_spec_module.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    import sys

    sys.modules.pop("outside_spec_module", None)


def refusal_of(raw: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        OffloadingSpecFactory.parse_options(raw)
    return str(caught.value)


def test_host_memory_alone_is_the_default() -> None:
    options, own = OffloadingSpecFactory.parse_options({"cpu_bytes_to_use": "1MiB"})
    assert (options, own) == (OffloadingOptions(cpu_bytes_to_use=2**20), None)
    assert type(OffloadingSpecFactory.create(example_config(options=options))) is CPUOffloadingSpec


@pytest.mark.usefixtures("_outside")
def test_a_spec_from_outside_gets_its_own_options_parsed_and_is_made() -> None:
    raw: dict[str, object] = {
        "cpu_bytes_to_use": "1MiB",
        "spec_name": "MySpec",
        "spec_module_path": "outside_spec_module",
        "spec_options": {"depth": 3},
    }
    options, own = OffloadingSpecFactory.parse_options(raw)
    assert dataclasses.asdict(own) == {"depth": 3, "label": "none"}  # type: ignore[call-overload]
    spec = OffloadingSpecFactory.create(example_config(options=options, spec_options=own))
    assert isinstance(spec, OffloadingSpec)
    assert spec.describe() == "my spec, depth 3"
    spec.make_manager(Recorder(), ManualClock()).check()


@pytest.mark.usefixtures("_outside")
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"spec_options": {"dept": 3}}, "did you mean 'depth'?"),
        ({"spec_options": {"depth": "3"}}, "depth: '3' is of type str"),
        ({}, "depth must be given"),
        ({"spec_name": "NoSpec"}, "is not a subclass of OffloadingSpec"),
        ({"spec_name": "Missing"}, "cannot be loaded"),
        ({"spec_module_path": "no_such_module"}, "cannot be loaded"),
        ({"spec_name": 3}, "must be texts"),
        ({"spec_module_path": ["x"]}, "must be texts"),
    ],
)
def test_what_is_wrong_with_a_spec_from_outside_is_one_line(changes: dict[str, object], told: str) -> None:
    raw = {"cpu_bytes_to_use": 1, "spec_name": "MySpec", "spec_module_path": "outside_spec_module", **changes}
    message = refusal_of(raw)
    assert told in message
    assert "\n" not in message


def test_an_unknown_spec_lists_the_valid_ones() -> None:
    message = refusal_of({"cpu_bytes_to_use": 1, "spec_name": "GPUOffloadingSpec"})
    assert "CPUOffloadingSpec" in message
    assert "TieringOffloadingSpec" in message


def test_a_built_in_spec_refuses_options_of_a_foreign_one() -> None:
    assert "no options of its own" in refusal_of({"cpu_bytes_to_use": 1, "spec_options": {"depth": 1}})


def test_a_spec_is_abstract_until_all_of_it_is_there() -> None:
    with pytest.raises(TypeError):
        OffloadingSpec(example_config())  # type: ignore[abstract]
