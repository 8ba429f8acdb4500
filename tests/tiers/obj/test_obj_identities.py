"""Credentials that nobody writes down: a web identity (as Kubernetes gives one), and those of a container.

The server, its STS and its S3, is real; TLS before its STS is a proxy's, because the client asks an STS by TLS only.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import FaultyProxy
from identity_issuer import IdentityIssuer
from obj_support import drive, open_tier
from s3_server import ACCESS_KEY, BUCKET, ROLE, SECRET_KEY, S3Server

from kvoffload.errors import ConfigError
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome

pytestmark = pytest.mark.services
FIXTURES = Path(__file__).parent / "fixtures"
DONE, FAILED = Outcome.DONE, Outcome.FAILED
_EXPIRATION = re.compile(rb"<Expiration>[^<]*</Expiration>")


@pytest.fixture
def sts(s3: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3.port, certificate=FIXTURES / "server.pem") as proxy:
        yield proxy


@pytest.fixture
def token_file(
    tmp_path: Path, sts: FaultyProxy, issuer: IdentityIssuer, monkeypatch: pytest.MonkeyPatch
) -> Path:
    path = tmp_path / "token"
    path.write_text(issuer.token("engine"))
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(path))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.endpoint)
    return path


@pytest.fixture
def options(s3: S3Server) -> dict[str, Any]:
    """Of a tier that is given no credentials."""
    return {
        "endpoint": s3.endpoint,
        "region": "us-east-1",
        "ca_file": str(FIXTURES / "ca.pem"),
        "poll_interval_s": 30.0,
    }


def ends_soon(answer: bytes) -> bytes:
    """The same credentials; but they are to be renewed before the next request."""
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
    return _EXPIRATION.sub(f"<Expiration>{soon}</Expiration>".encode(), answer)


def test_a_web_identity_is_exchanged_once_for_credentials(
    token_file: Path, sts: FaultyProxy, options: dict[str, Any]
) -> None:
    driver = drive(open_tier(f"s3://{BUCKET}/web-identity", **options))
    keys = make_keys(5)
    assert driver.store(keys) == [DONE] * 5
    assert driver.load(keys) == [DONE] * 5
    assert sts.count("POST", "AssumeRoleWithWebIdentity") == 1, "they hold for an hour"
    driver.tier.shutdown()


def test_credentials_that_end_are_renewed_with_the_token_of_the_day(
    token_file: Path, sts: FaultyProxy, options: dict[str, Any], issuer: IdentityIssuer
) -> None:
    sts.change = ends_soon
    driver = drive(open_tier(f"s3://{BUCKET}/renewed", **options))
    keys = make_keys(3)
    assert driver.store(keys) == [DONE] * 3
    driver.until(lambda: driver.load(keys) == [DONE] * 3 and sts.count("POST") > 1, "never renews them")
    token_file.write_text(issuer.token("engine", lasts_s=-60))
    driver.until(lambda: driver.load(keys) == [FAILED] * 3, "does not read the token again")
    token_file.write_text(issuer.token("engine"))
    driver.until(lambda: driver.load(keys) == [DONE] * 3, "does not recover")
    driver.tier.shutdown()


@pytest.mark.parametrize("wrong", ["expired", "forged", "absent"])
def test_a_token_that_nobody_trusts_is_an_error_that_does_not_show_it(
    token_file: Path,
    options: dict[str, Any],
    issuer: IdentityIssuer,
    wrong: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = issuer.token("engine", lasts_s=-60 if wrong == "expired" else 600)
    if wrong == "forged":
        token = token[:-8] + "AAAAAAAA"
    token_file.write_text(token)
    if wrong == "absent":
        token_file.unlink()
    shown = []
    with caplog.at_level(logging.DEBUG):
        try:
            driver = drive(open_tier(f"s3://{BUCKET}/untrusted", **options, call_retries=0))
            assert driver.load(make_keys(2)) != [DONE] * 2
            shown.append(repr(driver.tier.stats()))
            driver.tier.shutdown()
        except ConfigError as error:
            shown.append(str(error))
    shown.append(caplog.text)
    assert "obj tier" in "".join(shown)
    assert not any(part in text for text in shown for part in token.split("."))


@contextmanager
def container_endpoint(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[list[str | None]]:
    """What a container's host offers: credentials for who shows its token. Yields the tokens that were shown."""
    shown: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization"))
            ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
            found = {
                "AccessKeyId": ACCESS_KEY,
                "SecretAccessKey": SECRET_KEY,
                "Token": "",
                "Expiration": ends,
            }
            text = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    (folder / "pod-token").write_text("token-of-the-pod")
    monkeypatch.setenv(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.server_address[1]}/v1"
    )
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(folder / "pod-token"))
    try:
        yield shown
    finally:
        server.shutdown()
        server.server_close()


def test_a_container_gets_its_credentials_from_its_host(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with container_endpoint(monkeypatch, tmp_path) as shown:
        driver = drive(open_tier(f"s3://{BUCKET}/container", **options))
        assert driver.store(make_keys(3)) == [DONE] * 3
        assert driver.load(make_keys(3)) == [DONE] * 3
        driver.tier.shutdown()
    assert shown == ["token-of-the-pod"]
