"""Parts by name: built-in, registered, or out of tree by module path; everything else is a ConfigError."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvoffload.errors import ConfigError
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.lru import LRUPolicy
from kvoffload.registry import Registry

OUTSIDE = """
from kvoffload.policies.lru import LRUPolicy

class MyPolicy(LRUPolicy):
    pass

class NoPolicy:
    pass

def make_policy(capacity):
    return MyPolicy(capacity)
"""


@pytest.fixture
def registry() -> Registry[EvictionPolicy]:
    return Registry("eviction policy", EvictionPolicy, {"lru": "kvoffload.policies.lru:LRUPolicy"})  # type: ignore[type-abstract]


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_policies.py").write_text(OUTSIDE)
    (tmp_path / "broken_by_syntax.py").write_text("def")
    (tmp_path / "broken_by_value.py").write_text("raise ValueError('no licence')")
    (tmp_path / "broken_by_import.py").write_text("import there_is_no_such_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith(("outside_", "broken_by_"))]:
        del sys.modules[name]


def test_a_part_is_found_by_its_name(registry: Registry[EvictionPolicy]) -> None:
    assert registry.resolve("lru") is LRUPolicy
    assert registry.names() == ("lru",)


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    registry = Registry("policy", EvictionPolicy, {"mine": "outside_policies:MyPolicy"})  # type: ignore[type-abstract]
    assert "outside_policies" not in sys.modules
    assert registry.resolve("mine").__name__ == "MyPolicy"


def test_a_part_from_outside_is_found_by_module_path(registry: Registry[EvictionPolicy]) -> None:
    found = registry.resolve("MyPolicy", "outside_policies")
    assert found.__module__ == "outside_policies"
    assert issubclass(found, LRUPolicy)


def test_a_part_from_outside_is_found_by_one_text(registry: Registry[EvictionPolicy]) -> None:
    assert registry.resolve("outside_policies:MyPolicy") is registry.resolve("MyPolicy", "outside_policies")
    for name in ("outside_policies:", ":MyPolicy", "outside_policies:My:Policy", "nowhere:MyPolicy"):
        with pytest.raises(ConfigError, match="cannot be loaded"):
            registry.resolve(name)


def test_a_class_that_lacks_methods_is_refused_with_their_names(registry: Registry[EvictionPolicy]) -> None:
    with pytest.raises(ConfigError, match="lacks __len__, clear, evict"):
        registry.resolve("kvoffload.policies.base:EvictionPolicy")


def test_a_module_path_wins_over_a_built_in_name(registry: Registry[EvictionPolicy]) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        registry.resolve("lru", "outside_policies")


def test_an_unknown_name_lists_the_valid_ones(registry: Registry[EvictionPolicy]) -> None:
    registry.register("mine", "outside_policies:MyPolicy")
    with pytest.raises(
        ConfigError, match=r"unknown eviction policy 'lfu'; valid: lru, mine, or one of your own"
    ):
        registry.resolve("lfu")


def test_a_name_is_registered_once(registry: Registry[EvictionPolicy]) -> None:
    registry.register("mine", "outside_policies:MyPolicy")
    assert registry.resolve("mine").__name__ == "MyPolicy"
    for name in ("mine", "lru"):
        with pytest.raises(ConfigError, match="registered already"):
            registry.register(name, "outside_policies:NoPolicy")


@pytest.mark.parametrize("name", ["NoPolicy", "make_policy"])
def test_a_part_of_another_kind_is_refused(registry: Registry[EvictionPolicy], name: str) -> None:
    with pytest.raises(ConfigError, match=f"'outside_policies:{name}' is not a subclass of EvictionPolicy"):
        registry.resolve(name, "outside_policies")


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("MyPolicy", "there_is_no_such_module"),
        ("MyPolicy", "broken_by_syntax"),
        ("MyPolicy", "broken_by_value"),
        ("MyPolicy", "broken_by_import"),
        ("MyPolicy", ""),
        ("MyPolicy", "."),
        ("MyPolicy", ".relative"),
        ("Missing", "outside_policies"),
        ("", "outside_policies"),
    ],
)
def test_whatever_goes_wrong_while_loading_is_a_config_error(
    registry: Registry[EvictionPolicy], name: str, module: str
) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        registry.resolve(name, module)


def test_an_error_can_say_where_the_name_stood(registry: Registry[EvictionPolicy]) -> None:
    assert registry.find("lru", None, "options: policy") is LRUPolicy
    with pytest.raises(ConfigError, match=r"^options: policy: unknown eviction policy 'x'"):
        registry.find("x", None, "options: policy")
