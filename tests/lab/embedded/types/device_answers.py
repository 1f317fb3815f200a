"""What a real API server with DRA's gates on says to the rows of ``device_table``.

``python -m tests.lab.embedded.types.device_answers https://127.0.0.1:PORT TOKEN`` writes ``device_answers.json``; the
server is ``tests.lab.real.gated``'s.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.lab.embedded.types import device_table
from tests.lab.embedded.types.real_server import RealServer

ANSWERS = Path(__file__).parent / "device_answers.json"
NAMESPACE = "plain"


def recorded() -> dict[str, Any]:
    """Every row's answer as it was when it was last asked: a code, and the object or the message."""
    found: dict[str, Any] = json.loads(ANSWERS.read_text())
    return found


def prepare(server: RealServer) -> None:
    """The namespace, and the account that its pods need."""
    server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    account = {"metadata": {"name": "default"}}
    server.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)


def everything(server: RealServer) -> dict[str, Any]:
    """Ask it all, of a server that is prepared and whose controllers do not run yet."""
    return {row.id: list(server.judged(row, NAMESPACE)) for row in device_table.rows()}


if __name__ == "__main__":
    asked = RealServer.with_token(sys.argv[1], sys.argv[2])
    prepare(asked)
    ANSWERS.write_text(json.dumps(everything(asked), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
