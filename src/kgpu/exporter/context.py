"""What the exporter works with on a node, as a role of the agent and as a program of its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kgpu.base.advice import AdviceSink
from kgpu.exporter.cached_reader import CachedReader
from kgpu.exporter.config import ExporterOptions
from kgpu.exporter.reload import asks_pods
from kgpu.exporter.run import ExporterContext
from kgpu.exporter.users.open import open_users
from kgpu.formats.names import KUBELET_DEVICE_PLUGIN_DIR
from kgpu.hw.port import Reader
from kgpu.hw.verdicts import VerdictFile, verdicts_path
from kgpu.kube.port import KubeApi


def make_context(
    options: ExporterOptions,
    reader: Reader,
    *,
    report: AdviceSink,
    api: KubeApi | None,
    node: str,
    host_root: str,
    driver_root: Path | None,
    plugins_folder: Path = Path(KUBELET_DEVICE_PLUGIN_DIR),
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> ExporterContext:
    """Make the context of an exporter on this node; ``more`` are further fields of it."""
    env = os.environ if env is None else env
    reader = CachedReader(reader)
    return ExporterContext(
        reader=reader,
        users=open_users(
            options,
            reader,
            tell=report,
            api=api,
            node=node,
            host_root=Path(host_root),
            driver_root=driver_root,
            plugins_folder=plugins_folder,
            namespace=env.get("NAMESPACE", ""),
            facts=asks_pods(options),
        ),
        options=options,
        hostname=env.get("NODE_NAME") or node or socket.gethostname(),
        report=report,
        api=_again(api),
        verdicts=VerdictFile(verdicts_path(host_root, env)),
        xid_text=_xid_text,
        **more,
    )


def _again(api: KubeApi | None) -> Callable[[], KubeApi] | None:
    return None if api is None else lambda: api


def _xid_text(code: int) -> str:
    from kgpu.formats.xid.catalogue import short_name

    return short_name(code)
