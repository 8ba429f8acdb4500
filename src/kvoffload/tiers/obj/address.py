"""Where an object store is: the url of the options, checked without asking anybody."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from kvoffload.errors import ConfigError

SCHEMES = ("s3", "gs", "az", "file", "memory")
_VALID = (
    "valid: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory, memory://name"
)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_PREFIX_PART = re.compile(r"[A-Za-z0-9!_.*'()=+@ -]+")


@dataclass(frozen=True, slots=True)
class Address:
    """A store and a place in it."""

    scheme: str
    bucket: str
    """Empty for a directory."""
    prefix: str
    """Without slashes at its ends; of a directory its absolute path."""

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.scheme}://{self.bucket}{'/' if self.prefix and self.bucket else ''}{self.prefix}"


def parse_address(url: str) -> Address:
    """Read a url. Raises ConfigError, which never shows what may be a secret."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        # What it says may be anything, also a key: it is not repeated.
        raise ConfigError(f"obj tier: the url does not begin with a known scheme; {_VALID}")
    if scheme == "file":
        if not rest.startswith("/") or rest.strip("/") == "":
            raise ConfigError(f"obj tier: url={url!r} must name an absolute directory below /; {_VALID}")
        return Address(scheme, "", "/" + unquote(rest).strip("/"))
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(
            f"obj tier: a url with credentials in it ({scheme}://…@…) is refused, as it stands in command lines and logs; "
            "give them by environment variables, a credentials_file or a workload identity"
        )
    if parts.query or parts.fragment:
        raise ConfigError(
            f"obj tier: the url {scheme}://{parts.netloc}… has something behind '?' or '#'; give options of their own"
        )
    if not _BUCKET.fullmatch(parts.netloc):
        raise ConfigError(f"obj tier: {parts.netloc!r} is no name of a bucket; {_VALID}")
    prefix = parts.path.strip("/")
    for part in prefix.split("/") if prefix else ():
        if part in (".", "..") or not _PREFIX_PART.fullmatch(part):
            raise ConfigError(f"obj tier: {part!r} cannot be part of a prefix; use letters, digits and - _ .")
    return Address(scheme, parts.netloc, prefix)


def endpoint_with_bucket(endpoint: str, bucket: str) -> str:
    """`https://bucket.s3.example.net` of `https://s3.example.net`: how a store is addressed where the bucket is in the host.

    Raises:
        ConfigError: the endpoint has no name, but an address in numbers.
    """
    scheme, _, rest = endpoint.partition("://")
    host = urlsplit(endpoint).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"{scheme}://{bucket}.{rest}"
    raise ConfigError(
        f"obj tier: path_style=false puts the bucket before the endpoint's name, but endpoint={endpoint!r} has a number; give "
        "a name, or leave path_style as it is"
    )
