"""Helm's output for the rows that name a ``helm install``, and an API server for those that name a ``kubectl``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kgpu.formats.crd.definitions import crds
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from tests.charts.conftest import chart, helm

__all__ = ["chart", "helm"]

Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """``kubectl("get", ...)`` on an API server with kgpu's kinds; what fails is a failure of the test."""
    if not build.find_kubectl():
        pytest.skip("no kubectl here")
    lab = EmbeddedLab("seeds", tmp_path_factory.mktemp("seeds") / "lab", QuietProgress())

    def run(*words: str, stdin: Any = None) -> str:
        text = stdin if stdin is None or isinstance(stdin, str) else json.dumps(stdin)
        done = lab.kubectl_run(*words, stdin=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        lab.up()
        for definition in crds():
            run("apply", "--server-side", "-f", "-", stdin=definition)
        run("wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com", "--timeout=30s")
        yield run
    finally:
        lab.down()
