"""Credentials from a file in AWS's format. They go to the client and nowhere else: nothing here is printed or kept."""

from __future__ import annotations

import configparser
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from kvoffload.errors import ConfigError

_RENEW_AFTER_S = 300.0
_KEY, _SECRET, _TOKEN = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"


def read_credentials(path: str, profile: str) -> dict[str, str]:
    """The credentials of one profile, in the client's words.

    Raises:
        ConfigError: the file cannot be read or lacks something. Never repeats what stands in the file.
    """
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"obj tier: credentials_file={path!r} cannot be read: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError):
        raise ConfigError(
            f"obj tier: credentials_file={path!r} is no file of [profile] and key = value"
        ) from None
    if not parser.has_section(profile):
        raise ConfigError(f"obj tier: credentials_file={path!r} has no profile {profile!r}")
    section = parser[profile]
    missing = [name for name in (_KEY, _SECRET) if not section.get(name)]
    if missing:
        raise ConfigError(
            f"obj tier: credentials_file={path!r}, profile {profile!r} lacks {', '.join(missing)}"
        )
    found = {"access_key_id": section[_KEY], "secret_access_key": section[_SECRET]}
    return found | ({"token": section[_TOKEN]} if section.get(_TOKEN) else {})


def file_provider(path: str, profile: str) -> Callable[[], Any]:
    """What the client asks for credentials: the file is read again every few minutes, so that it may be rotated."""
    read_credentials(path, profile)

    def provide() -> Any:
        # A file that is being replaced just now may be half there; the client asks again with its next request.
        return {
            **read_credentials(path, profile),
            "expires_at": datetime.now(timezone.utc) + timedelta(seconds=_RENEW_AFTER_S),
        }

    return provide
