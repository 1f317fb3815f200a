"""Why something could not be read, as a word for a metric's label."""

from __future__ import annotations

from typing import Final

from kgpu.base.errors import HostError, HwError, KubeletError, UserError
from kgpu.kube.port import KubeRefusedError

_CODES: Final = {401: "unauthorized", 403: "forbidden", 404: "not-served"}
_LAYERS: Final = ((HwError, "driver"), (HostError, "unreadable"))


def reason_of(error: UserError) -> str:
    """One of a few words, or gRPC's name of an error; nothing else that comes from outside."""
    if isinstance(error, KubeRefusedError):
        return _CODES.get(error.code, "refused")
    if isinstance(error, KubeletError):
        if isinstance(error.__cause__, FileNotFoundError):
            return "no-socket"
        # An RpcError has gRPC's name of it; its module would bring gRPC into processes that ask no kubelet.
        return str(getattr(error, "status", "")).lower().replace("_", "-") or "unreachable"
    return next((word for layer, word in _LAYERS if isinstance(error, layer)), "unreachable")
