"""A proxy on loopback that stands before a real S3 server and misbehaves on request: real sockets, real answers, damaged."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Fault(Enum):
    """What happens to a request."""

    THROTTLE = "throttle"
    ERROR = "error"
    DENY = "deny"
    EXPIRED = "expired"
    SKEWED = "skewed"
    CUT_BEFORE = "cut before the answer"
    TRUNCATE = "cut in the body"
    SHORT = "a shorter body, well formed"
    FLIP = "wrong bytes"
    WRONG_ETAG = "wrong etag"
    DRIP = "drip"
    HANG = "hang"
    LOSE_ANSWER = "carried out, and cut before the answer"


_ANSWERS = {
    Fault.THROTTLE: (503, "SlowDown"),
    Fault.ERROR: (500, "InternalError"),
    Fault.DENY: (403, "AccessDenied"),
    Fault.EXPIRED: (400, "ExpiredToken"),
    Fault.SKEWED: (403, "RequestTimeTooSkewed"),
}
_DRIP_S = 0.05
_HANG_S = 30.0
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "accept-encoding"}

Rule = Callable[[str, str], "Fault | None"]
"""(method, path) → what shall happen."""


@dataclass
class FaultyProxy:
    """Listens on a port of its own; `rule` may be changed at any time."""

    target_port: int
    rule: Rule = lambda _method, _path: None
    certificate: Path | None = None
    """Of a server that speaks TLS."""
    change: Callable[[bytes], bytes] = bytes
    """What is done to the bodies of answers to POST."""
    seen: list[tuple[str, str, Fault | None]] = field(default_factory=list)

    def __enter__(self) -> FaultyProxy:  # noqa: PYI034 - Self is younger than Python 3.10
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.block_on_close = False
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_address[1]}"

    def always(self, fault: Fault | None, method: str = "", part: str = "") -> None:
        """From now on every request of that method whose path has that part."""
        self.rule = lambda m, path: fault if m.startswith(method) and part in path else None

    def times(self, count: int, fault: Fault, method: str = "", part: str = "") -> None:
        """The next so many."""
        left = [count]

        def rule(m: str, path: str) -> Fault | None:
            if m.startswith(method) and part in path and left[0] > 0:
                left[0] -= 1
                return fault
            return None

        self.rule = rule

    def count(self, method: str, part: str = "") -> int:
        return sum(m == method and part in path for m, path, _ in self.seen)


def _handler_of(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else b""
            if self.path.startswith("http://"):
                # It is the proxy of a machine, and the name is in the header too.
                self.path = "/" + self.path.split("/", 3)[3]
            fault = proxy.rule(self.command, self.path)
            proxy.seen.append((self.command, self.path, fault))
            if fault in _ANSWERS:
                self._refuse(*_ANSWERS[fault])
            elif fault is Fault.HANG:
                proxy.closing.wait(_HANG_S)
                self._cut()
            elif fault is Fault.CUT_BEFORE:
                self._cut()
            else:
                self._forward(body, fault)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do  # noqa: N815 - names of the library

        def _refuse(self, status: int, code: str) -> None:
            text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(text)))
            if code == "SlowDown":
                self.send_header("Retry-After", "1")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        def _cut(self) -> None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def _forward(self, body: bytes, fault: Fault | None) -> None:
            server = http.client.HTTPConnection("127.0.0.1", proxy.target_port, timeout=10)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                if body or self.command in ("PUT", "POST"):
                    headers["Content-Length"] = str(len(body))
                server.request(self.command, self.path, body=body or None, headers=headers)
                answer = server.getresponse()
                data = answer.read()
            except OSError:
                self._cut()
                return
            finally:
                server.close()
            if fault is Fault.LOSE_ANSWER:
                self._cut()
                return
            self._answer(answer, data, fault)

        def _answer(self, answer: http.client.HTTPResponse, data: bytes, fault: Fault | None) -> None:
            if self.command == "POST":
                data = proxy.change(data)
            is_body = self.command == "GET" and answer.status in (200, 206)
            length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
            if is_body and fault is Fault.FLIP and data:
                data = data[:-1] + bytes([data[-1] ^ 0xFF])
            if is_body and fault is Fault.SHORT:
                data = data[: len(data) // 2]
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP:
                    is_wrong = fault is Fault.WRONG_ETAG and name.lower() == "etag"
                    self.send_header(name, '"0123456789abcdef"' if is_wrong else value)
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if is_body and fault is Fault.TRUNCATE:
                self.wfile.write(data[: len(data) // 2])
                self.wfile.flush()
                self._cut()
            elif is_body and fault is Fault.DRIP:
                self._drip(data)
            else:
                self.wfile.write(data)

        def _drip(self, data: bytes) -> None:
            for at in range(0, len(data), max(1, len(data) // 1000)):
                self.wfile.write(data[at : at + max(1, len(data) // 1000)])
                self.wfile.flush()
                if proxy.closing.wait(_DRIP_S):
                    return

    class Quiet(Handler):
        def handle(self) -> None:
            # Whoever asked may have gone.
            with contextlib.suppress(ValueError, OSError):
                super().handle()

    return Quiet
