"""Faults on nodes that kgpu's own operator and agents look after: hardware, slices, sharing, settings, rights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kgpu.formats import names
from tests.doctor.lab.breaking import Break, Change, Fault, Ground, KernelSays, Sliced, Undo, Until, until
from tests.doctor.lab.labs import FIRST, SMALL
from tests.doctor.lab.things import GPU, SPACE, make, obj, pod, relabel, says, taint, xid

BROKEN = f"{SPACE}/broken"
OPERATOR = "gpu-operator"
CONFIGS = f"{OPERATOR}/device-plugin-config"
SECTIONS = (
    "daemonsets",
    "dcgm",
    "dcgmExporter",
    "devicePlugin",
    "driver",
    "gfd",
    "nodeStatusExporter",
    "operator",
    "toolkit",
)
ON_SMALL: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": SMALL}}


def policy(spec: dict[str, Any]) -> Change:
    return Change("ClusterPolicy", "cluster-policy", {"spec": spec})


def configured(**texts: str | None) -> Change:
    """Configurations of the device plugin, by name."""
    return Change("ConfigMap", CONFIGS, {"data": {key.replace("_", "-"): text for key, text in texts.items()}})


def chosen(node: str, name: str) -> Change:
    return relabel(node, {"nvidia.com/device-plugin.config": name})


def shared(replicas: int, *, resource: str = GPU, how: str = "timeSlicing", more: str = "") -> str:
    return f"version: v1\nsharing:\n  {how}:\n{more}    resources:\n    - {{name: {resource}, replicas: {replicas}}}\n"


def offering(**amounts: str) -> tuple[Until, ...]:
    """Waits until the small node offers that much of nvidia.com/KEY (with a dot for ``_``)."""
    return tuple(
        Until(
            "Node", SMALL, ("status", "allocatable", f"nvidia.com/{key.replace('__', '.').replace('_', '-')}"), amount
        )
        for key, amount in amounts.items()
    )


@dataclass(frozen=True, slots=True)
class LostAndRepaired:
    """A GPU that fell off the bus by the kernel's word; the agent has told it, and then that it is well again."""

    node: str
    gpu: int

    def do(self, ground: Ground) -> Undo:
        lost = KernelSays(self.node, self.gpu, 79, "GPU has fallen off the bus.")
        until(lambda: self._is_told(ground, lost), "the agent tells of it")
        repaired = lost.do(ground)
        repaired()
        until(lambda: self._says(ground) == "True", "the agent says that it is over")
        return repaired

    def _is_told(self, ground: Ground, lost: KernelSays) -> bool:
        """Whether the Node says so; as the driver's own verdict does not follow, one line counts for seconds only."""
        if self._says(ground) == "False":
            return True
        lost.do(ground)
        return False

    def _says(self, ground: Ground) -> str:
        rows = ((ground.get("Node", self.node) or {}).get("status") or {}).get("conditions") or ()
        return next((str(row["status"]) for row in rows if row["type"] == names.GPUS_HEALTHY_CONDITION), "")


@dataclass(frozen=True, slots=True)
class AgentAnew:
    """The agent's pod of a node is deleted, and its DaemonSet makes a new one, which opens the driver anew."""

    node: str

    def do(self, ground: Ground) -> Undo:
        pods = ground.resource("Pod")
        for one in ground.wait(ground.api.list(pods, namespace=OPERATOR)).items:
            if one["metadata"]["name"].startswith("kgpu-agent-") and one["spec"].get("nodeName") == self.node:
                ground.wait(ground.api.delete(pods, one["metadata"]["name"], namespace=OPERATOR, grace=0))
        return lambda: None


HARDWARE = (
    Break(
        what="a GPU has fallen off the bus", first="HW-01", names=FIRST, target=f"node {FIRST}",
        steps=(xid(79, node=FIRST, gpu=3),),
    ),
    Break(
        what="a GPU is lost without a word in the kernel's log", first="HW-01", names=SMALL, target=f"node {SMALL}",
        steps=(Fault(SMALL, "lost", {"gpu": 1}),),
    ),
    Break(what="a GPU's memory has errors", first="HW-02", names=FIRST, steps=(xid(95, node=FIRST, gpu=4),)),
    Break(
        what="a bad row of memory waits for a reset", first="HW-04", names=FIRST, steps=(xid(94, node=FIRST, gpu=5),),
    ),
    Break(
        what="the driver is not loaded, after a GPU was lost and repaired", first="DRV-01", names=SMALL,
        target=f"node {SMALL}", steps=(LostAndRepaired(SMALL, 1), Fault(SMALL, "init-error", {"code": "DRIVER_NOT_LOADED"}), AgentAnew(SMALL)),
    ),
    Break(
        what="a number that is in no catalogue", first="HW-00", names="Xid 999", target=f"node {FIRST}",
        steps=(xid(999, node=FIRST, gpu=2),),
    ),
    Break(
        what="the driver asks for a reset after an error that no row is about", first="HW-14", names="Xid 62",
        steps=(xid(62, node=FIRST, gpu=6),),
    ),
    Break(what="an NVLink has failed", first="HW-06", names=FIRST, steps=(xid(74, node=FIRST, gpu=6),)),
    Break(
        what="a GPU's firmware does not answer", first="HW-07", names=SMALL,
        steps=(KernelSays(SMALL, 0, 119, "Timeout after 6s of waiting for RPC response from GPU0 GSP!"),),
    ),
    Break(what="a program's own error", first="HW-08", names=FIRST, steps=(xid(31, node=FIRST, gpu=7),)),
    Break(
        what="calls about a GPU do not return", first="HW-12", names=SMALL, steps=(Fault(SMALL, "hang", {"gpu": 0}),),
    ),
)  # fmt: skip

SETTINGS = (
    Break(
        what="a node's label names a configuration that is not there", first="TS-13", names=SMALL, target=f"node {SMALL}",
        steps=(configured(shared=shared(4)), chosen(SMALL, "shraed")),
    ),
    Break(
        what="the policy names a ConfigMap that is not there", first="TS-02", names="time-slicing",
        steps=(policy({"devicePlugin": {"config": {"name": "time-slicing", "default": "any"}}}),),
    ),
    Break(
        what="the name of the plugin's ConfigMap with a letter left out", first="TS-02",
        names="did you mean device-plugin-config?",
        steps=(policy({"devicePlugin": {"config": {"name": "device-plugin-confg"}}}),),
    ),
    Break(
        what="the policy's default names a configuration that is not there", first="TS-13",
        names="did you mean shared?",
        steps=(configured(shared=shared(4)), policy({"devicePlugin": {"config": {"default": "shraed"}}})),
    ),
    Break(
        what="shares that no node uses", first="TS-03", names="device-plugin-config",
        steps=(configured(shared=shared(4)),),
    ),
    Break(
        what="a key at the wrong place in the sharing", first="DPL-17", names="device-plugin-config",
        steps=(
            configured(shared="flags:\n  renameByDefault: true\n" + shared(4)), chosen(SMALL, "shared"),
        ),
    ),
    Break(
        what="time-slicing and MPS in one configuration", first="MPS-12", names="device-plugin-config",
        steps=(
            configured(both=shared(4) + "  mps:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 10}\n"),
            chosen(SMALL, "both"),
        ),
    ),
    Break(
        what="shares have another name", first="SCH-04", names=BROKEN, target=f"pod {BROKEN}",
        steps=(
            configured(renamed=shared(4, more="    renameByDefault: true\n")), chosen(SMALL, "renamed"),
            *offering(gpu__shared="8"), make(pod(gpus=1, **ON_SMALL)),
        ),
    ),
    Break(
        what="several shares where only one may be asked for", first="TS-05", names=BROKEN,
        steps=(
            configured(one=shared(4, more="    failRequestsGreaterThanOne: true\n")), chosen(SMALL, "one"),
            *offering(gpu="8"), make(pod(gpus=3, **ON_SMALL)),
        ),
    ),
    Break(
        what="a product label with -SHARED behind it", first="SCH-08", names="NVIDIA-A100-SXM4-40GB-SHARED",
        steps=(
            configured(shared=shared(4)), chosen(SMALL, "shared"),
            Until("Node", SMALL, ("metadata", "labels", "nvidia.com/gpu.product"), "NVIDIA-A100-SXM4-40GB-SHARED"),
            make(pod(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"})),
        ),
    ),
    Break(
        what="a neighbour on the shared GPU has the memory", first="TS-06", names=BROKEN,
        steps=(
            configured(shared=shared(4)), chosen(SMALL, "shared"), *offering(gpu="8"),
            make(
                pod("neighbour", 1, **ON_SMALL),
                pod(gpus=1, restartPolicy="Never", command=says(
                    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."), **ON_SMALL),
            ),
        ),
    ),
    Break(
        what="every GPU is partitioned, and a whole one is asked for", first="SCH-06", names=BROKEN, target=f"pod {BROKEN}",
        steps=(
            Sliced(SMALL, dict.fromkeys(range(2), ("3g.20gb", "3g.20gb"))),
            configured(mixed="version: v1\nflags: {migStrategy: mixed}\n"), chosen(SMALL, "mixed"),
            *offering(mig_3g__20gb="4", gpu="0"), make(pod(gpus=1, **ON_SMALL)),
        ),
    ),
    Break(
        what="a slice by its name where slices go as whole GPUs", first="SCH-05", names=BROKEN,
        steps=(
            Sliced(SMALL, dict.fromkeys(range(2), ("3g.20gb", "3g.20gb"))),
            configured(single="version: v1\nflags: {migStrategy: single}\n"), chosen(SMALL, "single"),
            *offering(gpu="4"), make(pod(gpus={"nvidia.com/mig-3g.20gb": 1}, **ON_SMALL)),
        ),
    ),
    Break(
        what="operands are switched off on a node", first="TNT-12", names=SMALL, target=f"node {SMALL}",
        steps=(relabel(SMALL, {"nvidia.com/gpu.deploy.device-plugin": "false"}), *offering(gpu="0")),
    ),
    Break(
        what="a taint for which the agents have no toleration", first="TNT-04", names="kgpu-agent",
        steps=(taint(SMALL, {"key": "maintenance", "value": "soon", "effect": "NoExecute"}),),
    ),
    Break(
        what="a second ClusterPolicy", first="OPR-03", names="second",
        steps=(make(obj("ClusterPolicy", "second", spec={key: {} for key in SECTIONS})),),
    ),
    Break(
        what="the operator is scaled to nothing", first="OPR-08", names="gpu-operator",
        steps=(Change("Deployment", f"{OPERATOR}/gpu-operator", {"spec": {"replicas": 0}}),),
    ),
)  # fmt: skip
BREAKS = (*HARDWARE, *SETTINGS)
