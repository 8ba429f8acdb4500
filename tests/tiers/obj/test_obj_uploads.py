"""Uploads in parts that never ended: `kvoffload gc` finds those that are ours and old, removes them, and no others."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from faulty_proxy import Fault, FaultyProxy
from obj_support import drive, open_tier
from s3_server import ACCESS_KEY, BUCKET, DOMAIN, SECRET_KEY, S3Server
from typer.testing import CliRunner

from kvoffload.cli.main import app
from kvoffload.testing.tier_driver import TierDriver, make_keys
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.trouble import Trouble, trouble_of_answer
from kvoffload.tiers.obj.uploads import Unseen, open_uploads

HERE = Path(__file__).parent
_places = itertools.count()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("gs://bucket", "AbortIncompleteMultipartUpload"),
        ("az://container", "after a week"),
        ("memory://some", "S3 only"),
    ],
)
def test_a_store_that_is_not_looked_into_says_what_helps(url: str, reason: str) -> None:
    found = open_uploads(ObjTierConfig(url=url), {})
    assert isinstance(found, Unseen)
    assert reason in found.reason


def test_without_its_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    found = open_uploads(ObjTierConfig(url="s3://some-bucket"), {})
    assert found == Unseen("needs a second client: pip install 'kvoffload[obj-sweep]'")


@pytest.mark.parametrize(
    ("status", "code", "trouble"),
    [
        (404, "NoSuchUpload", Trouble.MISSING),
        (404, "NoSuchBucket", Trouble.NO_BUCKET),
        (501, "NotImplemented", Trouble.UNSUPPORTED),
        (405, "", Trouble.UNSUPPORTED),
        (403, "AccessDenied", Trouble.DENIED),
        (403, "RequestTimeTooSkewed", Trouble.SKEWED),
        (503, "SlowDown", Trouble.THROTTLED),
        (500, "InternalError", Trouble.SERVER),
        (0, "", Trouble.OTHER),
    ],
)
def test_answers_are_kinds_of_trouble(status: int, code: str, trouble: Trouble) -> None:
    assert trouble_of_answer(status, code).trouble is trouble


class Bucket:
    """A namespace with a few chunks below a prefix of its own, and what looks behind everybody's back."""

    def __init__(self, server: S3Server, options: dict[str, Any]) -> None:
        import botocore.session

        self.prefix = f"uploads/{next(_places)}"
        self.url = f"s3://{BUCKET}/{self.prefix}"
        self.options = options
        self.driver: TierDriver = drive(open_tier(self.url, **options))
        self.driver.store(make_keys(2))
        self.place = self.driver.tier._around.place
        self.client = botocore.session.Session().create_client(
            "s3",
            endpoint_url=server.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def abandon(self, key: str) -> str:
        """Begin an upload, send a part of it, and never end it."""
        begun = self.client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        self.client.upload_part(Bucket=BUCKET, Key=key, UploadId=begun, PartNumber=1, Body=bytes(5 << 20))
        return key

    def unfinished(self, prefix: str = "uploads/") -> list[str]:
        found = self.client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)
        return sorted(one["Key"] for one in found.get("Uploads", ()))

    def run(self, *command: str, **options: Any) -> Any:
        """What a tool says; its options as they stand in a url."""
        words = urlencode({**self.options, **options}, safe="/:")
        return CliRunner().invoke(app, [command[0], f"{self.url}?{words}", *command[1:]])

    def told(self, *command: str, **options: Any) -> Any:
        result = self.run(*command, "--json", **options)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)["uploads"]


@pytest.fixture
def bucket(s3: S3Server, s3_options: dict[str, Any]) -> Iterator[Bucket]:
    bucket = Bucket(s3, s3_options)
    yield bucket
    bucket.driver.tier.shutdown()


@pytest.mark.services
def test_what_was_abandoned_is_removed_when_it_is_ours_and_old(bucket: Bucket) -> None:
    chunk, pack = (bucket.place.object_name(make_keys(count, 50)) for count in (1, 3))
    ours = sorted(bucket.abandon(f"{bucket.prefix}/{name}") for name in (chunk, pack))
    base = bucket.place.base
    others = sorted(
        bucket.abandon(key)
        for key in (
            f"{bucket.prefix}/somebody else's",
            f"{bucket.prefix}/{base}/not a chunk",
            f"{bucket.prefix}0/{chunk}",
            f"{bucket.prefix}/another_0123456789abcdef/{chunk.partition('/')[2]}",
        )
    )
    assert bucket.told("gc") == {
        "seen": True, "left_over": 0, "young": 2, "of_others": 3, "removed": 0, "reason": "",
    }  # fmt: skip
    assert bucket.told("gc", "--dry-run", orphan_grace_s=0)["left_over"] == 2
    assert bucket.told("du", orphan_grace_s=0)["left_over"] == 2
    assert bucket.unfinished() == sorted(ours + others), "something was changed"
    assert bucket.told("gc", orphan_grace_s=0)["removed"] == 2
    assert bucket.unfinished() == others
    assert "never ended: 0 (0 removed), 0 too young, 3 of others" in bucket.run("gc").stdout


@pytest.mark.services
def test_uploads_are_found_where_the_bucket_is_in_the_name_of_the_host(
    bucket: Bucket, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.abandon(f"{bucket.prefix}/{bucket.place.object_name(make_keys(1, 50))}")
    with FaultyProxy(s3.port) as proxy:
        monkeypatch.setenv("http_proxy", proxy.endpoint)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        host = f"http://{DOMAIN}:{s3.port}"
        assert bucket.told("gc", endpoint=host, path_style="false", orphan_grace_s=0)["removed"] == 1
    assert proxy.count("DELETE", "uploadId=") == 1
    assert not [path for _, path, _ in proxy.seen if path.startswith(f"/{BUCKET}")]


@pytest.mark.services
def test_what_a_killed_process_left_is_removed(bucket: Bucket, s3: S3Server) -> None:
    with FaultyProxy(s3.port) as proxy:
        # All parts are there, and the request that would make an object of them never arrives.
        proxy.always(Fault.HANG, "POST", "uploadId=")
        options = {
            **bucket.options,
            "endpoint": proxy.endpoint,
            "request_timeout_s": 60,
            "call_deadline_s": 60,
        }
        child = subprocess.Popen(
            [sys.executable, str(HERE / "obj_upload_child.py"), f"{bucket.url}/killed", json.dumps(options)],
            start_new_session=True,
        )
        try:
            bucket.driver.until(lambda: proxy.count("POST", "uploadId=") > 0, "never comes to the end")
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    (left,) = bucket.unfinished(f"{bucket.prefix}/killed")
    bucket.url += "/killed"
    assert bucket.told("gc", orphan_grace_s=0)["removed"] == 1, left
    assert bucket.unfinished(f"{bucket.prefix}/killed") == []


@pytest.mark.services
@pytest.mark.parametrize(
    ("fault", "reason"), [(Fault.DENY, "denied (HTTP 403 AccessDenied)"), (Fault.CUT_BEFORE, "unreachable")]
)
def test_uploads_that_cannot_be_listed_leave_the_rest_as_it_is(
    bucket: Bucket, s3: S3Server, fault: Fault, reason: str
) -> None:
    with FaultyProxy(s3.port) as proxy:
        proxy.always(fault, "GET", "?uploads")
        result = bucket.run("gc", endpoint=proxy.endpoint, call_retries=0)
    assert result.exit_code == 0
    assert f"uploads in parts that never ended: not looked for ({reason})" in result.stdout


@pytest.mark.services
def test_a_sweep_shows_no_secret(
    bucket: Bucket, s3: S3Server, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    chunk = bucket.place.object_name(make_keys(1, 50))
    wrong = tmp_path / "wrong"
    wrong.write_text(
        "[default]\naws_access_key_id = HUSHKEY\naws_secret_access_key = hush\naws_session_token = hushed\n"
    )
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG), FaultyProxy(s3.port) as proxy:
        bucket.abandon(f"{bucket.prefix}/{chunk}")
        caplog.clear()
        faults = [None, Fault.DENY, Fault.EXPIRED, Fault.ERROR, Fault.TRUNCATE, Fault.CUT_BEFORE]
        for fault in faults:
            proxy.always(fault, part="upload")
            for credentials in (bucket.options["credentials_file"], str(wrong)):
                for command in (("du",), ("gc", "--dry-run"), ("gc",)):
                    more = {"endpoint": proxy.endpoint, "call_retries": 0, "orphan_grace_s": 0}
                    result = bucket.run(*command, **more, credentials_file=credentials)
                    shown += [result.output, repr(result.exception)]
    shown += [record.getMessage() + (record.exc_text or "") for record in caplog.records]
    assert any("never ended" in text for text in shown)
    secrets = (SECRET_KEY, ACCESS_KEY, "HUSHKEY", "hush", "Signature=")
    assert not [text for text in shown if any(secret in text for secret in secrets)]
