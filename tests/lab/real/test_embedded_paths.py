"""Timeouts, health checks and the issuer on the real server: what the embedded one is held to is what it says."""

from __future__ import annotations

import json
from typing import Any

from kgpu.lab.real.server import ApiServerConnection
from tests.lab.embedded.http import path_cases

from .conftest import Cluster


def test_the_words_are_the_real_server_s(cluster: Cluster) -> None:
    server = ApiServerConnection(cluster.lab.kubeconfig)

    def ask(path: str, accept: str) -> tuple[int, Any]:
        code, value = server("GET", path, accept=accept)
        # The keys have a media type of their own.
        return code, json.loads(value) if isinstance(value, str) and value.startswith("{") else value

    try:
        assert [answer for case, answer in path_cases.play(ask) if answer != case] == []
        path_cases.issuer(ask)
    finally:
        server.close()
