"""TLS, with a certificate that only the tier's own `ca_file` makes trustworthy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import FaultyProxy
from obj_support import drive, open_tier
from s3_server import BUCKET, S3Server

from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome

pytestmark = pytest.mark.services
FIXTURES = Path(__file__).parent / "fixtures"
URL = f"s3://{BUCKET}/tls"


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3.port, certificate=FIXTURES / "server.pem") as proxy:
        yield proxy


def test_a_private_authority_is_trusted_when_it_is_given(
    proxy: FaultyProxy, s3_options: dict[str, Any]
) -> None:
    options = {**s3_options, "endpoint": proxy.endpoint, "ca_file": str(FIXTURES / "ca.pem")}
    driver = drive(open_tier(URL, **options))
    keys = make_keys(5)
    assert driver.store(keys) == [Outcome.DONE] * 5
    assert driver.load(keys) == [Outcome.DONE] * 5
    driver.tier.shutdown()


def test_an_unknown_authority_gets_nothing(
    proxy: FaultyProxy, s3_options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    options = {**s3_options, "endpoint": proxy.endpoint, "call_retries": 0}
    driver = drive(open_tier(URL, **options))
    assert driver.store(make_keys(5)) == [Outcome.FAILED] * 5
    assert proxy.seen == [], "a request was sent before the certificate was checked"
    assert "cannot be reached" in caplog.text
    driver.tier.shutdown()
