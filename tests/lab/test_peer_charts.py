"""NVIDIA's device-plugin and dcgm-exporter charts with kgpu's image, as pods of the embedded lab.

The manifests are what the charts (k8s-device-plugin 0.20, dcgm-exporter 4.8) make of the values that the how-to pages name,
without what only a cluster's guards read. ``tests/cli/test_peer_manifests.py`` has every other form of a container.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL, GPU_RESOURCE, IMAGE_REPOSITORY
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from tests.lab import asking

pytestmark = pytest.mark.timeout(180)
WAIT_S: Final = 60.0
NODE: Final = "gpu-node-1"
NAMESPACE: Final = "nvidia-device-plugin"
Object = dict[str, Any]

# With the values image.*, nvidiaDriverRoot=/, config.name, config.default and deviceListStrategy: the lab's engine has CDI, as
# every engine of today, and no runtime of NVIDIA's.
PLUGIN: Final = """
apiVersion: v1
kind: Namespace
metadata: {name: NAMESPACE}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: plugin-configs, namespace: NAMESPACE}
data:
  whole: |
    version: v1
  shared: |
    version: v1
    sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: nvdp-service-account, namespace: NAMESPACE}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: nvdp-role}
rules:
  - {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: nvdp-role-binding}
subjects: [{kind: ServiceAccount, name: nvdp-service-account, namespace: NAMESPACE}]
roleRef: {kind: ClusterRole, name: nvdp-role, apiGroup: rbac.authorization.k8s.io}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: nvdp, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: nvidia-device-plugin}}
  template:
    metadata: {labels: {app.kubernetes.io/name: nvidia-device-plugin}}
    spec:
      priorityClassName: system-node-critical
      serviceAccountName: nvdp-service-account
      shareProcessNamespace: true
      affinity: AFFINITY
      initContainers:
        - name: nvidia-device-plugin-init
          image: IMAGE
          command: [config-manager]
          env:
            - {name: ONESHOT, value: "true"}
            - {name: KUBECONFIG, value: ""}
            - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
            - {name: NODE_LABEL, value: nvidia.com/device-plugin.config}
            - {name: CONFIG_FILE_SRCDIR, value: /available-configs}
            - {name: CONFIG_FILE_DST, value: /config/config.yaml}
            - {name: DEFAULT_CONFIG, value: whole}
            - {name: FALLBACK_STRATEGIES, value: "named,single"}
            - {name: SEND_SIGNAL, value: "false"}
            - {name: SIGNAL, value: ""}
            - {name: PROCESS_TO_SIGNAL, value: ""}
          volumeMounts: &configs
            - {name: available-configs, mountPath: /available-configs}
            - {name: config, mountPath: /config}
      containers:
        - name: nvidia-device-plugin-sidecar
          image: IMAGE
          command: [config-manager]
          env:
            - {name: ONESHOT, value: "false"}
            - {name: KUBECONFIG, value: ""}
            - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
            - {name: NODE_LABEL, value: nvidia.com/device-plugin.config}
            - {name: CONFIG_FILE_SRCDIR, value: /available-configs}
            - {name: CONFIG_FILE_DST, value: /config/config.yaml}
            - {name: DEFAULT_CONFIG, value: whole}
            - {name: FALLBACK_STRATEGIES, value: "named,single"}
            - {name: SEND_SIGNAL, value: "true"}
            - {name: SIGNAL, value: "1"}
            - {name: PROCESS_TO_SIGNAL, value: nvidia-device-plugin}
          volumeMounts: *configs
        - name: nvidia-device-plugin-ctr
          image: IMAGE
          command: [nvidia-device-plugin]
          env:
            - {name: MPS_ROOT, value: /run/nvidia/mps}
            - {name: DEVICE_LIST_STRATEGY, value: cdi-cri}
            - {name: NVIDIA_DRIVER_ROOT, value: /}
            - {name: CONFIG_FILE, value: /config/config.yaml}
            - {name: NVIDIA_VISIBLE_DEVICES, value: all}
            - {name: NVIDIA_DRIVER_CAPABILITIES, value: "compute,utility"}
          securityContext: {capabilities: {add: [SYS_ADMIN]}}
          volumeMounts:
            - {name: device-plugin, mountPath: /var/lib/kubelet/device-plugins}
            - {name: mps-shm, mountPath: /dev/shm}
            - {name: mps-root, mountPath: /mps}
            - {name: cdi-root, mountPath: /var/run/cdi}
            - {name: driver-root, mountPath: /driver-root, readOnly: true}
            - {name: available-configs, mountPath: /available-configs}
            - {name: config, mountPath: /config}
      volumes:
        - {name: device-plugin, hostPath: {path: /var/lib/kubelet/device-plugins}}
        - {name: mps-root, hostPath: {path: /run/nvidia/mps, type: DirectoryOrCreate}}
        - {name: mps-shm, hostPath: {path: /run/nvidia/mps/shm}}
        - {name: cdi-root, hostPath: {path: /var/run/cdi, type: DirectoryOrCreate}}
        - {name: driver-root, hostPath: {path: /, type: Directory}}
        - {name: available-configs, configMap: {name: plugin-configs}}
        - {name: config, emptyDir: {}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: nvdp-mps-control-daemon, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: nvidia-device-plugin-mps}}
  template:
    metadata: {labels: {app.kubernetes.io/name: nvidia-device-plugin-mps}}
    spec:
      hostPID: true
      nodeSelector: {nvidia.com/mps.capable: "true"}
      affinity: AFFINITY
      initContainers:
        - name: mps-control-daemon-mounts
          image: IMAGE
          command: [mps-control-daemon, mount-shm]
          securityContext: {privileged: true}
          volumeMounts: [{name: mps-root, mountPath: /mps, mountPropagation: Bidirectional}]
      containers:
        - name: mps-control-daemon-ctr
          image: IMAGE
          command: [mps-control-daemon]
          env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
          securityContext: {privileged: true}
          volumeMounts: [{name: mps-root, mountPath: /mps}]
      volumes: [{name: mps-root, hostPath: {path: /run/nvidia/mps, type: DirectoryOrCreate}}]
"""
# The driver root is mounted by extraHostVolumes, extraVolumeMounts and extraEnv, as docs/how-to/export-metrics.md says.
EXPORTER: Final = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: dcgm-exporter, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: dcgm-exporter}}
  template:
    metadata: {labels: {app.kubernetes.io/name: dcgm-exporter}}
    spec:
      affinity: AFFINITY
      containers:
        - name: exporter
          image: IMAGE
          args: [-f, /etc/dcgm-exporter/default-counters.csv]
          env:
            - {name: DCGM_EXPORTER_KUBERNETES, value: "true"}
            - {name: DCGM_EXPORTER_LISTEN, value: ":9400"}
            - {name: NODE_NAME, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}}}
            - {name: DRIVER_ROOT_CTR_PATH, value: /host-driver}
          ports: [{name: metrics, containerPort: 9400}]
          securityContext: {runAsNonRoot: false, runAsUser: 0, capabilities: {add: [SYS_ADMIN], drop: [ALL]}}
          livenessProbe: {httpGet: {path: /health, port: 9400}, initialDelaySeconds: 2, periodSeconds: 5}
          readinessProbe: {httpGet: {path: /health, port: 9400}, initialDelaySeconds: 1, periodSeconds: 1}
          volumeMounts:
            - {name: pod-gpu-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
            - {name: exporter-metrics-volume, mountPath: /etc/dcgm-exporter/default-counters.csv, subPath: metrics}
            - {name: host-driver, mountPath: /host-driver, readOnly: true}
      volumes:
        - {name: pod-gpu-resources, hostPath: {path: /var/lib/kubelet/pod-resources}}
        - {name: exporter-metrics-volume, configMap: {name: exporter-metrics-config-map}}
        - {name: host-driver, hostPath: {path: /}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: exporter-metrics-config-map, namespace: NAMESPACE}
data:
  metrics: |
    # Format
    DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).
    DCGM_FI_DEV_POWER_USAGE, gauge, Power draw (in W).
"""
AFFINITY: Final = json.dumps({
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        for key, value in (
            ("feature.node.kubernetes.io/pci-10de.present", "true"),
            ("feature.node.kubernetes.io/cpu-model.vendor_id", "NVIDIA"),
            ("nvidia.com/gpu.present", "true"),
        )
    ]}}
})  # fmt: skip


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """A node with four GPUs on which nothing of kgpu's runs, and one without a GPU."""
    del kubectl
    folder = tmp_path_factory.mktemp("peers") / "lab"
    lab = EmbeddedLab("peers", folder, QuietProgress(), first=FirstNode(gpus=4, agent=False))
    try:
        lab.up()
        manage.add_to_running(folder, "cpu")
        run_kubectl(lab, "label", "node", NODE, "nvidia.com/gpu.present=true")
        yield lab
    finally:
        lab.down()


def apply(lab: EmbeddedLab, tmp_path: Path, text: str) -> None:
    filled = text.replace("IMAGE", f"{IMAGE_REPOSITORY}:test").replace("NAMESPACE", NAMESPACE)
    file = tmp_path / "chart.yaml"
    file.write_text(filled.replace("AFFINITY", AFFINITY))
    run_kubectl(lab, "apply", "-f", str(file))


def get(lab: EmbeddedLab, *words: str) -> Object:
    found: Object = asking.get(lab.kubeconfig, *words, "--namespace", NAMESPACE)
    return found


def until(lab: EmbeddedLab, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            shown = lab.kubectl_run("get", "pods,events", "--all-namespaces", "--output", "wide").stdout
            for app in ("nvidia-device-plugin", "dcgm-exporter"):
                label = f"--selector=app.kubernetes.io/name={app}"
                shown += lab.kubectl_run("logs", "--namespace", NAMESPACE, label, "--all-containers").stdout
            pytest.fail(f"not within {WAIT_S:g} s: {what}\n{shown}")
        time.sleep(0.1)


def offered(lab: EmbeddedLab) -> str:
    return str(get(lab, "node", NODE)["status"]["allocatable"].get(GPU_RESOURCE, "0"))


def pods_of(lab: EmbeddedLab, app: str) -> list[Object]:
    found: list[Object] = get(lab, "pods", "--selector", f"app.kubernetes.io/name={app}")["items"]
    return found


def test_the_plugins_chart_offers_gpus_and_its_config_manager_follows_the_nodes_label(
    lab: EmbeddedLab, tmp_path: Path
) -> None:
    apply(lab, tmp_path, PLUGIN)
    until(lab, lambda: offered(lab) == "4", "four GPUs by the config that is the default")

    def init_ended() -> Object:
        """The status of the pod is not written by whoever tells what the node offers."""
        rows: list[Object] = pods_of(lab, "nvidia-device-plugin")[0]["status"].get("initContainerStatuses") or [{}]
        found: Object = rows[0].get("state", {}).get("terminated") or {}
        return found

    until(lab, lambda: bool(init_ended()), "its init container has ended")
    assert init_ended()["exitCode"] == 0
    (pod,) = pods_of(lab, "nvidia-device-plugin")
    assert pod["spec"]["nodeName"] == NODE
    run_kubectl(lab, "label", "node", NODE, f"{DEVICE_PLUGIN_CONFIG_LABEL}=shared")
    until(lab, lambda: offered(lab) == "16", "the shares of the config that the label names")
    run_kubectl(lab, "label", "node", NODE, f"{DEVICE_PLUGIN_CONFIG_LABEL}-")
    until(lab, lambda: offered(lab) == "4", "whole GPUs again")
    (pod,) = pods_of(lab, "nvidia-device-plugin")
    assert [one["restartCount"] for one in pod["status"]["containerStatuses"]] == [0, 0]


def test_a_pod_gets_its_gpus_from_that_plugin(lab: EmbeddedLab, tmp_path: Path) -> None:
    apply(lab, tmp_path, PLUGIN)
    until(lab, lambda: offered(lab) == "4", "four GPUs")
    run_kubectl(
        lab, "run", "two", "--namespace", NAMESPACE, "--image=nvcr.io/nvidia/cuda:12.5.0-base-ubuntu22.04",
        "--restart=Never", "--overrides", json.dumps({"spec": {"containers": [{
            "name": "two", "image": "nvcr.io/nvidia/cuda:12.5.0-base-ubuntu22.04",
            "command": ["sh", "-c", "nvidia-smi -L; sleep 600"], "resources": {"limits": {GPU_RESOURCE: 2}},
        }]}}),
    )  # fmt: skip
    try:
        seen = ("logs", "--namespace", NAMESPACE, "two")
        until(lab, lambda: lab.kubectl_run(*seen).stdout.count("UUID: GPU-") == 2, "nvidia-smi names two GPUs")
    finally:
        run_kubectl(lab, "delete", "pod", "two", "--namespace", NAMESPACE, "--grace-period=0", "--force")


def test_the_mps_daemons_pods_have_their_memory_and_disturb_no_plugin(lab: EmbeddedLab, tmp_path: Path) -> None:
    """Nothing is shared by MPS here: the daemon's pod waits for a configuration that shares something."""
    apply(lab, tmp_path, PLUGIN)
    run_kubectl(lab, "label", "node", NODE, "nvidia.com/mps.capable=true")
    try:

        def ended() -> list[Object]:
            states = [
                (one.get("state") or {}).get("terminated") or (one.get("lastState") or {}).get("terminated")
                for pod in pods_of(lab, "nvidia-device-plugin-mps")
                for one in pod["status"].get("initContainerStatuses", ())
            ]
            return [state for state in states if state]

        until(lab, lambda: bool(ended()), "the init container has ended")
        assert {state["exitCode"] for state in ended()} == {0}
        assert offered(lab) == "4"
    finally:
        run_kubectl(lab, "label", "node", NODE, "nvidia.com/mps.capable-")


def test_the_exporters_chart_is_ready_and_names_the_pods(lab: EmbeddedLab, tmp_path: Path) -> None:
    apply(lab, tmp_path, PLUGIN)
    apply(lab, tmp_path, EXPORTER)

    def ready() -> bool:
        return all(
            one["ready"] for pod in pods_of(lab, "dcgm-exporter") for one in pod["status"].get("containerStatuses", ())
        ) and bool(pods_of(lab, "dcgm-exporter")[0]["status"].get("containerStatuses"))

    until(lab, lambda: bool(pods_of(lab, "dcgm-exporter")), "a pod")
    until(lab, ready, "its readiness probe passes")
    (pod,) = pods_of(lab, "dcgm-exporter")
    assert pod["spec"]["nodeName"] == NODE
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:9400/proxy/metrics"

    def served() -> str:
        return lab.kubectl_run("get", "--raw", path).stdout  # nothing while it does not answer

    pages: list[str] = []

    def knows_pods() -> bool:
        pages.append(served())
        return "kgpu_exporter_pods_known 1" in pages[-1]

    until(lab, knows_pods, "the exporter knows which pods there are")
    page = pages[-1]
    series = [line for line in page.splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP{")]
    assert len(series) == 4
    assert all(f'hostname="{NODE}"' in line for line in series)
    assert "DCGM_FI_DEV_POWER_USAGE{" in page
    assert "DCGM_FI_DEV_SM_CLOCK{" not in page, "the counters are those of the mounted file"
