"""Uploads in parts that never ended: what the store keeps of them, seen and removed through a second client, `botocore`.

The tier's own client can neither list nor end uploads of others. For tools only: an engine never needs this.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

from kvoffload.tiers.obj.address import Address, parse_address
from kvoffload.tiers.obj.credentials import read_credentials
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.trouble import ObjectError, Trouble, trouble_of_answer

_MAX_UPLOADS = 100_000
_CODE = re.compile(r"\w{1,64}")
_REGION = "us-east-1"
_OTHER_STORES = {
    "gs": "looks for them in S3 only: give the bucket a rule AbortIncompleteMultipartUpload",
    "az": "looks for them in S3 only: Azure drops blocks that were never committed after a week",
    "file": "looks for them in S3 only",
    "memory": "looks for them in S3 only",
}


class Unseen(NamedTuple):
    """Uploads cannot be looked for."""

    reason: str


class Upload(NamedTuple):
    """One upload that has not ended."""

    name: str
    """Of the object that it would become, below the store's prefix."""
    upload_id: str
    began_s: float
    """Seconds since the epoch, by the store's clock."""


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """What there is, and what is to be ended."""

    left: tuple[Upload, ...]
    """Ours, and older than the grace."""
    young: int
    """Ours; perhaps somebody is still writing them."""
    foreign: int
    """Below the prefix, and not ours: never touched."""


class Uploads:
    """The uploads below a prefix that have not ended. Every verb blocks, and raises ObjectError.

    Args:
        client: A client of `botocore`.
        address: The store.
    """

    def __init__(self, client: Any, address: Address) -> None:
        self._client = client
        self._bucket = address.bucket
        self._prefix = f"{address.prefix}/" if address.prefix else ""

    def plan(self, is_ours: Callable[[str], bool], grace_s: float) -> UploadPlan:
        """Look at all of them.

        Args:
            is_ours: Whether an object of this name can only be one of ours.
            grace_s: Younger ones are left alone.
        """
        with _mapped():
            found, now_s = self._list()
        ours = [upload for upload in found if is_ours(upload.name)]
        # Without the store's time nothing is old.
        left = tuple(upload for upload in ours if now_s is not None and upload.began_s <= now_s - grace_s)
        return UploadPlan(left, len(ours) - len(left), len(found) - len(ours))

    def abort(self, upload: Upload) -> None:
        """Remove what is there of an upload; one that ended meanwhile is no error."""
        key = self._prefix + upload.name
        try:
            with _mapped():
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload.upload_id)
        except ObjectError as error:
            if error.trouble is not Trouble.MISSING:
                raise

    def _list(self) -> tuple[list[Upload], float | None]:
        """(uploads, the store's time)."""
        found: list[Upload] = []
        now_s: float | None = None
        pages = self._client.get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
            date = page["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
            now_s = now_s or (parsedate_to_datetime(date).timestamp() if date else None)
            found += _uploads_of(page, self._prefix)
            if len(found) > _MAX_UPLOADS:
                break
        return found, now_s


def _uploads_of(page: Mapping[str, Any], prefix: str) -> Iterator[Upload]:
    for one in page.get("Uploads", ()):
        key, began = one["Key"], one["Initiated"]
        # A server may be generous with what has the prefix.
        if key.startswith(prefix) and isinstance(began, datetime):
            yield Upload(key[len(prefix) :], one["UploadId"], began.timestamp())


def open_uploads(config: ObjTierConfig, environment: Mapping[str, str]) -> Uploads | Unseen:
    """What looks at uploads, by the same address and credentials as the tier; asks nobody.

    Raises:
        ConfigError: the credentials file cannot be used.
    """
    address = parse_address(config.url)
    if address.scheme != "s3":
        return Unseen(_OTHER_STORES[address.scheme])
    try:
        import botocore.session  # noqa: PLC0415 - an optional dependency of one tool
    except ImportError:
        return Unseen("needs a second client: pip install 'kvoffload[obj-sweep]'")
    # Its debug log shows signatures and tokens.
    logging.getLogger("botocore").setLevel(logging.INFO)
    session = botocore.session.Session()
    # As the tier: nobody's home directory says where a store is, and who asks.
    for name in ("config_file", "credentials_file"):
        session.set_config_variable(name, os.devnull)
    session.set_config_variable("profile", None)
    with _mapped():
        return Uploads(_client(session, config, environment), address)


def _client(session: Any, config: ObjTierConfig, environment: Mapping[str, str]) -> Any:
    import botocore  # noqa: PLC0415 - see above
    from botocore.config import Config  # noqa: PLC0415

    own: dict[str, str] = {}
    if config.credentials_file is not None:
        found = read_credentials(config.credentials_file, config.credentials_profile)
        names = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key"}
        own = {names.get(name, "aws_session_token"): value for name, value in found.items()}
    settings = Config(
        connect_timeout=config.connect_timeout_s,
        read_timeout=config.request_timeout_s,
        retries={"total_max_attempts": config.call_retries + 1},
        s3={"addressing_style": "path" if config.path_style else "virtual"},
        **({"signature_version": botocore.UNSIGNED} if config.anonymous else {}),
    )
    region = config.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return session.create_client(
        "s3",
        endpoint_url=config.endpoint,
        region_name=region or _REGION,
        verify=str(Path(config.ca_file).expanduser()) if config.ca_file else None,
        config=settings,
        **own,
    )


@contextmanager
def _mapped() -> Iterator[None]:
    import botocore.exceptions as errors  # noqa: PLC0415 - see above

    try:
        yield
    except errors.ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = str(error.response.get("Error", {}).get("Code", ""))
        # `from None`: its text may hold what must not be shown.
        raise trouble_of_answer(int(status), code if _CODE.fullmatch(code) else "") from None
    except (errors.ConnectTimeoutError, errors.ReadTimeoutError):
        raise ObjectError(Trouble.TIMEOUT) from None
    except errors.HTTPClientError:
        raise ObjectError(Trouble.UNREACHABLE) from None
    except (errors.NoCredentialsError, errors.CredentialRetrievalError):
        raise ObjectError(Trouble.DENIED, "no credentials") from None
    except errors.BotoCoreError as error:
        raise ObjectError(Trouble.OTHER, type(error).__name__) from None
