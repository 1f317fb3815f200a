"""Whether the driver that is loaded on a node is the one that is asked for. Pure.

A driver in use stays loaded until nothing uses it, whatever image its pod has by then; readiness is judged by the
loaded one, beside what the pod was made for (``upgrade_causes``).
"""

from __future__ import annotations

from collections.abc import Iterable

from kgpu.base.plain import items, mapping, text
from kgpu.formats.driver_revision import is_of_release, release_of
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.model import ClusterNode, Object


def other_driver(view: CauseView, node: ClusterNode, fitting: Iterable[str]) -> Cause | None:
    """The cause when another driver is loaded than the DaemonSets ``fitting`` install; None too for tags without a
    release.
    """
    loaded = node.report.driver if node.report is not None else ""
    wanted = {release: name for name in fitting if (release := _wanted(view.wanted.get(name, {})))}
    if not loaded or not wanted or any(is_of_release(loaded, release) for release in wanted):
        return None
    release, daemon_set = next(iter(wanted.items()))
    owner = node.driver_owner if view.policy.spec.driver.use_nvidia_driver_crd else ""
    field = f"spec.version of NVIDIADriver {owner}" if owner else "driver.version"
    return Cause(
        reason="OtherDriverLoaded",
        what=f"{field} asks for driver {release}, and driver {loaded} is loaded",
        remedy=(
            f"empty it (kgpu node maintain {node.name}), delete its pod of DaemonSet {daemon_set}, and when the new "
            "driver is loaded resume it (kgpu operations list names the operation)"
        ),
    )


def _wanted(daemon_set: Object) -> str:
    """The release that a driver's DaemonSet installs, by its image's tag; "" when the tag has none."""
    pod = mapping(mapping(mapping(daemon_set.get("spec")).get("template")).get("spec"))
    first = next(iter(map(mapping, items(pod.get("containers")))), {})
    return release_of(text(first.get("image")))
