"""Stories of devices behind feature gates that are off in Kubernetes 1.35: binding conditions, and DeviceTaintRules.

``python -m tests.lab.real.record_device_stories gated`` plays them on real programs and writes how they end to ``SAID``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.embedded.scheduler.device_stories import (
    DRIVER,
    FOUR,
    DeviceStory,
    Object,
    claim,
    device,
    device_class,
    exactly,
    gone,
    pieces,
    pod,
)

SAID = Path(__file__).parent / "gated_stories.json"
CONDITIONS = {"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"], "bindsToNode": True}
ATTACHED = device("gpu-0", **CONDITIONS)
TAINT = {"key": "gpu.example.com/xid", "value": "79", "effect": "NoSchedule"}
GOES = {**TAINT, "effect": "NoExecute"}
TOLERATED = {"key": TAINT["key"], "operator": "Exists", "effect": "NoExecute"}


def driver(of: str, **conditions: str) -> Object:
    """What the driver says of a claim's devices."""
    return {"conditions": conditions, "metadata": {"name": of}}


def rule(name: str, selector: Mapping[str, str] | None, taint: Object) -> Object:
    spec = {"taint": taint} | ({} if selector is None else {"deviceSelector": dict(selector)})
    version = "resource.k8s.io/v1alpha3"
    return {"apiVersion": version, "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}


def fabric(*devices: Object) -> Object:
    """Devices that any node can have."""
    return pieces("fabric", devices, allNodes=True)


STORIES: Sequence[DeviceStory] = (
    DeviceStory(
        "a device that is attached",
        [device_class(), fabric(ATTACHED), claim("c", exactly())],
        [pod("p", "c", on="a"), driver("c", attached="True")],
    ),
    DeviceStory(
        "a device that is not attached yet",
        [device_class(), fabric(ATTACHED), claim("c", exactly())],
        [pod("p", "c", on="a"), driver("c", attached="False", broken="False")],
    ),
    DeviceStory(
        "two pods of one claim wait for its device",
        [device_class(), fabric(ATTACHED), claim("c", exactly())],
        [pod("p", "c", on="a"), pod("q", "c"), driver("c", attached="True")],
    ),
    DeviceStory(
        "devices without conditions come first",
        [device_class(), fabric(ATTACHED, device("gpu-1")), pieces("a", [device("gpu-2")]), claim("c", exactly())],
        [pod("p", "c", on="a")],
    ),
    DeviceStory(
        "a rule for one device",
        [device_class(), pieces("a", FOUR), rule("r", {"driver": DRIVER, "pool": "a", "device": "gpu-0"}, TAINT),
         claim("c", exactly())],
        [pod("p", "c", on="a")],
    ),
    DeviceStory(
        "a rule for a driver",
        [device_class(), pieces("a", FOUR), rule("r", {"driver": DRIVER}, TAINT), claim("c", exactly()),
         claim("d", exactly(tolerations=[{"key": TAINT["key"], "operator": "Exists"}]))],
        [pod("p", "c"), pod("q", "d")],
    ),
    DeviceStory(
        "a rule for another pool",
        [device_class(), pieces("a", FOUR), rule("r", {"pool": "b"}, TAINT), claim("c", exactly())],
        [pod("p", "c")],
    ),
    DeviceStory(
        "a rule without a selector",
        [device_class(), pieces("a", FOUR), rule("r", None, GOES), claim("c", exactly())],
        [pod("p", "c")],
    ),
    DeviceStory(
        "a rule with no effect",
        [device_class(), pieces("a", FOUR), rule("r", {}, {**TAINT, "effect": "None"}), claim("c", exactly())],
        [pod("p", "c")],
    ),
    DeviceStory(
        "a rule that goes",
        [device_class(), pieces("a", FOUR), rule("r", {}, TAINT), claim("c", exactly())],
        [pod("p", "c"), gone("DeviceTaintRule", "r")],
    ),
    DeviceStory(
        "a rule that evicts who does not tolerate it",
        [device_class(), pieces("a", FOUR), claim("c", exactly()), claim("d", exactly(tolerations=[TOLERATED]))],
        [pod("p", "c"), pod("q", "d"), rule("r", {"driver": DRIVER}, GOES)],
    ),
)  # fmt: skip
