"""What the nodes' pods and log server know of the API server: where it is and by which CA it is known."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kgpu.base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ApiServer:
    """``ca`` is PEM, empty when the kubeconfig has none; ``url`` as clients use it."""

    url: str
    ca: bytes


def read(kubeconfig: Path) -> ApiServer:
    """The API server of the current context. Raises ConfigError."""
    import yaml

    try:
        data = yaml.safe_load(kubeconfig.read_text())
        name = next(c["context"]["cluster"] for c in data["contexts"] if c["name"] == data["current-context"])
        cluster = next(c["cluster"] for c in data["clusters"] if c["name"] == name)
        return ApiServer(str(cluster.get("server") or ""), _ca(cluster, kubeconfig.parent))
    except (
        OSError, yaml.YAMLError, LookupError, TypeError, AttributeError, StopIteration, ValueError, binascii.Error,
        RecursionError,
    ) as error:  # fmt: skip
        raise ConfigError(
            f"{kubeconfig} can't be used: {type(error).__name__}: {error}",
            "a kubeconfig with a current context",
            "give another --kubeconfig",
        ) from error


def _ca(cluster: dict[str, str], folder: Path) -> bytes:
    if "certificate-authority-data" in cluster:
        return base64.b64decode(cluster["certificate-authority-data"])
    path = cluster.get("certificate-authority")
    return (folder / path).read_bytes() if path else b""


def environment(url: str) -> dict[str, str]:
    """The variables of the ``kubernetes`` Service in every container; empty for a URL without a host.

    A pod's program runs on this machine, where a Service's address leads nowhere: it is given the server's own.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", str(parts.port or 443)
    except ValueError:
        return {}
    if not host:
        return {}
    tcp = f"tcp://{host}:{port}"
    return {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
        "KUBERNETES_PORT": tcp,
        f"KUBERNETES_PORT_{port}_TCP": tcp,
        f"KUBERNETES_PORT_{port}_TCP_PROTO": "tcp",
        f"KUBERNETES_PORT_{port}_TCP_PORT": port,
        f"KUBERNETES_PORT_{port}_TCP_ADDR": host,
    }
