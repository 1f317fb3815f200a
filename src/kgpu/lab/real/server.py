"""The lab's API server asked directly, over one connection that stays open.

For what is asked again and again: a kubectl that is started for each question costs a hundred times as much processor
time as the question. Answers are Kubernetes' own, unread, so tests also compare what servers say with it.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from pathlib import Path
from typing import Any, Final

JSON: Final = "application/json"
PROTOBUF: Final = b"k8s\x00"
_TIMEOUT_S: Final = 60.0


class ApiServerConnection:
    """One connection with a kubeconfig's client certificate.

    A call answers (HTTP status, decoded body); a body in bytes goes as it is. Raises OSError or HTTPException when the
    server does not answer. Not for several threads.
    """

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self._address = urllib.parse.urlparse(cluster["server"])
        self._connection = self._connect()
        self.warnings: list[str] = []
        """The Warning headers of the last answer."""

    def _connect(self) -> http.client.HTTPSConnection:
        assert self._address.hostname is not None
        address = self._address
        return http.client.HTTPSConnection(address.hostname, address.port, context=self._tls, timeout=_TIMEOUT_S)

    def close(self) -> None:
        """End the connection; the next call makes another."""
        self._connection.close()

    def __call__(
        self, method: str, path: str, body: Any = None, *, content_type: str = JSON, accept: str = JSON
    ) -> tuple[int, Any]:
        """One request; tried again once on a new connection, because the server closes idle ones."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Accept": accept, "User-Agent": "kgpu-lab", **({"Content-Type": content_type} if data else {})}
        try:
            response = self._ask(method, path, data, headers)
        except (http.client.HTTPException, OSError):
            self.close()
            self._connection = self._connect()
            response = self._ask(method, path, data, headers)
        answer = response.read()
        self.warnings = response.headers.get_all("Warning") or []
        if answer.startswith(PROTOBUF):
            return response.status, answer
        media_type = response.headers.get_content_type()
        return response.status, json.loads(answer) if media_type == JSON else answer.decode(errors="replace")

    def _ask(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        self._connection.request(method, path, data, headers)
        return self._connection.getresponse()
