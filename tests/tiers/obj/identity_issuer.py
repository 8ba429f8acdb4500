"""An issuer of web identities for tests: signs tokens (RS256) and shows its public key on loopback, as a cluster does."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

AUDIENCE = "kvoffload-tests"
_KEY = {
    name: int(value)
    for name, value in json.loads(
        (Path(__file__).parent / "fixtures" / "issuer_key.json").read_text()
    ).items()
}
_SIZE = (_KEY["n"].bit_length() + 7) // 8
_SHA256 = bytes.fromhex("3031300d060960864801650304020105000420")
"""The algorithm's name in a signature (RFC 8017, section 9.2, note 1)."""


class IdentityIssuer:
    """Listens until `stop`."""

    def __init__(self) -> None:
        answers = {"/keys": self._keys, "/.well-known/openid-configuration": self._configuration}

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                text = json.dumps(answers[self.path]()).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(self, subject: str, *, lasts_s: float = 600.0) -> str:
        """A token for somebody."""
        now = int(time.time())
        claims = {"iss": self.url, "sub": subject, "aud": AUDIENCE, "iat": now, "exp": int(now + lasts_s)}
        signed = ".".join(
            _text(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "k1"}, claims)
        )
        info = _SHA256 + hashlib.sha256(signed.encode()).digest()
        padded = b"\x00\x01" + b"\xff" * (_SIZE - len(info) - 3) + b"\x00" + info
        signature = pow(int.from_bytes(padded, "big"), _KEY["d"], _KEY["n"]).to_bytes(_SIZE, "big")
        return f"{signed}.{_text(signature)}"

    def config(self, role: str) -> dict[str, Any]:
        """What a server must be told to trust its tokens, and to give a role to `allowed` that may do everything."""
        trust = {
            "Effect": "Allow",
            "Principal": {"Federated": "issuer"},
            "Action": ["sts:AssumeRoleWithWebIdentity"],
        }
        everything = {
            "Effect": "Allow",
            "Action": ["s3:*"],
            "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"],
        }
        return {
            "sts": {
                "tokenDuration": "1h",
                "maxSessionLength": "12h",
                "issuer": "test-sts",
                "signingKey": base64.b64encode(b"a key of a test server, 32 bytes").decode(),
            },
            "providers": [
                {
                    "name": "issuer",
                    "type": "oidc",
                    "enabled": True,
                    "config": {"issuer": self.url, "clientId": AUDIENCE, "jwksUri": f"{self.url}/keys"},
                }
            ],
            "policy": {"defaultEffect": "Deny", "storeType": "memory"},
            "roles": [
                {
                    "roleName": role.rpartition("/")[2],
                    "roleArn": role,
                    "trustPolicy": {"Version": "2012-10-17", "Statement": [trust]},
                    "attachedPolicies": ["Everything"],
                }
            ],
            "policies": [
                {"name": "Everything", "document": {"Version": "2012-10-17", "Statement": [everything]}}
            ],
        }

    def _configuration(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def _keys(self) -> dict[str, Any]:
        number = {
            name: _text(_KEY[name].to_bytes((_KEY[name].bit_length() + 7) // 8, "big")) for name in "ne"
        }
        return {"keys": [{"kty": "RSA", "kid": "k1", "use": "sig", "alg": "RS256", **number}]}


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
