"""The obj tier passes the suite that every tier passes on a real S3 server."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import FaultyProxy
from obj_support import drive, open_tier
from s3_server import BUCKET, DOMAIN, S3Server
from test_obj_conformance import ObjTierTests

from kvoffload.config.pages import AttentionPage
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.layout.partial import RowShape, row_shape
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome

pytestmark = pytest.mark.services

_places = itertools.count()


class TestOnS3(ObjTierTests):
    seeds = range(3)
    range_seeds = range(1)
    evicts_by_recency = False

    @pytest.fixture(autouse=True)
    def _server(self, s3_options: dict[str, Any]) -> None:
        self.options = s3_options

    def new_url(self) -> str:
        return f"s3://{BUCKET}/conformance/{next(_places)}"


class TestOnS3WithoutPacks(TestOnS3):
    seeds = range(1)
    evicts_by_recency = True

    def open(self, url: str, shapes: Sequence[RowShape] = (), **more: Any) -> Any:
        return super().open(url, shapes, **{"pack_below_bytes": 0, "range_gap_bytes": 0, **more})


class TestOnS3InParts(TestOnS3):
    """Every object is uploaded in parts, as large ones are."""

    seeds = range(1)

    def open(self, url: str, shapes: Sequence[RowShape] = (), **more: Any) -> Any:
        return super().open(url, shapes, **{"multipart_bytes": 1, **more})


def test_the_server_is_there(s3: S3Server, tmp_path: Path) -> None:
    assert s3.store().list("").collect()


@pytest.mark.parametrize(("tp", "rank"), [(2, 1), (4, 0), (8, 5)])
def test_of_what_crosses_the_wire_a_rank_gets_its_share(
    s3_options: dict[str, Any], tp: int, rank: int
) -> None:
    """Eight heads of 16 KiB on each page, the ranges as the layout tells them."""
    page = AttentionPage(8, (256, 256), 32)
    layers = tuple(CanonicalLayer(f"layer.{number}", page) for number in range(4))
    layout = CanonicalLayout(layers, 2, ParallelSizes(tp=tp))
    whole, part = (row_shape(layout, layout.row_bytes, ranks) for ranks in (range(tp), (rank,)))
    url, keys = f"s3://{BUCKET}/wire/{tp}", make_keys(4)
    writer = drive(open_tier(url, [whole], **s3_options), [whole])
    assert writer.store(keys) == [Outcome.DONE] * 4
    reader = drive(open_tier(url, [part], range_gap_bytes=0, **s3_options), [part])
    reader.tier._follower.refresh()
    before = reader.tier.stats().counters["bytes_got"]
    assert reader.load(keys) == [Outcome.DONE] * 4
    got = reader.tier.stats().counters["bytes_got"] - before
    headers = writer.tier._around.place.file_bytes_of(keys[0]) - layout.row_bytes
    # Journal objects that a poll reads beside it are small.
    assert 0 <= got - 4 * (layout.row_bytes // tp + headers) < 4096
    for driver in (writer, reader):
        driver.tier.shutdown()


@pytest.mark.parametrize("pack_below_bytes", [0, 10**6])
def test_the_bucket_may_be_in_the_name_of_the_host(
    s3: S3Server, s3_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, pack_below_bytes: int
) -> None:
    """The name is resolved by a proxy, as few machines resolve names below `localhost`."""
    url, keys = f"s3://{BUCKET}/virtual/{pack_below_bytes}", make_keys(5)
    more = {
        "path_style": False,
        "endpoint": f"http://{DOMAIN}:{s3.port}",
        "pack_below_bytes": pack_below_bytes,
    }
    with FaultyProxy(s3.port) as proxy:
        with monkeypatch.context() as patch:
            patch.setenv("http_proxy", proxy.endpoint)
            driver = drive(open_tier(url, **{**s3_options, **more}))
        assert driver.store(keys) == [Outcome.DONE] * 5
        assert driver.load(keys) == [Outcome.DONE] * 5
        assert driver.delete(keys[:2]) == [Outcome.DONE] * 2
        assert len(list(driver.tier.scan())) == 3
        driver.tier.shutdown()
    assert proxy.count("PUT"), "it went another way"
    assert not [path for _, path, _ in proxy.seen if path.startswith(f"/{BUCKET}/")]
    other = drive(open_tier(url, **s3_options))
    assert other.load(keys[2:]) == [Outcome.DONE] * 3, "it is not the same bucket"
    other.tier.shutdown()
