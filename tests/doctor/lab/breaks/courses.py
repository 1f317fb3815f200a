"""What GPU courses ask about, as far as the other tables do not have it: the pages of docs/answers are played from here."""

from __future__ import annotations

from kgpu.kube.port import Object
from tests.doctor.lab.breaking import Break, Change
from tests.doctor.lab.breaks.operated import shared
from tests.doctor.lab.breaks.stack import DRIVER, EXPORTER, TOOLKIT, says
from tests.doctor.lab.breaks.workloads import fails
from tests.doctor.lab.labs import ELSEWHERE, FIRST, PLAIN
from tests.doctor.lab.peers import PLUGIN, nvidia, offers, part, parts
from tests.doctor.lab.peers import SPACE as STACK
from tests.doctor.lab.things import GPU, SHELL, SPACE, at, deployment, event, job, make, obj, played, pod

BROKEN = f"{SPACE}/broken"
FOUR = shared(4)
FULL = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
LARGE = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def policy(**spec: object) -> Object:
    return obj("ClusterPolicy", "cluster-policy", spec=spec)


def named(name: str = "time-slicing", key: str = "any") -> dict[str, object]:
    return {"devicePlugin": {"config": {"name": name, "default": key}}}


def limits(name: str, **about: object) -> Object:
    """A LimitRange of containers."""
    return obj("LimitRange", name, SPACE, spec={"limits": [{"type": "Container", **about}]})


def sharing(name: str = "time-slicing") -> Object:
    return obj("ConfigMap", name, STACK, data={"any": FOUR})


def mounting(app: str, *lines: str, **about: object) -> Object:
    """A part that sees the kubelet's pod-resources."""
    made = part(app, *lines, **about)  # type: ignore[arg-type]
    place = "/var/lib/kubelet/pod-resources"
    spec = made["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "pod-resources", "hostPath": {"path": place}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "pod-resources", "mountPath": place}]
    return made


def running(name: str, gpus: int) -> Object:
    """A pod on the node that is none."""
    return played(pod(name, gpus, nodeName=ELSEWHERE), "Running")


def one_shared(replicas: int) -> Object:
    """A node that offers one GPU so many times."""
    offered = {"cpu": "8", "memory": "32Gi", "pods": "110", GPU: str(replicas)}
    labels = {
        "nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.product": "NVIDIA-L4-SHARED", "nvidia.com/gpu.sharing-strategy": "time-slicing",
    }  # fmt: skip
    status = {"capacity": offered, "allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]}
    return obj("Node", ELSEWHERE, metadata={"labels": labels}, status=status)


BREAKS = (
    Break(
        what="a namespace that gives every container half a GPU", first="QTA-01", names=f"{SPACE}/serve",
        steps=(make(limits("half", default={GPU: "0.5"}, defaultRequest={GPU: "0.5"})), make(deployment("serve", 1, 0))),
    ),
    Break(
        what="a namespace that requests a GPU and sets no limit", first="QTA-02", names=f"{SPACE}/train",
        steps=(make(limits("requested", defaultRequest={GPU: "1"})), make(job("train", 0))),
    ),
    says("headers of another kernel", "KRN-02", DRIVER,
         "Your kernel headers for kernel 6.8.0-45-generic cannot be found at /lib/modules/6.8.0-45-generic/build"),
    Break(
        what="slices on GPUs of several kinds under a driver that loses them", first="MIG-09", names=PLAIN,
        steps=(*nvidia(7, **{"nvidia.com/cuda.driver-version.full": "570.148.08"}), offers("nvidia.com/mig-1g.10gb", 7)),
    ),
    Break(
        what="the NRI plugin on an engine that has it otherwise", first="RUN-15", names="cluster-policy",
        steps=(
            *nvidia(), make(policy(cdi={"enabled": True, "nriPluginEnabled": True})),
            Change("Node", PLAIN, {"status": {"nodeInfo": {"containerRuntimeVersion": "cri-o://1.28.4"}}}, "status"),
        ),
    ),
    says("a configuration that is not there", "DPL-16", PLUGIN,
         'level=error msg="Error: specified config shraed does not exist"',
         **{"nvidia.com/device-plugin.config": "shraed"}),
    Break(
        what="started before the toolkit was there", first="RUN-29", names=BROKEN,
        played="an engine that did not know the runtime, an hour ago",
        steps=(
            make(
                played(pod(nodeName=ELSEWHERE), "Pending"),
                event("Pod/broken", "FailedCreatePodSandBox",
                      'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "nvidia" is configured',
                      ago=3600),
                played(
                    pod(TOOLKIT, 0, labels={"app": TOOLKIT}, nodeName=ELSEWHERE), "Running", startTime=at(1800),
                    containerStatuses=[{
                        "name": "main", "image": SHELL, "imageID": "", "ready": True, "restartCount": 0,
                        "state": {"running": {"startedAt": at(1800)}},
                    }],
                ),
            ),
        ),
    ),
    Break(
        what="a series for every share of a GPU and every label of its pod", first="MET-23", names=EXPORTER,
        steps=(
            *nvidia(8, **{"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}),
            parts(
                sharing(),
                mounting(EXPORTER, "started", stay=True, env={
                    "DCGM_EXPORTER_KUBERNETES": "true", "KUBERNETES_VIRTUAL_GPUS": "true",
                    "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "true",
                    "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX": "^app$",
                }),
            ),
            make(policy(**named())),
        ),
    ),
    Break(
        what="a small job on the large GPUs that another pod needs", first="SCH-11", names=BROKEN,
        steps=(
            make(pod("any", 2, nodeName=FIRST), pod("sure", 3, nodeSelector=LARGE)), make(pod(gpus=2, nodeSelector=LARGE)),
        ),
    ),
    fails("out of memory on a GPU of one's own", "TS-14",
          FULL + " Of the allocated memory 61.2 GiB is allocated by PyTorch, and 14.1 GiB is reserved by PyTorch but unallocated."),
    Break(
        what="a change of the sharing that the plugin has not read", first="TS-01", names=PLUGIN,
        steps=(*nvidia(2), parts(sharing(), part(PLUGIN, "started", stay=True)), make(policy(**named()))),
    ),
    Break(
        what="a configuration of the sharing that the policy does not name", first="TS-04", names="time-slicing",
        steps=(
            *nvidia(2), parts(sharing(), part(PLUGIN, "started", stay=True)), make(policy(devicePlugin={})),
            make(pod("holder", 5), pod(gpus=1, nodeSelector=LARGE)),
        ),
    ),
    Break(
        what="a policy that calls itself not ready where all of its pods are", first="OBJ-00", names="DaemonSet that is not the operator's",
        played="no operator looks after this policy: what one says of it is written",
        steps=(
            *nvidia(2), parts(part(PLUGIN, "started", stay=True)),
            make({**policy(), "status": {"state": "notReady", "conditions": [{
                "type": "DevicePluginReady", "status": "False", "reason": "Conflict", "lastTransitionTime": at(900),
                "message": "there is a DaemonSet that is not the operator's",
            }]}}),
        ),
    ),
    Break(
        what="two shares of one GPU, which are not twice the time", first="TS-07", names=BROKEN,
        played="a node with one shared GPU, and the pods on it",
        steps=(make(one_shared(10), running("other", 1), running("broken", 2)),),
    ),
)  # fmt: skip
