"""An object store as tools see it: its namespaces, without an engine that knows how long their chunks are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvoffload.clock import Clock, MonotonicClock, WallClock
from kvoffload.errors import ConfigError
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import ALIGNMENT_BYTES, HEADER_BYTES
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.namespace_text import parse_namespace
from kvoffload.tiers.obj.address import parse_address
from kvoffload.tiers.obj.announcer import Announcer
from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.caller import Caller, CallLimits
from kvoffload.tiers.obj.catalogue import Catalogue
from kvoffload.tiers.obj.client import open_client
from kvoffload.tiers.obj.follower import Follower
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.place import ObjPlace
from kvoffload.tiers.obj.room import Room
from kvoffload.tiers.obj.sweeping import Sweeper
from kvoffload.tiers.obj.trouble import ObjectError

_NAMESPACE_FILE = "/namespace.json"


class _AnyLengthPlace(ObjPlace):
    """Names only: of what length the chunks are, their journal says."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace, (ALIGNMENT_BYTES,))

    def is_length_of(self, key: OffloadKey, length: int) -> bool:
        """Whether a chunk may have this length with header and padding."""
        del key
        return length > HEADER_BYTES and length % ALIGNMENT_BYTES == 0


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """One namespace, and what looks at it and tidies it."""

    name: str
    around: Around
    sweeper: Sweeper
    follower: Follower


class StoreView:
    """The namespaces below a url.

    Args:
        config: Where, and with what bounds (`max_bytes` and `ttl_s` are of each namespace).
        wall_clock: Tests move it.

    Raises:
        ConfigError: the store does not answer.
    """

    def __init__(self, config: ObjTierConfig, wall_clock: Clock | None = None) -> None:
        self._config = config
        self._clock = MonotonicClock()
        self._wall_clock = wall_clock or WallClock()
        self.counters = Counters()
        limits = CallLimits.of(config)
        address = parse_address(config.url)
        self.address = address.text
        if address.scheme == "file" and not Path(address.prefix).is_dir():
            # The client would make it, and a tool that looks changes nothing.
            raise ConfigError(f"{self.address} does not exist; give the directory of an obj tier")
        self.caller = Caller(open_client(config), limits, self._clock, self.counters, config.name)
        try:
            self._listed = [info.name for info in self.caller.list("")]
        except ObjectError as error:
            raise ConfigError(f"{self.address} cannot be used: {error}; {error.remedy}") from None

    @property
    def foreign(self) -> int:
        """How many objects are in no namespace of ours; they are never touched."""
        bases = {view.split("/")[0] for view in self._listed if self._namespace_of(view.split("/")[0])}
        return sum(name.split("/")[0] not in bases for name in self._listed)

    def select(self, wanted: str | None) -> list[NamespaceView]:
        """The namespaces, or the one that is called so, or begins so. Raises ConfigError: none does, or several do."""
        bases = sorted({name.removesuffix(_NAMESPACE_FILE) for name in self._listed if self._is_file(name)})
        found = [(base, namespace) for base in bases if (namespace := self._namespace_of(base)) is not None]
        if wanted is not None:
            found = [
                (base, namespace)
                for base, namespace in found
                if base.startswith(wanted) or namespace.digest.startswith(wanted)
            ]
            if len(found) != 1:
                what = "no namespace" if not found else f"{len(found)} namespaces"
                raise ConfigError(
                    f"{self.address}: {wanted!r} names {what}; there are: {', '.join(bases) or 'none'}"
                )
        return [self._view(base, namespace) for base, namespace in found]

    @staticmethod
    def _is_file(name: str) -> bool:
        return name.count("/") == 1 and name.endswith(_NAMESPACE_FILE)

    def _namespace_of(self, base: str) -> Namespace | None:
        """The namespace that a name says it is; None if it does not fit its own digest: it is not ours then."""
        if f"{base}{_NAMESPACE_FILE}" not in self._listed:
            return None
        try:
            found = parse_namespace(bytes(self.caller.get_whole(f"{base}{_NAMESPACE_FILE}")))
        except ObjectError:
            return None
        return found if found is not None and found.directory_name == base else None

    def _view(self, base: str, namespace: Namespace) -> NamespaceView:
        around = Around(
            self._config,
            self.caller,
            _AnyLengthPlace(namespace),
            Catalogue(),
            self.counters,
            self._clock,
            self._wall_clock,
        )
        announcer = Announcer(self.caller, around.place, self._wall_clock)
        follower = Follower(around, announcer)
        return NamespaceView(
            base, around, Sweeper(around, announcer, follower, Room(around, announcer)), follower
        )
