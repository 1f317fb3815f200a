"""What is wrong with GPU operators and their neighbours as objects tell it: policies, monitors, queues, autoscalers."""

from __future__ import annotations

from kgpu.kube.port import Object
from tests.doctor.lab.breaking import Break, Conditioned
from tests.doctor.lab.labs import ELSEWHERE, FIRST, PLAIN
from tests.doctor.lab.peers import PLUGIN, SPACE, nvidia, part, parts
from tests.doctor.lab.things import GPU, event, make, obj, played, pod, relabel, taint
from tests.doctor.lab.things import SPACE as TEAM

BROKEN = f"{TEAM}/broken"
EXPORTER = "nvidia-dcgm-exporter"


def monitor(port: str = "gpu-metrics", **labels: str) -> tuple[Object, ...]:
    """An exporter with its Service, and a ServiceMonitor of that port."""
    return (
        part(EXPORTER, "started", stay=True, env={"DCGM_EXPORTER_KUBERNETES": "true"}),
        obj("Service", EXPORTER, SPACE, metadata={"labels": {"app": EXPORTER}}, spec={
            "selector": {"app": EXPORTER}, "ports": [{"name": "gpu-metrics", "port": 9400}],
        }),
        obj("ServiceMonitor", EXPORTER, SPACE, metadata={"labels": {"release": "prometheus", **labels}}, spec={
            "selector": {"matchLabels": {"app": EXPORTER}}, "endpoints": [{"port": port, "interval": "15s", "honorLabels": True}],
        }),
    )  # fmt: skip


def nfd_master(namespace: str) -> Object:
    return part("nfd-master", "started", stay=True, namespace=namespace)


def intolerant(part_of: Object) -> Object:
    """A part that tolerates no more than NVIDIA's own do."""
    part_of["spec"]["template"]["spec"]["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    return part_of


def pulling(image: str) -> Object:
    """A pod whose image does not come."""
    waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
    status = {
        "name": "main",
        "image": image,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
    }
    return played(pod(image=image, nodeName=ELSEWHERE), "Pending", containerStatuses=[status])


def annotated(one: Object, annotations: dict[str, str]) -> Object:
    one["metadata"]["annotations"] = annotations
    return one


BREAKS = (
    Break(
        what="a ServiceMonitor of a port that the Service does not have", first="MET-01", names=EXPORTER,
        steps=(*nvidia(), parts(*monitor("metrics"))),
    ),
    Break(
        what="a Prometheus that selects by another label", first="MET-02", names=EXPORTER,
        steps=(
            *nvidia(),
            parts(*monitor(), obj("Prometheus", "main", SPACE, spec={"serviceMonitorSelector": {"matchLabels": {"release": "monitoring"}}})),
        ),
    ),
    Break(
        what="an alert on the last Xid, which latches", first="MET-10", names="gpu-alerts",
        steps=(
            parts(obj("PrometheusRule", "gpu-alerts", SPACE, spec={"groups": [{
                "name": "gpu", "rules": [{"alert": "GPUXid", "expr": "DCGM_FI_DEV_XID_ERRORS != 0"}],
            }]})),
        ),
    ),
    Break(
        what="two stand-alone plugins on one node", first="DPL-20", names="static-plugin",
        steps=(
            *nvidia(),
            parts(
                part(PLUGIN, "I0101 Registered device plugin for 'nvidia.com/gpu' with Kubelet", stay=True),
                part(PLUGIN, "I0101 Registered device plugin for 'nvidia.com/gpu' with Kubelet", stay=True, name="static-plugin", namespace="kube-system"),
            ),
        ),
    ),
    Break(
        what="two node feature discoveries", first="OPR-23", names="nfd-master",
        steps=(parts(nfd_master(SPACE), nfd_master("default")),),
    ),
    Break(
        what="a rule's taints where nfd-master does not set any", first="TNT-10", names="gpu-taint",
        steps=(
            parts(
                nfd_master(SPACE),
                obj("NodeFeatureRule", "gpu-taint", spec={"rules": [{"name": "a", "taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]}]}),
            ),
        ),
    ),
    Break(
        what="nfd-master refuses NVIDIA's labels", first="TNT-09", names=f"{SPACE}/nfd-master",
        steps=(parts(part("nfd-master", "Namespace 'nvidia.com' is not allowed. Ignoring label 'nvidia.com/gpu.count'", stay=True)),),
    ),
    Break(
        what="a node that is called a GPU node and has none", first="TNT-16", names=PLAIN,
        steps=(relabel(PLAIN, {"nvidia.com/gpu.present": "true", "feature.node.kubernetes.io/pci-8086.present": "true"}),),
    ),
    Break(
        what="a taint that keeps the stack's pods away", first="TNT-04", names="nvidia-driver-daemonset",
        steps=(
            *nvidia(None), taint(PLAIN, {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}),
            parts(intolerant(part("nvidia-driver-daemonset", "started", stay=True))),
        ),
    ),
    Break(
        what="parts that a driver's upgrade paused and left so", first="OPR-21", names=PLAIN,
        steps=(*nvidia(**{"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade", "nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}),),
    ),
    Break(
        what="a driver's upgrade that failed", first="DRV-27", names=PLAIN,
        steps=(*nvidia(**{"nvidia.com/gpu-driver-upgrade-state": "upgrade-failed"}),),
    ),
    Break(
        what="two NVIDIADrivers for one node", first="DRV-10", names=PLAIN,
        steps=(
            *nvidia(),
            make(
                obj("NVIDIADriver", "all", spec={"driverType": "gpu", "image": "driver", "repository": "nvcr.io/nvidia", "version": "580.82.07", "nodeSelector": {"nvidia.com/gpu.present": "true"}}),
                obj("NVIDIADriver", "a100", spec={"driverType": "gpu", "image": "driver", "repository": "nvcr.io/nvidia", "version": "570.86.15", "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}}),
            ),
        ),
    ),
    Break(
        what="a MIG layout that the ConfigMap does not have", first="MIG-01", names=PLAIN,
        steps=(
            *nvidia(**{"nvidia.com/mig.config": "all-1g.10g", "nvidia.com/mig.config.state": "failed"}),
            parts(
                part("nvidia-mig-manager", "selected mig-config not present: all-1g.10g", stay=True),
                obj("ConfigMap", "default-mig-parted-config", SPACE, data={"config.yaml": (
                    "version: v1\nmig-configs:\n  all-disabled:\n  - {devices: all, mig-enabled: false}\n"
                    '  all-1g.10gb:\n  - {devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}\n'
                )}),
            ),
        ),
        played="the label of a failed state is written: no manager of others' MIG works here",
    ),
    Break(
        what="somebody holds the GPU that is to be cut", first="MIG-02", names="nvidia-mig-manager",
        steps=(
            *nvidia(**{"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "failed"}),
            parts(part("nvidia-mig-manager", 'level=error msg="Unable to set MIG mode: In use by another client"', stay=True)),
        ),
        played="the label of a failed state is written: no manager of others' MIG works here",
    ),
    Break(
        what="a namespace that allows no privileged pods", first="OPR-02", names=SPACE,
        steps=(
            *nvidia(None),
            make(
                obj("Namespace", SPACE, metadata={"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}),
                intolerant(part("nvidia-container-toolkit-daemonset", "started", stay=True, node="nowhere")),
                event("DaemonSet/nvidia-container-toolkit-daemonset", "FailedCreate",
                      'Error creating: pods "nvidia-container-toolkit-daemonset-x" is forbidden: violates PodSecurity'
                      ' "baseline:latest": hostPath volumes (volumes "run-nvidia"), privileged (container "c" must not'
                      ' set securityContext.privileged=true)', namespace=SPACE, source="daemonset-controller"),
            ),
        ),
        played="the lab enforces no Pod Security: the controller's event is written",
    ),
    Break(
        what="an image that only a login gives", first="IMG-03", names=f"{TEAM}/broken",
        steps=(
            make(pulling("nvcr.io/nvaie/vgpu-guest-driver:1"), event("Pod/broken", "Failed",
                 'Failed to pull image "nvcr.io/nvaie/vgpu-guest-driver:1": failed to pull and unpack image: failed to'
                 ' authorize: failed to fetch anonymous token: 401 Unauthorized')),
        ),
        played="no image is pulled in the lab: the kubelet's status and event are written",
    ),
    Break(
        what="a tag without the patch version", first="IMG-07", names=f"{TEAM}/broken",
        steps=(
            make(pulling("nvidia/cuda:12.1-base-ubuntu22.04"), event("Pod/broken", "Failed",
                 'Failed to pull image "nvidia/cuda:12.1-base-ubuntu22.04": rpc error: code = NotFound desc = failed to'
                 ' resolve reference "docker.io/nvidia/cuda:12.1-base-ubuntu22.04": not found')),
        ),
        played="no image is pulled in the lab: the kubelet's status and event are written",
    ),
    Break(
        what="a runtime handler that containerd does not have", first="RUN-01", names=f"{TEAM}/broken",
        steps=(
            make(
                obj("RuntimeClass", "nvidia", handler="nvidia"),
                played(pod(nodeName=ELSEWHERE, runtimeClassName="nvidia"), "Pending"),
                event("Pod/broken", "FailedCreatePodSandBox",
                      'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no'
                      ' runtime for "nvidia" is configured'),
            ),
        ),
        played="the lab's nodes know every handler: the kubelet's event is written",
    ),
    Break(
        what="the autoscaler's template has no GPUs", first="ASC-02", names=BROKEN,
        steps=(
            make(pod(gpus=8), event("Pod/broken", "NotTriggerScaleUp",
                 "pod didn't trigger scale-up (it wouldn't fit if a new node is added): 1 Insufficient nvidia.com/gpu",
                 source="cluster-autoscaler")),
        ),
        played="no autoscaler runs: its event is written",
    ),
    Break(
        what="Karpenter's node without its GPUs", first="ASC-03", names=PLAIN,
        steps=(
            relabel(PLAIN, {"karpenter.sh/nodepool": "gpu"}),
            make(obj("NodeClaim", "gpu-x", spec={}, status={"nodeName": PLAIN, "conditions": [{
                "type": "Initialized", "status": "Unknown", "reason": "ResourceNotRegistered",
                "message": 'Resource "nvidia.com/gpu" was requested but not registered', "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]})),
        ),
        played="no Karpenter runs: what it says of its NodeClaim is written",
    ),
    Break(
        what="KAI's queue is over its quota", first="SCH-16", names="train",
        steps=(
            make(
                obj("PodGroup", "train", TEAM, spec={"queue": "team-a", "minMember": 1}, status={"schedulingConditions": [{
                    "type": "UnschedulableOnNodePool", "status": "True",
                    "reasons": [{"reason": "NonPreemptibleOverQuota", "message": "team-a quota has reached the allowable limit of GPUs"}],
                }]}),
                annotated(pod(schedulerName="kai-scheduler"), {"pod-group-name": "train"}),
            ),
        ),
        played="no KAI scheduler runs: what it says of the PodGroup is written",
    ),
    Break(
        what="Kueue has no quota left", first="QTA-09", names="job-train",
        steps=(
            make(
                obj("ClusterQueue", "gpus", spec={"resourceGroups": [{"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": 4}]}]}]}),
                obj("Workload", "job-train", TEAM, spec={"queueName": "team-a"}, status={"conditions": [{
                    "type": "QuotaReserved", "status": "False", "reason": "Pending", "lastTransitionTime": "2026-01-01T00:00:00Z",
                    "message": "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100, 4 more needed",
                }]}),
            ),
        ),
        played="no Kueue runs: what it says of the Workload is written",
    ),
    Break(
        what="the node's watcher tells of an NVLink", first="NODE-00", names=FIRST, target=f"node {FIRST}",
        steps=(Conditioned(FIRST, "GpuNvLinkFailed", "NVLinkDown", "link 4 of GPU 2 is down"),),
    ),
)  # fmt: skip
