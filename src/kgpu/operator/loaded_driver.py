"""Whether the driver that is loaded on a node is the one that is asked for. Pure.

A driver in use stays loaded until nothing uses it, whatever image its pod has by then; readiness is judged by the
loaded one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kgpu.base.plain import items, mapping, text
from kgpu.formats import names
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.model import ClusterNode, Object

# NVIDIA's tags: 580.95.05, 580.95.05-ubuntu24.04; those of precompiled drivers name a branch: 580-6.8.0-57-generic.
_RELEASE: Final = re.compile(r"(?P<release>[0-9]{3,}(?:\.[0-9]+){0,2})(?:-|$)", re.ASCII)


def other_driver(view: CauseView, node: ClusterNode, fitting: Iterable[str]) -> Cause | None:
    """The cause when another driver is loaded than the DaemonSets ``fitting`` install; None too for tags without a
    release.
    """
    loaded = node.report.driver if node.report is not None else ""
    wanted = {release: name for name in fitting if (release := _wanted(view.wanted.get(name, {})))}
    if not loaded or not wanted or any(_is_of(loaded, release) for release in wanted):
        return None
    release, daemon_set = next(iter(wanted.items()))
    owner = node.labels.get(names.LABEL_DRIVER_OWNER, "") if view.policy.spec.driver.use_nvidia_driver_crd else ""
    field = f"spec.version of NVIDIADriver {owner}" if owner else "driver.version"
    return Cause(
        reason="OtherDriverLoaded",
        what=f"{field} asks for driver {release}, and driver {loaded} is loaded",
        remedy=(
            f"end what uses its GPUs (kubectl drain {node.name} --ignore-daemonsets), delete its pod of DaemonSet "
            f"{daemon_set}, and when the new driver is loaded: kubectl uncordon {node.name}"
        ),
    )


def _wanted(daemon_set: Object) -> str:
    """The release that a driver's DaemonSet installs, by its image's tag; "" when the tag has none."""
    pod = mapping(mapping(mapping(daemon_set.get("spec")).get("template")).get("spec"))
    first = next(iter(map(mapping, items(pod.get("containers")))), {})
    match = _RELEASE.match(text(first.get("image")).rpartition("/")[2].partition(":")[2])
    return match["release"] if match else ""


def _is_of(loaded: str, release: str) -> bool:
    """Whether the loaded driver is of a release or branch."""
    wanted = release.split(".")
    return loaded.split(".")[: len(wanted)] == wanted
