"""The obj tier passes the suite that every tier passes on Azurite, Microsoft's own emulator of Azure's blobs.

It comes from npm and not from PyPI, so these tests run where `azurite-blob` can be found (`npm install azurite`, and its
`node_modules/.bin` on PATH), and are skipped elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from s3_server import free_ports
from test_obj_conformance import ObjTierTests

from kvoffload.layout.partial import RowShape

AZURITE = shutil.which("azurite-blob")
if AZURITE is None:
    pytest.skip("azurite-blob is not on PATH (npm install azurite)", allow_module_level=True)
pytestmark = pytest.mark.services
ACCOUNT, CONTAINER = "devstoreaccount1", "kv-cache"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every emulator, as its documentation says."""
_PATIENCE_S = 60.0
_places = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (port,) = free_ports(1)
    root = tmp_path_factory.mktemp("azure")
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(root)]
    with (root / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [str(AZURITE), *options, "--silent", "--skipApiVersionCheck", "--disableTelemetry"],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        make_container(f"http://127.0.0.1:{port}", root / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def make_container(endpoint: str, log: Path) -> None:
    """Signed by the account's key (Microsoft: "Authorize with Shared Key")."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    text = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
    text += f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest())
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature.decode()}", "Content-Length": "0"}
    url = f"{endpoint}/{ACCOUNT}/{CONTAINER}?restype=container"
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="PUT"), timeout=5)
            break
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read()) from None
        except OSError:
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)


class TestOnAzure(ObjTierTests):
    seeds = range(2)
    range_seeds = range(1)
    evicts_by_recency = False

    @pytest.fixture(autouse=True)
    def _server(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", server)

    def new_url(self) -> str:
        return f"az://{CONTAINER}/conformance/{next(_places)}"


class TestOnAzureInParts(TestOnAzure):
    """Every object is uploaded in blocks, as large ones are."""

    seeds = range(1)

    def open(self, url: str, shapes: Sequence[RowShape] = (), **more: Any) -> Any:
        return super().open(url, shapes, **{"multipart_bytes": 1, **more})
