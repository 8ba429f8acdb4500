"""One S3 server for all tests that want one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import S3Server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def s3_options(s3: S3Server, tmp_path: Path) -> dict[str, object]:
    """Options of a tier on the server, without its url."""
    return s3.options(tmp_path)
