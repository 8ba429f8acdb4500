"""Whatever somebody writes into the files of a store: it is refused or passed over, and stops nobody's stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fs_support import Store, make_keys, make_namespace

from kvoffload.layout.chunk_format import checksum
from kvoffload.tiers.base import Outcome
from kvoffload.tiers.fs import walker
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.store_root import describe, open_root
from kvoffload.tiers.fs.usage import decode_usage, is_of_later_version
from kvoffload.tiers.namespace_text import parse_namespace

DONE = Outcome.DONE
ENDLESS = b"[" * 100_000


def described(fields: object) -> bytes:
    return json.dumps({"kind": "kvoffload namespace", "model": "m", "digest": "", "fields": fields}).encode()


TEXTS = {
    "brackets": ENDLESS,
    "deep fields": b'{"kind": "kvoffload namespace", "model": "m", "fields": ' + b'{"a":' * 100_000,
    "no fields": described(None),
    "a list": described([]),
    "infinite": described({"layout_version": float("inf")}),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_strangers_description_stops_no_store(tmp_path: Path, text: bytes) -> None:
    other = tmp_path / "other_0123456789abcdef"
    other.mkdir()
    (other / "namespace.json").write_bytes(text)
    with Store(tmp_path, max_bytes=10**6) as store:
        store.wait_for_walk()
        assert store.store(make_keys(2)) == [DONE] * 2
        assert "internal_errors" not in store.counters()
    assert not describe(DiskIO(), str(tmp_path), other.name).is_ours


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_an_engine_opens_a_directory_whose_own_description_is_no_description(
    tmp_path: Path, text: bytes
) -> None:
    own = tmp_path / make_namespace().directory_name
    own.mkdir()
    if parse_namespace(text) is None:
        (own / "namespace.json").write_bytes(text)
        with Store(tmp_path) as store:
            assert store.store(make_keys(2)) == [DONE] * 2


def test_an_error_of_ours_in_somebody_elses_directory_does_not_end_the_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_0123456789abcdef").mkdir()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(walker.Walker, "_walk_other", fail)
    with Store(tmp_path, max_bytes=10**6) as store:
        store.wait_for_walk()
        assert store.store(make_keys(2)) == [DONE] * 2
        assert store.counters()["internal_errors"] >= 1


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "[" * 100_000, "1e999"])
def test_a_usage_record_with_any_number_is_refused_and_not_an_error(tmp_path: Path, number: str) -> None:
    values = (
        f'{{"kind": "kvoffload usage", "version": 1, "epoch": "e", "used_bytes": {number}, '
        '"promised_total_bytes": 0, "counts": 0, "counted_s": 0, "writers": {}}'
    ).encode()
    data = checksum(values).hex().encode() + b"\n" + values + b"\n"
    assert decode_usage(data) is None
    assert not is_of_later_version(data)
    (tmp_path / ".kvoffload").mkdir()
    (tmp_path / ".kvoffload" / "usage").write_bytes(data)
    assert open_root(str(tmp_path)).read_record().usage is None
