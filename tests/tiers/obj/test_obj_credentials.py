"""Credentials reach the store and nothing else: no log, metric, error, name or object shows them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import Fault, FaultyProxy
from obj_support import drive, open_tier
from s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

from kvoffload.errors import ConfigError
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome
from kvoffload.tiers.obj.credentials import read_credentials
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.trouble import ObjectError, trouble_of

HUSH = ("hush-secret-1", "HUSHKEYID", "hush-token-2")


def write_credentials(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines))
    return str(path)


def test_a_credentials_file_is_read_by_profile(tmp_path: Path) -> None:
    path = write_credentials(
        tmp_path / "c",
        "[default]",
        "aws_access_key_id = a%b",
        "aws_secret_access_key = s+/=%",
        "[other]",
        "aws_access_key_id = c",
        "aws_secret_access_key = d",
        "aws_session_token = e",
    )
    assert read_credentials(path, "default") == {"access_key_id": "a%b", "secret_access_key": "s+/=%"}
    assert read_credentials(path, "other")["token"] == "e"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"aws_secret_access_key = {HUSH[0]}", "no file of"),
        (f"[default]\naws_secret_access_key = {HUSH[0]}", "lacks aws_access_key_id"),
        (f"[prod]\naws_secret_access_key = {HUSH[0]}", "no profile 'default'"),
        (f"[default]\n{HUSH[0]}", "no file of"),
        (f"[default]\na=1\na={HUSH[0]}", "no file of"),
    ],
)
def test_a_bad_credentials_file_is_one_line_that_repeats_nothing(
    text: str, complaint: str, tmp_path: Path
) -> None:
    path = write_credentials(tmp_path / "c", *text.splitlines())
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_credentials(path, "default")
    whole = "".join(traceback.format_exception(caught.value))
    assert not any(secret in whole for secret in HUSH)
    assert "\n" not in str(caught.value)


def test_an_error_of_the_client_is_replaced_by_its_kind() -> None:
    error = RuntimeError(
        f"Error performing GET http://h/b?X-Amz-Signature={HUSH[0]} - status code: 403 Forbidden: <Code>AccessDenied</Code>"
    )
    assert str(trouble_of(error)) == "denied (HTTP 403 AccessDenied)"


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"ca_file": "/nowhere/ca.pem"}, "ca_file='/nowhere/ca.pem' cannot be read"),
        ({"credentials_file": "/nowhere/c"}, "credentials_file='/nowhere/c' cannot be read"),
        ({"endpoint": "ftp://x"}, "endpoint must be"),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(more: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        open_tier("s3://some-bucket", **more)


@pytest.mark.parametrize(
    ("scheme", "variable"), [("gs", "GOOGLE_BASE_URL"), ("az", "AZURE_STORAGE_ENDPOINT")]
)
def test_an_endpoint_that_would_do_nothing_is_refused(scheme: str, variable: str) -> None:
    with pytest.raises(ConfigError, match=f"endpoint is for s3://; .*{variable}"):
        open_tier(f"{scheme}://some-bucket", endpoint="https://example.net")


def test_a_bucket_before_a_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="path_style=false puts the bucket before"):
        open_tier("s3://some-bucket", endpoint="http://127.0.0.1:9", path_style=False)


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


@pytest.mark.services
def test_no_fault_shows_a_secret(
    s3: S3Server, s3_options: dict[str, Any], everything_logged: pytest.LogCaptureFixture
) -> None:
    shown: list[str] = []
    url = f"s3://{BUCKET}/credentials"
    quick = {"request_timeout_s": 0.3, "call_deadline_s": 0.6, "call_retries": 1, "poll_interval_s": 0.05}
    with FaultyProxy(s3.port) as proxy:
        options = {**s3_options, "endpoint": proxy.endpoint, **quick}
        driver = drive(open_tier(url, **options))
        keys = make_keys(4)
        assert driver.store(keys) == [Outcome.DONE] * 4
        for fault in Fault:
            proxy.always(fault)
            driver.load(keys)
            driver.store(make_keys(2, first=20))
            driver.delete(keys[:1])
            try:
                list(driver.tier.scan())
            except ObjectError as error:
                shown += traceback.format_exception(error)
            try:
                open_tier(url, **options).shutdown()
            except ConfigError as error:
                shown += traceback.format_exception(error)
        proxy.always(None)
        stats = driver.tier.stats()
        shown += [repr(stats), driver.tier.describe(), repr(driver.tier._config), repr(vars(driver.tier))]
        driver.tier.shutdown()
    shown += [record.getMessage() + (record.exc_text or "") for record in everything_logged.records]
    store = s3.store("credentials")
    for info in store.list("").collect():
        shown.append(info["path"])
        shown.append(bytes(store.get(info["path"]).bytes()).decode("latin-1"))
    assert len(shown) > 20
    assert not [text for text in shown if SECRET_KEY in text or ACCESS_KEY in text]


@pytest.mark.services
def test_wrong_credentials_are_an_error_that_does_not_show_them(
    s3: S3Server, s3_options: dict[str, Any], tmp_path: Path
) -> None:
    path = write_credentials(
        tmp_path / "wrong",
        "[default]",
        f"aws_access_key_id = {HUSH[1]}",
        f"aws_secret_access_key = {HUSH[0]}",
        f"aws_session_token = {HUSH[2]}",
    )
    del s3
    with pytest.raises(ConfigError, match="check the credentials") as caught:
        open_tier(f"s3://{BUCKET}/x", **{**s3_options, "credentials_file": path})
    assert not any(secret in "".join(traceback.format_exception(caught.value)) for secret in HUSH)


@pytest.mark.services
def test_rotated_credentials_are_read_again(
    s3: S3Server, s3_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    del s3
    monkeypatch.setattr("kvoffload.tiers.obj.credentials._RENEW_AFTER_S", 0.0)
    path = Path(str(s3_options["credentials_file"]))
    good = path.read_text()
    driver = drive(open_tier(f"s3://{BUCKET}/rotated", **s3_options, poll_interval_s=30.0))
    keys = make_keys(3)
    driver.store(keys)
    path.write_text(good.replace(SECRET_KEY, "revoked"))
    assert driver.load(keys) == [Outcome.FAILED] * 3
    path.write_text(good)
    driver.until(lambda: driver.load(keys) == [Outcome.DONE] * 3, "does not read the file again")
    driver.tier.shutdown()


@pytest.mark.services
def test_credentials_of_the_environment_are_used(
    s3: S3Server, s3_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    del s3
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    options = {name: value for name, value in s3_options.items() if name != "credentials_file"}
    driver = drive(open_tier(f"s3://{BUCKET}/environment", **options))
    assert driver.store(make_keys(2)) == [Outcome.DONE] * 2
    driver.tier.shutdown()


def test_the_options_have_no_place_for_a_secret() -> None:
    names = set(ObjTierConfig.__dataclass_fields__)
    assert not {name for name in names if "secret" in name or "token" in name or "access_key" in name}
