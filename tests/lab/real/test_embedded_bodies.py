"""Unknown and repeated fields on the real server: what the embedded one is held to is what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kgpu.lab.real.server import ApiServerConnection
from tests.lab.embedded.http import body_cases

from .conftest import Cluster, until


def test_the_words_for_bodies_are_the_real_server_s(cluster: Cluster) -> None:
    server = ApiServerConnection(cluster.lab.kubeconfig)

    def ask(method: str, path: str, text: str, media: str) -> tuple[int, Any, list[str]]:
        code, value = server(method, path, text.encode() if text else None, content_type=media)
        return code, value, [one.partition('"')[2].removesuffix('"').replace('\\"', '"') for one in server.warnings]

    def wait(done: Callable[[], bool]) -> None:
        until(done, "the custom kind to be served")

    try:
        different = [
            (case.label, answer)
            for case, answer in body_cases.play(ask, wait)
            if answer != (case.code, case.message, case.warnings)
        ]
    finally:
        server.close()
    assert different == []
