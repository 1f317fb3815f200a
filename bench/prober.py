"""``python -m bench.prober KUBECONFIG FILE``: times GETs of an API server in ms until it is told to end.

A process of its own, so that what else a benchmark does is not in the times. Objects of several kinds are asked for in
turn, over one connection that stays open, twenty times a second.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import ssl
import sys
import time
from base64 import b64decode
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

EVERY_S: Final = 0.05
PATHS: Final = (
    "/api/v1/namespaces/default",
    "/api/v1/nodes/n-1",
    "/api/v1/namespaces/default/services/kubernetes",
    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n-1",
)


def connection_of(kubeconfig: Path) -> tuple[http.client.HTTPSConnection, dict[str, str]]:
    """A connection to the API server of a kubeconfig's only cluster, and the headers of its user."""
    data: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    cluster, user = data["clusters"][0]["cluster"], data["users"][0]["user"]
    ca = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cadata=b64decode(ca).decode() if ca else Path(cluster["certificate-authority"]).read_text()
    )
    url = urlsplit(cluster["server"])
    return http.client.HTTPSConnection(url.hostname or "", url.port, context=context, timeout=30), {
        "Authorization": f"Bearer {user['token']}"
    }


def main() -> int:
    """Ask until SIGTERM."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # waiting for a core of its own is not the server's doing
    connection, headers = connection_of(Path(sys.argv[1]))
    turn = 0
    with Path(sys.argv[2]).open("w") as out:
        while not ended:
            begin = time.perf_counter()
            connection.request("GET", PATHS[turn % len(PATHS)], headers=headers)
            answer = connection.getresponse()
            answer.read()
            took = time.perf_counter() - begin
            out.write(f"{took * 1000:.3f}\n")
            turn += 1
            time.sleep(max(0.0, EVERY_S - took))
    return 0


if __name__ == "__main__":
    sys.exit(main())
