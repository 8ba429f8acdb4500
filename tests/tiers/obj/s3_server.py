"""A real S3 server for tests: SeaweedFS in one process, on loopback, in a directory of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import obstore
from obstore.store import S3Store

ACCESS_KEY = "AKIDOFATESTSERVER01"
SECRET_KEY = "s3cr3t-of-a-test-server-7421"
BUCKET = "kv-cache"
DOMAIN = "localhost"
ROLE = "arn:aws:iam::000000000000:role/engine"
_PATIENCE_S = 60.0


def free_ports(count: int) -> list[int]:
    """Ports that are free now, each with its twin 10,000 above (the server's own gRPC ports)."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        if 1024 < port < 32_000 or port + 10_000 < 65_536:
            found.append(port)
    return found


class S3Server:
    """Start, stop, start again on the same port and data.

    Args:
        root: Where its data, its options and its log go.
        volumes: How many volumes of 256 MB it may fill; what is deleted takes its place for a while.
        identities: Whose web identities it trusts, with which roles, in its own words; None: nobody's.
    """

    def __init__(
        self, root: Path, *, volumes: int = 40, identities: Mapping[str, object] | None = None
    ) -> None:
        self._root = root
        self._volumes = volumes
        (root / "data").mkdir(parents=True, exist_ok=True)
        identity = {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (root / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self._more: dict[str, object] = {}
        if identities is not None:
            (root / "iam.json").write_text(json.dumps(identities))
            self._more = {"s3.iam.config": root / "iam.json"}
        self._master, self._volume, self._filer, self.port = free_ports(4)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(Path(sys.executable).parent / "weed"), "-logtostderr=true", "server", "-s3"]
        options = {
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "dir": self._root / "data",
            "master.port": self._master,
            "master.port.grpc": self._master + 10_000,
            "master.volumeSizeLimitMB": 256,
            "volume.port": self._volume,
            "volume.port.grpc": self._volume + 10_000,
            "volume.max": self._volumes,
            "filer.port": self._filer,
            "filer.port.grpc": self._filer + 10_000,
            "s3.port": self.port,
            "s3.port.grpc": self.port + 10_000,
            "s3.port.lance": 0,
            "s3.port.iceberg": 0,
            "s3.config": self._root / "s3.json",
            # `bucket.localhost` names a bucket as well.
            "s3.domainName": DOMAIN,
            **self._more,
        }
        with (self._root / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *(f"-{name}={value}" for name, value in options.items())],
                stdout=log,
                stderr=log,
                cwd=self._root,
                start_new_session=True,
            )
        self._make_bucket()

    def kill(self) -> None:
        """End it at once, as a power failure would; its data stay."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def store(self, prefix: str = "") -> S3Store:
        """A plain client, for tests that look behind a tier's back."""
        return S3Store(
            BUCKET,
            prefix=prefix,
            endpoint=self.endpoint,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            client_options={"allow_http": True, "timeout": "5s"},
            retry_config={"max_retries": 0},
        )

    def options(self, folder: Path) -> dict[str, object]:
        """Options of a tier on this server, without its url; its credentials go into a file in `folder`."""
        path = folder / "credentials"
        path.write_text(
            f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
        )
        return {"endpoint": self.endpoint, "region": "us-east-1", "credentials_file": str(path)}

    def _make_bucket(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                # An object makes its bucket here; the answer says that all parts of the server are up.
                obstore.put(self.store(), "up", b"up")
                break
            except Exception:
                assert self._process is not None
                assert self._process.poll() is None, (self._root / "server.log").read_text()[-3000:]
                assert time.monotonic() < deadline, (self._root / "server.log").read_text()[-3000:]
                time.sleep(0.2)
