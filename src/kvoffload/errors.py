"""The errors of this project: a small tree, mapped at the edges.

A bug is an `assert` with its values; what the world does wrong is a `KvError`. Every message is one line
that says what is wrong, what was found, what is valid and how to mend it.
"""


class KvError(Exception):
    """Base of everything that the world (not a bug) can do wrong."""


class ConfigError(KvError, ValueError):
    """An option or a combination of options is not valid."""


class UnsupportedModelError(ConfigError):
    """The model or its parallel layout cannot be offloaded by this version; starting would not be safe."""


class EngineContractError(KvError):
    """The engine's interface is not the one this connector was written for."""


class RegionError(KvError):
    """The host region cannot be made, mapped or joined."""


class RegionSizeError(RegionError):
    """The host region does not fit the machine, its control group or one single row."""


class RegionJoinError(RegionError):
    """A process could not join the host region before the deadline, or another one failed."""
