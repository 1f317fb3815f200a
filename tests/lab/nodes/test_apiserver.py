"""The API server as the nodes know it: read from a kubeconfig, told to containers."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError
from kgpu.lab.nodes import apiserver


def config(folder: Path, **cluster: str) -> Path:
    value = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(value))
    return path


def test_server_and_ca(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    path = config(tmp_path, server="https://127.0.0.1:1", **{"certificate-authority-data": data})
    assert apiserver.read(path) == apiserver.ApiServer("https://127.0.0.1:1", b"PEM")
    (tmp_path / "ca.crt").write_bytes(b"FILE")
    assert apiserver.read(config(tmp_path, **{"certificate-authority": "ca.crt"})) == apiserver.ApiServer("", b"FILE")
    assert apiserver.read(config(tmp_path)).ca == b""


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "current-context: x", "contexts: [{name: 1}]", "a: !!python/name:os.x"]
)
def test_what_is_no_kubeconfig(text: str, tmp_path: Path) -> None:
    (tmp_path / "k").write_text(text)
    with pytest.raises(ConfigError, match="can't be used"):
        apiserver.read(tmp_path / "k")


def test_containers_are_told_where_the_server_is() -> None:
    found = apiserver.environment("https://127.0.0.1:6443")
    assert found["KUBERNETES_SERVICE_HOST"] == "127.0.0.1"
    assert found["KUBERNETES_SERVICE_PORT"] == "6443"
    assert found["KUBERNETES_PORT_6443_TCP_ADDR"] == "127.0.0.1"
    assert apiserver.environment("https://h")["KUBERNETES_SERVICE_PORT"] == "443"


@pytest.mark.parametrize("url", ["", "nonsense", "https://h:99999999", "https://[::1"])
def test_nothing_is_told_of_what_is_no_url(url: str) -> None:
    assert apiserver.environment(url) == {}
