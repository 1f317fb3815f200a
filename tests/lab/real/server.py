"""The real API server over plain HTTP, for tests that compare answers byte for byte of meaning with our own."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from pathlib import Path
from typing import Any

JSON = "application/json"
PROTOBUF = b"k8s\x00"


class Server:
    """One connection with a kubeconfig's client certificate. Calls answer (status, decoded body); bodies in bytes go as they are."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self._address = urllib.parse.urlparse(cluster["server"])
        self._connection = self._connect()
        self.warnings: list[str] = []

    def _connect(self) -> http.client.HTTPSConnection:
        assert self._address.hostname is not None
        return http.client.HTTPSConnection(self._address.hostname, self._address.port, context=self._tls, timeout=60)

    def close(self) -> None:
        self._connection.close()

    def __call__(
        self, method: str, path: str, body: Any = None, *, content_type: str = JSON, accept: str = JSON
    ) -> tuple[int, Any]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Accept": accept, "User-Agent": "tests", **({"Content-Type": content_type} if data else {})}
        try:
            self._connection.request(method, path, data, headers)
            response = self._connection.getresponse()
        except (http.client.HTTPException, OSError):
            # The server closes idle connections.
            self._connection.close()
            self._connection = self._connect()
            self._connection.request(method, path, data, headers)
            response = self._connection.getresponse()
        answer = response.read()
        self.warnings = response.headers.get_all("Warning") or []
        if answer.startswith(PROTOBUF):
            return response.status, answer
        return response.status, json.loads(answer) if answer[:1] in (b"{", b"[") else answer.decode()
