"""An embedded lab's API server asked directly, for what tests ask again and again: a kubectl for each question costs a
hundred times as much processor time as the question.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from pathlib import Path
from typing import Any, Final

import yaml

from kgpu.lab.nodes import apiserver

_PATHS: Final = {
    "node": "/api/v1/nodes",
    "persistentvolumeclaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "pod": "/api/v1/namespaces/{}/pods",
    "configmap": "/api/v1/namespaces/{}/configmaps",
    "daemonset": "/apis/apps/v1/namespaces/{}/daemonsets",
    "deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "clusterpolicy": "/apis/nvidia.com/v1/clusterpolicies",
    "nodeoperation": "/apis/kgpu.dev/v1alpha1/nodeoperations",
}
_SECONDS: Final = 60.0


_OPTIONS: Final = {
    "-n": "namespace", "--namespace": "namespace", "-l": "labelSelector", "--selector": "labelSelector",
    "--field-selector": "fieldSelector",
}  # fmt: skip


def get(kubeconfig: Path, *words: str) -> Any:
    """What ``kubectl get WORDS -o json`` shows: a kind, the name of an object or none, and options with their values.

    Raises LookupError with the answer that says why there is nothing.
    """
    kind, *rest = words
    name = rest.pop(0) if rest and not rest[0].startswith("-") else ""
    asked = {_OPTIONS[option]: value for option, value in zip(rest[::2], rest[1::2], strict=True)}
    path = _PATHS[kind.removesuffix("s")].format(asked.pop("namespace", "default")) + (f"/{name}" if name else "")
    return read(kubeconfig, f"{path}?{urllib.parse.urlencode(asked)}" if asked else path)


def read(kubeconfig: Path, path: str) -> Any:
    """The object at a path of the API server, or the text of a log. Raises LookupError as ``get``."""
    try:
        status, answer = _ask(kubeconfig, path)
    except (http.client.HTTPException, OSError):  # the server ends connections that nobody uses
        connection, _ = _OPEN.pop(kubeconfig, (None, ""))
        if connection is not None:
            connection.close()
        status, answer = _ask(kubeconfig, path)
    if status != http.HTTPStatus.OK:
        raise LookupError(f"{path}: {status} {answer.decode(errors='replace')}")
    return answer.decode(errors="replace") if path.partition("?")[0].endswith("/log") else json.loads(answer)


def _ask(kubeconfig: Path, path: str) -> tuple[int, bytes]:
    connection, token = _connection(kubeconfig)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


_OPEN: Final[dict[Path, tuple[http.client.HTTPSConnection, str]]] = {}
"""A connection for each lab, and the token to ask with."""


def _connection(kubeconfig: Path) -> tuple[http.client.HTTPSConnection, str]:
    if kubeconfig not in _OPEN:
        _OPEN[kubeconfig] = _opened(kubeconfig)
    return _OPEN[kubeconfig]


def _opened(kubeconfig: Path) -> tuple[http.client.HTTPSConnection, str]:
    server = apiserver.read(kubeconfig)
    tls = ssl.create_default_context(cadata=server.ca.decode())
    host = urllib.parse.urlparse(server.url).netloc
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    return http.client.HTTPSConnection(host, context=tls, timeout=_SECONDS), token
