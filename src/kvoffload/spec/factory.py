"""Specs by name, and the one way in which options and spec come together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kvoffload.config.options import OffloadingOptions
from kvoffload.config.parse import parse_options
from kvoffload.config.schema import OffloadingConfig
from kvoffload.errors import ConfigError
from kvoffload.registry import Registry
from kvoffload.spec.base import OffloadingSpec
from kvoffload.tiers.factory import parse_tiers

_DEFAULT_NAME = "CPUOffloadingSpec"


class OffloadingSpecFactory:
    """Makes specs from configurations; knows the built-in ones and loads others by module path."""

    registry: Registry[OffloadingSpec] = Registry(
        "spec",
        OffloadingSpec,  # type: ignore[type-abstract]
        {
            _DEFAULT_NAME: "kvoffload.spec.cpu:CPUOffloadingSpec",
            "TieringOffloadingSpec": "kvoffload.spec.tiering:TieringOffloadingSpec",
        },
    )

    @classmethod
    def parse_options(cls, raw: Mapping[str, object]) -> tuple[OffloadingOptions, object]:
        """Parse the engine's mapping of options, those of the spec included. Raises ConfigError."""
        name, module_path = raw.get("spec_name", _DEFAULT_NAME), raw.get("spec_module_path")
        if not isinstance(name, str) or not isinstance(module_path, (str, type(None))):
            raise ConfigError(f"spec_name={name!r} and spec_module_path={module_path!r} must be texts")
        spec = cls.registry.resolve(name, module_path)
        rest = {key: value for key, value in raw.items() if key != "secondary_tiers"}
        options, spec_options = parse_options(rest, spec.options_type)
        tiers = parse_tiers(raw.get("secondary_tiers", ()))
        return dataclasses.replace(options, secondary_tiers=tiers), spec_options

    @classmethod
    def create(cls, config: OffloadingConfig) -> OffloadingSpec:
        """Make the spec that the configuration names. Raises ConfigError."""
        return cls.registry.resolve(config.options.spec_name, config.options.spec_module_path)(config)
