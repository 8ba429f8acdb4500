"""What an object store may answer instead of doing what it was asked: a closed list, and texts that hold no secrets."""

from __future__ import annotations

import re
from enum import Enum

from kvoffload.errors import KvError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_HTTP_KIND = re.compile(r"kind: (Connect|Request|Timeout|Interrupted|Decode)\b")
_BEYOND = "but object was only"
"""What the client says of its own stores in memory and in directories."""
_SKEWED_CODES = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_EXPIRED_CODES = frozenset({"ExpiredToken", "TokenRefreshRequired", "ExpiredTokenException"})
_THROTTLED_CODES = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "ServerBusy"}
)

_ABSENT_CODES = frozenset({"NoSuchKey", "NoSuchUpload", "NoSuchBucket"})
_UNSUPPORTED_CODES = frozenset({"NotImplemented", "MethodNotAllowed"})


class Trouble(Enum):
    """Kinds of trouble; the names are those of the counters."""

    MISSING = "missing"
    """There is no such object."""
    SHORT = "short"
    """The object ends before the range that was asked for."""
    EXISTS = "exists"
    """A conditional put was too late."""
    NO_BUCKET = "no_bucket"
    THROTTLED = "throttled"
    """The store asks for fewer requests (429, 503)."""
    DENIED = "denied"
    """401, 403: these credentials may not do that."""
    EXPIRED = "expired_credentials"
    SKEWED = "clock_skew"
    """The store finds this machine's clock too far off to accept a signature."""
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    """No connection, or it was cut."""
    SERVER = "server_error"
    """Another 5xx."""
    UNSUPPORTED = "not_supported"
    OTHER = "other"
    """Also an answer that makes no sense: perhaps the next one does."""


PASSING = frozenset({Trouble.THROTTLED, Trouble.TIMEOUT, Trouble.UNREACHABLE, Trouble.SERVER, Trouble.OTHER})
"""What another try may not meet again."""
REFUSED = frozenset({Trouble.DENIED, Trouble.EXPIRED, Trouble.SKEWED, Trouble.NO_BUCKET})
"""What does not pass by itself soon."""


_MENDING = {
    Trouble.DENIED: "check the credentials, and that they may get, put, list and delete",
    Trouble.EXPIRED: "renew the credentials",
    Trouble.SKEWED: "set this machine's clock (NTP)",
    Trouble.NO_BUCKET: "make the bucket, or check its name, the endpoint and the region",
    Trouble.UNREACHABLE: "check the endpoint, the network, and TLS (ca_file)",
    Trouble.TIMEOUT: "check the network, or give a longer request_timeout_s",
}


class ObjectError(KvError):
    """An object store did not do what it was asked.

    Its text is made of the kind, the HTTP status and the store's error code and of nothing else: the client's own text
    may hold addresses with signatures.
    """

    def __init__(self, trouble: Trouble, detail: str = "") -> None:
        super().__init__(f"{trouble.value}{f' ({detail})' if detail else ''}")
        self.trouble = trouble

    @property
    def remedy(self) -> str:
        """What a person may do about it."""
        return _MENDING.get(self.trouble, "look at the store's own log")


def trouble_of(error: BaseException) -> ObjectError:
    """What an exception of the client means; its text is not carried along."""
    name = type(error).__name__
    text = str(error)
    status, code, kind = (_first(pattern, text) for pattern in (_STATUS, _CODE, _HTTP_KIND))
    detail = " ".join(part for part in (f"HTTP {status}" if status else "", code) if part)
    if _BEYOND in text:
        return ObjectError(Trouble.SHORT)
    return ObjectError(_by_name(name, code) or _by_answer(status, code, kind, name), detail)


def trouble_of_answer(status: int, code: str) -> ObjectError:
    """What an answer of a store means.

    Args:
        status: Of HTTP; 0: unknown.
        code: The store's own; letters and digits only.
    """
    detail = " ".join(part for part in (f"HTTP {status}" if status else "", code) if part)
    if code in _ABSENT_CODES or status == 404:
        return ObjectError(Trouble.NO_BUCKET if code == "NoSuchBucket" else Trouble.MISSING, detail)
    if code in _UNSUPPORTED_CODES or status in (405, 501):
        return ObjectError(Trouble.UNSUPPORTED, detail)
    return ObjectError(_by_name("", code) or _by_answer(str(status), code, "", ""), detail)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found else ""


def _by_name(name: str, code: str) -> Trouble | None:
    if code == "NoSuchBucket":
        return Trouble.NO_BUCKET
    if code in _SKEWED_CODES:
        return Trouble.SKEWED
    if code in _EXPIRED_CODES:
        return Trouble.EXPIRED
    if name in ("FileNotFoundError", "NotFoundError"):
        return Trouble.MISSING
    if name == "AlreadyExistsError":
        return Trouble.EXISTS
    if name in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError"):
        return Trouble.DENIED
    return Trouble.UNSUPPORTED if name in ("NotSupportedError", "NotImplementedError") else None


def _by_answer(status: str, code: str, kind: str, name: str) -> Trouble:
    if code in _THROTTLED_CODES or status in ("429", "503"):
        return Trouble.THROTTLED
    if status == "416":
        return Trouble.SHORT
    if status in ("401", "403"):
        return Trouble.DENIED
    if status in ("409", "412", "304"):
        return Trouble.EXISTS
    if status.startswith("5"):
        return Trouble.SERVER
    if kind == "Timeout" or name == "TimeoutError":
        return Trouble.TIMEOUT
    return Trouble.UNREACHABLE if kind else Trouble.OTHER
