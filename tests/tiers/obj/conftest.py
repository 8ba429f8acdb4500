"""One S3 server for all tests that want one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from identity_issuer import IdentityIssuer
from s3_server import ROLE, S3Server


@pytest.fixture(scope="session")
def issuer() -> Iterator[IdentityIssuer]:
    issuer = IdentityIssuer()
    yield issuer
    issuer.stop()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory, issuer: IdentityIssuer) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"), identities=issuer.config(ROLE))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def s3_options(s3: S3Server, tmp_path: Path) -> dict[str, object]:
    """Options of a tier on the server, without its url."""
    return s3.options(tmp_path)
