"""The object store's client, `obstore`, behind a few verbs. The only file that knows it; its errors end here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from kvoffload.errors import ConfigError
from kvoffload.tiers.obj.address import Address, endpoint_with_bucket, parse_address
from kvoffload.tiers.obj.credentials import file_provider
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.trouble import ObjectError, Trouble, trouble_of

_LIST_CHUNK = 1000
_PART_BYTES = 16 * 1024**2
_PARTS_AT_ONCE = 4
_memory_stores: dict[str, Any] = {}
_memory_lock = threading.Lock()


class ObjectInfo(NamedTuple):
    """One object, as a listing tells of it."""

    name: str
    """Below the store's prefix."""
    size_bytes: int
    modified_s: float
    """Seconds since the epoch, by the store's clock."""


class ObjectClient:
    """Verbs of an object store. All of them block, and raise ObjectError.

    Args:
        store: A store of `obstore`.
    """

    def __init__(self, store: Any) -> None:
        import obstore  # noqa: PLC0415 - an optional dependency: only who has such a tier needs it

        self._obstore: Any = obstore
        self._store = store

    def put(self, name: str, parts: Sequence[memoryview], *, create: bool) -> None:
        """Write one object from its parts, in one request and without a copy. EXISTS: `create`, and it was there."""
        with _mapped():
            mode = "create" if create else "overwrite"
            self._obstore.put(self._store, name, list(parts), mode=mode, use_multipart=False)

    def put_multipart(self, name: str, parts: Sequence[memoryview]) -> None:
        """Write one large object, several parts of it at once. It appears when all of it is there."""
        with _mapped():
            pieces = [
                part[at : at + _PART_BYTES] for part in parts for at in range(0, len(part), _PART_BYTES)
            ]
            options = {"use_multipart": True, "chunk_size": _PART_BYTES, "max_concurrency": _PARTS_AT_ONCE}
            self._obstore.put(self._store, name, pieces, **options)

    def get(self, name: str, start: int, length: int) -> memoryview:
        """Bytes of an object; fewer if it ends before."""
        with _mapped():
            return memoryview(self._obstore.get_range(self._store, name, start=start, length=length))

    def get_whole(self, name: str) -> memoryview:
        """All bytes of an object."""
        with _mapped():
            return memoryview(self._obstore.get(self._store, name).bytes())

    def info(self, name: str) -> ObjectInfo:
        """What the store says about an object."""
        with _mapped():
            return _info(self._obstore.head(self._store, name))

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """What is below a prefix (whole path components), only names behind `after`; in no order."""
        with _mapped():
            options = {"offset": after, "chunk_size": _LIST_CHUNK}
            for page in self._obstore.list(self._store, prefix, **options):
                yield from map(_info, page)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error."""
        with _mapped():
            try:
                self._obstore.delete(self._store, list(names))
            except FileNotFoundError:
                self._delete_one_by_one(names)

    def _delete_one_by_one(self, names: Sequence[str]) -> None:
        # A directory's client stops at the first that is not there.
        for name in names:
            try:
                self._obstore.delete(self._store, name)
            except FileNotFoundError:
                continue


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except (ObjectError, TypeError, AttributeError, NameError, AssertionError):
        # These are bugs of ours, and no answer of a store.
        raise
    except Exception as error:  # noqa: BLE001 - the client raises many kinds, some of them plain Exception
        # `from None`: a traceback would show the client's own text, and that may hold what must not be shown.
        raise trouble_of(error) from None


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())


def open_client(config: ObjTierConfig) -> ObjectClient:
    """Make the client. Raises ConfigError; asks nobody."""
    address = parse_address(config.url)
    try:
        import obstore.store as stores  # noqa: PLC0415 - see above
    except ImportError:
        raise ConfigError("obj tier: the package obstore is missing; pip install 'kvoffload[obj]'") from None
    try:
        return ObjectClient(_MAKERS[address.scheme](stores, address, config))
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        raise ConfigError(
            f"obj tier: url={address.text} cannot be used ({type(error).__name__}); check endpoint, region and credentials"
        ) from None


def _client_options(config: ObjTierConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=config.connect_timeout_s),
        "timeout": timedelta(seconds=config.request_timeout_s),
        "pool_max_idle_per_host": str(2 * config.threads),
        "allow_http": bool(config.endpoint and config.endpoint.startswith("http://")),
    }
    if config.ca_file is not None:
        try:
            options["root_certificate"] = Path(config.ca_file).expanduser().read_bytes()
        except OSError as error:
            raise ConfigError(
                f"obj tier: ca_file={config.ca_file!r} cannot be read: {error.strerror}"
            ) from None
    return options


def _remote_options(address: Address, config: ObjTierConfig) -> dict[str, Any]:
    # Repetitions are ours: they are counted, and share one pause when the store asks for fewer requests.
    options = {"client_options": _client_options(config), "retry_config": {"max_retries": 0}}
    return options | ({"prefix": address.prefix} if address.prefix else {})


def _s3(stores: Any, address: Address, config: ObjTierConfig) -> Any:
    options = _remote_options(address, config)
    if config.endpoint is not None:
        # The client takes an endpoint as it is, also where the bucket belongs into the host's name.
        is_plain = config.path_style
        options["endpoint"] = (
            config.endpoint if is_plain else endpoint_with_bucket(config.endpoint, address.bucket)
        )
    if config.region is not None:
        options["region"] = config.region
    if config.credentials_file is not None:
        options["credential_provider"] = file_provider(config.credentials_file, config.credentials_profile)
    if config.anonymous:
        options["skip_signature"] = True
    return stores.S3Store(
        address.bucket,
        # Chunks carry a checksum of their own: a second one over every byte only to sign it would cost more than sending.
        unsigned_payload=True,
        virtual_hosted_style_request=not config.path_style,
        **options,
    )


def _refuse_endpoint(address: Address, config: ObjTierConfig, variable: str) -> None:
    """An option that would do nothing must not look as if it did."""
    if config.endpoint is not None:
        raise ConfigError(
            f"obj tier: url={address.text} with endpoint={config.endpoint!r}: endpoint is for s3://; remove it, or set the "
            f"environment variable {variable}"
        )


def _gcs(stores: Any, address: Address, config: ObjTierConfig) -> Any:
    _refuse_endpoint(address, config, "GOOGLE_BASE_URL")
    return stores.GCSStore(address.bucket, **_remote_options(address, config))


def _azure(stores: Any, address: Address, config: ObjTierConfig) -> Any:
    _refuse_endpoint(address, config, "AZURE_STORAGE_ENDPOINT")
    return stores.AzureStore(address.bucket, **_remote_options(address, config))


def _directory(stores: Any, address: Address, _config: ObjTierConfig) -> Any:
    return stores.LocalStore(address.prefix, mkdir=True)


def _memory(stores: Any, address: Address, _config: ObjTierConfig) -> Any:
    with _memory_lock:
        return _memory_stores.setdefault(address.text, stores.MemoryStore())


_MAKERS: dict[str, Callable[[Any, Address, ObjTierConfig], Any]] = {
    "s3": _s3,
    "gs": _gcs,
    "az": _azure,
    "file": _directory,
    "memory": _memory,
}
__all__ = ["ObjectClient", "ObjectError", "ObjectInfo", "Trouble", "open_client"]
