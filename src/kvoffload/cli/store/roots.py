"""What a store tool was given: a directory, or the address of an object store."""

from __future__ import annotations

from kvoffload.errors import ConfigError


def is_address(root: str) -> bool:
    """Whether a tool's argument is an object store and no directory."""
    return "://" in root


def directory_of(root: str, tool: str) -> str:
    """The argument of a tool that knows directories only. Raises ConfigError, which does not repeat what may be a secret."""
    if is_address(root):
        raise ConfigError(
            f"{tool}: this is the address of an object store, and {tool} looks at directories only; give the root_dir of an fs "
            "tier, or ask the store by du, gc or doctor --obj"
        )
    return root
