"""The chart through a repository: ``helm repo add``, ``helm repo update``, and the chart by its name in it (A80)."""

from __future__ import annotations

import contextlib
import functools
import http.server
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.charts.conftest import CHART, NAMESPACE
from tools.chart_repo import make


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder over HTTP, on loopback."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a80_the_chart_of_a_repository_is_the_chart(helm: str, tmp_path: Path) -> None:
    places = (("repository-config", "repositories.yaml"), ("repository-cache", "cache"))
    own = [f"--{flag}={tmp_path / name}" for flag, name in places]

    def run(*words: str) -> str:
        return subprocess.run([helm, *words, *own], check=True, capture_output=True, text=True).stdout

    made = ("template", "kgpu", "--namespace", NAMESPACE, "--set", "driver.enabled=false,toolkit.enabled=false")
    make(helm, tmp_path / "charts")
    with served(tmp_path / "charts") as url:
        run("repo", "add", "kgpu", url)
        run("repo", "update")
        found = run("search", "repo", "kgpu/kgpu")
        by_name = run(*made, "kgpu/kgpu")
    assert "kgpu/kgpu" in found
    assert by_name == run(*made, str(CHART))
