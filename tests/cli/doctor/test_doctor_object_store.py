"""The doctor's answers about an object store, good and bad ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvoffload.cli.doctor.check import Verdict
from kvoffload.cli.doctor.object_store import check_object_store
from kvoffload.tiers.obj.client import ObjectClient, open_client
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.trouble import ObjectError, Trouble

_places = itertools.count()


@pytest.fixture
def config() -> ObjTierConfig:
    return ObjTierConfig(url=f"memory://doctor-{next(_places)}")


def verdicts(
    config: ObjTierConfig, client: ObjectClient | None = None, ahead_s: float = 0.0
) -> dict[str, Verdict]:
    checks = check_object_store(config, lambda: time.time() + ahead_s, client)
    return {check.name: check.verdict for check in checks}


def test_a_good_store_passes_and_nothing_is_left(config: ObjTierConfig) -> None:
    found = verdicts(config)
    assert set(found.values()) == {Verdict.OK}
    assert {"put", "conditional put", "get", "list", "delete", "clock"} <= set(found)
    assert list(open_client(config).list("")) == []


@pytest.mark.parametrize(
    ("ahead_s", "verdict"), [(0, Verdict.OK), (60, Verdict.WARN), (-60, Verdict.WARN), (3600, Verdict.FAIL)]
)
def test_a_clock_that_is_off_is_told(config: ObjTierConfig, ahead_s: float, verdict: Verdict) -> None:
    assert verdicts(config, ahead_s=ahead_s)["clock"] is verdict


class Careless(ObjectClient):
    """Ignores the condition of a put, as some servers do."""

    def put(self, name: str, parts: Sequence[memoryview], *, create: bool) -> None:
        del create
        super().put(name, parts, create=False)


def test_a_store_without_conditional_put_fails(config: ObjTierConfig) -> None:
    assert verdicts(config, Careless(open_client(config)._store))["conditional put"] is Verdict.FAIL


class Keeper(ObjectClient):
    """Deletes nothing, and says that it did."""

    def delete(self, names: Sequence[str]) -> None:
        del names


def test_a_store_that_does_not_delete_fails(config: ObjTierConfig) -> None:
    assert verdicts(config, Keeper(open_client(config)._store))["delete"] is Verdict.FAIL


class Denied(ObjectClient):
    """Lets nobody write."""

    def put(self, name: str, parts: Sequence[memoryview], *, create: bool) -> None:
        raise ObjectError(Trouble.DENIED, "HTTP 403 AccessDenied")


def test_a_store_that_refuses_fails_and_says_how_to_mend_it(config: ObjTierConfig) -> None:
    checks = list(check_object_store(config, client=Denied(open_client(config)._store)))
    assert checks[-1].verdict is Verdict.FAIL
    assert checks[-1].found == "denied (HTTP 403 AccessDenied)"
    assert "credentials" in checks[-1].mend


def test_a_store_that_cannot_even_be_addressed_fails_and_says_why(tmp_path: Path) -> None:
    config = ObjTierConfig(url="s3://bucket/x", ca_file=str(tmp_path / "absent.pem"))
    *_, last = check_object_store(config)
    assert (last.name, last.verdict) == ("client", Verdict.FAIL)
    assert "absent.pem" in last.found
