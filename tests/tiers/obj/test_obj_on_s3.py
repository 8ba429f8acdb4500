"""The obj tier passes the suite that every tier passes on a real S3 server."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from s3_server import BUCKET, S3Server
from test_obj_conformance import ObjTierTests

pytestmark = pytest.mark.services

_places = itertools.count()


class TestOnS3(ObjTierTests):
    seeds = range(3)
    evicts_by_recency = False

    @pytest.fixture(autouse=True)
    def _server(self, s3_options: dict[str, Any]) -> None:
        self.options = s3_options

    def new_url(self) -> str:
        return f"s3://{BUCKET}/conformance/{next(_places)}"


class TestOnS3WithoutPacks(TestOnS3):
    seeds = range(1)
    evicts_by_recency = True

    def open(self, url: str, **more: Any) -> Any:
        return super().open(url, **{"pack_below_bytes": 0, **more})


class TestOnS3InParts(TestOnS3):
    """Every object is uploaded in parts, as large ones are."""

    seeds = range(1)

    def open(self, url: str, **more: Any) -> Any:
        return super().open(url, **{"multipart_bytes": 1, **more})


def test_the_server_is_there(s3: S3Server, tmp_path: Path) -> None:
    assert s3.store().list("").collect()
