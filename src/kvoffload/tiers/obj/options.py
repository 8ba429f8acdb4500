"""The options of the obj tier, with their defaults. No option holds a secret: options stand in command lines and logs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvoffload.config.options import MAX_WAIT_S
from kvoffload.config.units import optional_size_field, size_field
from kvoffload.errors import ConfigError
from kvoffload.layout.chunk_format import HEADER_BYTES
from kvoffload.tiers.obj.address import parse_address

_MAX_THREADS = 256
_ENDPOINT = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")


@dataclass(frozen=True, slots=True)
class ObjTierConfig:
    """Options of one obj tier. Raises ConfigError when made with a value out of range."""

    url: str
    """`s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, `file:///directory`, `memory://name`."""
    name: str = "obj"
    """For logs, metrics and filters; give each tier of an engine its own."""
    endpoint: str | None = None
    """Address of an S3-compatible server, e.g. `https://s3.example.net`; None: the provider's own, or AWS_ENDPOINT_URL."""
    region: str | None = None
    path_style: bool = True
    """`endpoint/bucket/key` (what every server understands) and not `bucket.endpoint/key`."""
    ca_file: str | None = None
    """PEM file of certificates that are trusted besides the system's."""
    credentials_file: str | None = None
    """An AWS credentials file. None: environment variables, web identity, container or machine role, in this order."""
    credentials_profile: str = "default"
    anonymous: bool = False
    """Send no credentials: a bucket that everybody may read."""
    max_bytes: int | None = optional_size_field()
    """Cap of this namespace in the store, of all engines together, as far as they know of each other."""
    ttl_s: float | None = None
    """Objects that were written longer ago are deleted."""
    read_only: bool = False
    """Load only; nothing in the store is changed."""
    pack_bytes: int = size_field("16MiB")
    """Chunks of one store are packed into objects of at most this size, headers not counted. Larger ones are fewer requests,
    and fewer of them at the same time."""
    pack_below_bytes: int = size_field("8MiB")
    """Larger chunks are objects of their own; 0: all are."""
    multipart_bytes: int = size_field("64MiB")
    """Larger objects are uploaded in parts."""
    read_span_bytes: int = size_field("8MiB")
    """Neighbours in a pack are read together, up to this size."""
    range_gap_bytes: int = size_field("256KiB")
    """Where an engine needs parts of its rows only: what a request is worth. Shorter gaps are read in vain to save one; 0: none."""
    threads: int = 16
    """Threads that read and write; also the bound of connections. Stores leave a quarter of them to loads."""
    max_pending_jobs: int = 256
    """Jobs of one direction (loads; stores and deletions) that may wait or run. More are refused."""
    max_pending_bytes: int = size_field("4GiB")
    connect_timeout_s: float = 2.0
    request_timeout_s: float = 5.0
    """One request from its beginning to its last byte."""
    call_deadline_s: float = 8.0
    """One request with all of its repetitions: less than the lane's `deadline_s`, so that a job ends by itself."""
    call_retries: int = 3
    hedge_after_s: float = 0.5
    """A read that takes longer than this, and than most before it, is asked for a second time; 0: never."""
    poll_interval_s: float = 2.0
    """How often the journal is asked for what other engines stored: how long a chunk of theirs may be a miss here."""
    warm_up_s: float = 3.0
    """How long, after the start, lookups wait for the journal before they are misses."""
    reconcile_interval_s: float = 1800.0
    """How often everything is listed: usage set right, what is expired, orphaned or left over removed."""
    orphan_grace_s: float = 3600.0
    """Objects that no journal names are removed when they are older."""
    shutdown_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        parse_address(self.url)
        if self.endpoint is not None and ("@" in self.endpoint or not _ENDPOINT.fullmatch(self.endpoint)):
            raise ConfigError(
                "obj tier: endpoint must be http://host:port or https://host:port, and hold no credentials"
            )
        if not 2 <= self.threads <= _MAX_THREADS:
            raise ConfigError(f"obj tier: threads={self.threads} must be from 2 to {_MAX_THREADS}")
        if self.pack_bytes <= HEADER_BYTES:
            raise ConfigError(f"obj tier: pack_bytes={self.pack_bytes} must be above {HEADER_BYTES}")
        for name in (
            "max_bytes",
            "max_pending_jobs",
            "max_pending_bytes",
            "read_span_bytes",
            "multipart_bytes",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"obj tier: {name}={value} must be at least 1")
        for name in (
            "call_retries",
            "hedge_after_s",
            "pack_below_bytes",
            "range_gap_bytes",
            "warm_up_s",
            "orphan_grace_s",
        ):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"obj tier: {name}={getattr(self, name)} must not be negative")
        self._check_times()

    def _check_times(self) -> None:
        for name in (
            "connect_timeout_s", "request_timeout_s", "call_deadline_s", "poll_interval_s", "reconcile_interval_s",
            "shutdown_timeout_s",
        ):  # fmt: skip
            value = getattr(self, name)
            if not 0 < value <= MAX_WAIT_S:
                raise ConfigError(
                    f"obj tier: {name}={value} must be above 0 and at most {MAX_WAIT_S:.0f} seconds"
                )
        if self.hedge_after_s > MAX_WAIT_S:
            raise ConfigError(
                f"obj tier: hedge_after_s={self.hedge_after_s} must be at most {MAX_WAIT_S:.0f}; 0: never"
            )
        if self.ttl_s is not None and not self.ttl_s > 0:
            raise ConfigError(f"obj tier: ttl_s={self.ttl_s} must be above 0 seconds")
        if self.call_deadline_s < self.request_timeout_s:
            raise ConfigError(
                f"obj tier: call_deadline_s={self.call_deadline_s} must be at least "
                f"request_timeout_s={self.request_timeout_s}: it is for a request with its repetitions"
            )
