"""Names to classes, loaded when asked for; the one way in which specs and policies are found.

Adding an implementation of your own needs no change here: give `package.module:Class` as its name, or the module path beside
the name of the class.
"""

from __future__ import annotations

import importlib
from typing import Generic, TypeVar

from kvoffload.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Lazy table name → class of one kind of part.

    Args:
        kind: What the parts are, for messages ("spec", "eviction policy").
        base: The class every part must derive from.
        builtin: name → "module:Class" of the parts that ship with the package.
    """

    def __init__(self, kind: str, base: type[T], builtin: dict[str, str]) -> None:
        self._kind = kind
        self._base = base
        self._paths = dict(builtin)

    def names(self) -> tuple[str, ...]:
        """Sorted names of the registered parts."""
        return tuple(sorted(self._paths))

    def register(self, name: str, path: str) -> None:
        """Add a part under `name`; `path` is "module:Class". Raises ConfigError if the name is taken."""
        if name in self._paths:
            raise ConfigError(f"{self._kind} {name!r} is registered already as {self._paths[name]!r}")
        self._paths[name] = path

    def find(self, name: str, module_path: str | None, where: str) -> type[T]:
        """As `resolve`; the message of an error begins with `where`."""
        try:
            return self.resolve(name, module_path)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error

    def resolve(self, name: str, module_path: str | None = None) -> type[T]:
        """Return the class called `name`, from `module_path` if given, else from the registry.

        Without a module path `name` may also be "package.module:Class".

        Raises:
            ConfigError: unknown name, module that cannot be imported, or a class of another kind or with methods missing.
        """
        if module_path is not None:
            path = f"{module_path}:{name}"
        elif name in self._paths:
            path = self._paths[name]
        elif ":" in name:
            path = name
        else:
            raise ConfigError(
                f"unknown {self._kind} {name!r}; valid: {', '.join(self.names())}, or one of your own as package.module:Class"
            )
        return self._load(path)

    def _load(self, path: str) -> type[T]:
        module_name, _, class_name = path.partition(":")
        try:
            found = getattr(importlib.import_module(module_name), class_name)
        except Exception as error:  # whatever a foreign module raises while it is imported
            raise ConfigError(f"{self._kind} {path!r} cannot be loaded: {error}") from error
        if not (isinstance(found, type) and issubclass(found, self._base)):
            raise ConfigError(f"{self._kind} {path!r} is not a subclass of {self._base.__qualname__}")
        if missing := getattr(found, "__abstractmethods__", None):
            raise ConfigError(f"{self._kind} {path!r} lacks {', '.join(sorted(missing))}")
        return found
