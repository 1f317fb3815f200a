"""AMD, Gaudi and Intel nodes, and devices that are handed out by claims (DRA)."""

from __future__ import annotations

from typing import Any

from kgpu.kube.port import Object
from tests.doctor.lab.breaking import Break, Gone, Step
from tests.doctor.lab.labs import FIRST, PLAIN
from tests.doctor.lab.peers import AMD_LABELS, INTEL_LABELS, SPACE, amd, gaudi, offers, part, parts
from tests.doctor.lab.things import SPACE as TEAM
from tests.doctor.lab.things import make, obj, pod, relabel, says, taint

BROKEN = f"{TEAM}/broken"
AMD_PLUGIN = "amdgpu-dp-ds"
CLASS = "gpu.nvidia.com"


def device(name: str, **more: Any) -> Object:
    return {
        "name": name, "attributes": {"productName": {"string": "NVIDIA H100 80GB HBM3"}, "type": {"string": "gpu"}},
        "capacity": {"memory": {"value": "81559Mi"}}, **more,
    }  # fmt: skip


def slices(*devices: Object) -> tuple[Step, ...]:
    """A node whose GPUs are handed out by a DRA driver that runs there."""
    driver = part("nvidia-dra-driver-gpu", "started", stay=True, args=("gpu-kubelet-plugin",))
    return (
        relabel(PLAIN, {"feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/gpu.present": "true"}),
        parts(driver),
        make(
            obj("DeviceClass", CLASS, spec={"selectors": [{"cel": {"expression": f'device.driver == "{CLASS}"'}}]}),
            obj("ResourceSlice", f"{PLAIN}-gpus", spec={
                "driver": CLASS, "nodeName": PLAIN, "pool": {"name": PLAIN, "generation": 1, "resourceSliceCount": 1},
                "devices": list(devices),
            }),
        ),
    )  # fmt: skip


def claim(name: str = "gpu", *, device_class: str = CLASS, expression: str = "") -> Object:
    exactly = {
        "deviceClassName": device_class,
        **({"selectors": [{"cel": {"expression": expression}}]} if expression else {}),
    }
    return obj("ResourceClaim", name, TEAM, spec={"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}})


def claimant(claim_name: str = "gpu") -> Object:
    return pod(
        gpus=0,
        container={"resources": {"claims": [{"name": "gpu"}]}},
        resourceClaims=[{"name": "gpu", "resourceClaimName": claim_name}],
    )


def held(name: str, gpu: str) -> Object:
    """A claim that has a device already."""
    result = {"request": "gpu", "driver": CLASS, "pool": PLAIN, "device": gpu}
    return {**claim(name), "status": {"allocation": {"devices": {"results": [result]}}}}


TWO = (device("gpu-0"), device("gpu-1"))
TAINTED = device("gpu-0", taints=[{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}])
ALLOCATED = "the claims of others are written as allocated, for pods that are not there"

BREAKS = (
    Break(
        what="no amdgpu module", first="AMD-01", names=f"{SPACE}/{AMD_PLUGIN}",
        steps=(*amd(None), parts(part(AMD_PLUGIN, "amdgpu driver unavailable. exiting with exit code 2", code=2))),
    ),
    Break(
        what="the taint of a change of partitions stayed", first="AMD-09", names=PLAIN,
        steps=(*amd(), taint(PLAIN, {"key": "amd-dcm", "value": "up", "effect": "NoExecute"})),
    ),
    Break(
        what="the exporter has withdrawn a GPU", first="AMD-10", names=PLAIN,
        steps=(relabel(PLAIN, {**AMD_LABELS, "metricsexporter.amd.com.gpu.3.state": "unhealthy"}), offers("amd.com/gpu", 7, capacity=8)),
    ),
    Break(
        what="a DeviceConfig whose operator is gone", first="AMD-12", names="amd-gpus",
        steps=(
            *amd(),
            parts(obj("DeviceConfig", "amd-gpus", SPACE, metadata={"finalizers": ["amd.node.kubernetes.io/deviceconfig-finalizer"]}, spec={"driver": {"enable": False}})),
            Gone("DeviceConfig", f"{SPACE}/amd-gpus"),
        ),
    ),
    Break(
        what="the taint of a remediation stayed", first="AMD-16", names=PLAIN,
        steps=(*amd(), taint(PLAIN, {"key": "amd-gpu-unhealthy", "value": "true", "effect": "NoSchedule"})),
    ),
    Break(
        what="no right to open /dev/kfd", first="AMD-17", names=BROKEN,
        steps=(*amd(), make(pod(gpus={"amd.com/gpu": 1}, restartPolicy="Never", command=says("Unable to open /dev/kfd read-write: Permission denied")))),
    ),
    Break(
        what="somebody else has the Gaudi card", first="GAU-03", names=BROKEN,
        steps=(*gaudi(), make(pod(gpus={"habana.ai/gaudi": 1}, restartPolicy="Never", command=says("RuntimeError: synStatus=20 [Device already acquired] Device acquire failed.")))),
    ),
    Break(
        what="Gaudi's driver and image are of two releases", first="GAU-04", names=BROKEN,
        steps=(*gaudi(), make(pod(gpus={"habana.ai/gaudi": 1}, restartPolicy="Never", command=says("RuntimeError: synStatus=26 [Generic failure] Device acquire failed.")))),
    ),
    Break(
        what="the resource of Intel's other driver", first="INT-01", names=BROKEN,
        steps=(relabel(PLAIN, dict(INTEL_LABELS)), offers("gpu.intel.com/xe", 1), make(pod(gpus={"gpu.intel.com/i915": 1}))),
    ),
    Break(
        what="a claim that is not there", first="DRA-02", names="no-such-claim", target=f"pod {BROKEN}",
        steps=(*slices(*TWO), make(claimant("no-such-claim"))),
    ),
    Break(
        what="a claim in another namespace", first="DRA-22", names="gpu",
        steps=(*slices(*TWO), make({**claim(), "metadata": {"name": "gpu", "namespace": "default"}}, claimant())),
    ),
    Break(
        what="a misspelt device class", first="DRA-03", names="gpu.nvidia.co", target=f"claim {TEAM}/gpu",
        steps=(*slices(*TWO), make(claim(device_class="gpu.nvidia.co"), claimant())),
    ),
    Break(
        what="more memory than a device of 80 GB has", first="DRA-06", names=f"{TEAM}/gpu",
        steps=(
            *slices(*TWO),
            make(claim(expression=f'device.capacity["{CLASS}"].memory.compareTo(quantity("80Gi")) >= 0'), claimant()),
        ),
    ),
    Break(
        what="an attribute that devices do not have", first="DRA-04", names=f"{TEAM}/gpu",
        steps=(*slices(*TWO), make(claim(expression=f'device.attributes["{CLASS}"].model == "H100"'), claimant())),
    ),
    Break(
        what="other claims have every device", first="DRA-01", names=f"{TEAM}/gpu",
        steps=(*slices(*TWO), make(held("a", "gpu-0"), held("b", "gpu-1"), claim(), claimant())), played=ALLOCATED,
    ),
    Break(
        what="the only device is tainted for its Xid", first="DRA-18", names=f"{TEAM}/gpu",
        steps=(*slices(TAINTED), make(claim(), claimant())),
    ),
    Break(
        what="the driver of the claim has no slices", first="DRA-07", names=CLASS,
        steps=(*slices(), make(claim(), claimant())),
    ),
    Break(
        what="a node whose GPUs two drivers hand out", first="DPL-19", names=FIRST,
        steps=(
            make(
                obj("ResourceSlice", "twice", spec={
                    "driver": CLASS, "nodeName": FIRST, "pool": {"name": FIRST, "generation": 1, "resourceSliceCount": 1},
                    "devices": [device("gpu-0")],
                }),
            ),
        ),
    ),
)  # fmt: skip
