"""Sets of values that the chart has to take: what the documents tell their readers to write, and every switch.

The keys name the row of the checklist of facts, or what the set is about.
"""

from __future__ import annotations

from typing import Any, Final

TIME_SLICING = """
version: v1
sharing:
  timeSlicing:
    resources:
      - name: nvidia.com/gpu
        replicas: 4
"""

# Words of --set.
SETS: Final[dict[str, tuple[str, ...]]] = {
    "defaults (C09, D06, E05)": (),
    "A81": ("driver.enabled=false", "toolkit.enabled=false"),
    "B31": (
        "driver.enabled=true", "toolkit.enabled=true", "dcgmExporter.enabled=true", "mig.strategy=single",
        "nfd.enabled=true",
    ),
    "B103": (
        "dcgmExporter.serviceMonitor.enabled=true",
        "dcgmExporter.serviceMonitor.additionalLabels.release=kube-prometheus",
    ),
    "D08 driver pre-installed": ("driver.enabled=false",),
    "mixed MIG": ("mig.strategy=mixed", "migManager.config.name=custom-mig-config"),
    "a ConfigMap that is there": ("devicePlugin.config.name=time-slicing-config", "devicePlugin.config.default=any"),
    "layout operands": ("layout=operands", "nodeStatusExporter.enabled=true"),
    "NVIDIADriver": ("driver.nvidiaDriverCRD.enabled=true",),
    "NVIDIADriver with a selector": (
        "driver.nvidiaDriverCRD.enabled=true", "driver.nvidiaDriverCRD.nodeSelector.pool=a", "gds.enabled=true",
        "driver.kernelModuleType=open", "driver.repoConfig.configMapName=repos", "driver.virtualTopology.config=topo",
    ),
    "NVIDIADriver without its default": (
        "driver.nvidiaDriverCRD.enabled=true", "driver.nvidiaDriverCRD.deployDefaultCR=false",
    ),
    "no ClusterPolicy": ("clusterPolicy.deployCR=false",),
    "precompiled": ("driver.usePrecompiled=true", "driver.version=550"),
    "RDMA": ("driver.rdma.enabled=true", "driver.rdma.useHostMofed=true", "gdrcopy.enabled=true"),
    "another Node Feature Discovery": ("nfd.enabled=false",),
    "Pod Security": ("psa.enabled=true",),
    "no network policy": ("networkPolicy.enabled=false",),
    "metrics for one namespace": (
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring", "nfd.other=present",
        "operator.otherOperator=ignore",
    ),
    "NRI": ("cdi.nriPluginEnabled=true",),
    "other paths": ("hostPaths.rootFS=/host", "hostPaths.driverInstallDir=/opt/driver",
                    "hostPaths.kubeletRootDir=/var/snap/kubelet"),
    "own registry": ("image.repository=registry.local:5000/kgpu", "image.tag=1.2.3", "imagePullSecrets[0]=pull",
                     "imagePullSecrets[1]=other"),
    "by digest": (f"image.digest=sha256:{'0' * 64}",),
    "no hooks": ("operator.cleanup=false", "operator.cleanupCRD=false", "operator.upgradeCRD=false"),
    "logging": ("operator.logging.level=warn", "operator.logging.format=json", "operator.logging.develMode=true"),
    "two operators": ("operator.replicas=2", "operator.env[0].name=HTTPS_PROXY", "operator.env[0].value=http://p:1"),
    "upgrade policy": ("driver.upgradePolicy.maxParallelUpgrades=4", "driver.upgradePolicy.gpuPodDeletion.force=true",
                       "driver.upgradePolicy.drain.enable=true"),
    "rolling update by number": ("daemonsets.rollingUpdate.maxUnavailable=2",),
    "sandbox workloads": ("sandboxWorkloads.enabled=true", "sandboxWorkloads.defaultWorkload=vm-passthrough"),
    "environment without quotes": ("toolkit.env[0].name=CONTAINERD_SET_AS_DEFAULT", "toolkit.env[0].value=true"),
}  # fmt: skip

# Values files.
FILES: Final[dict[str, dict[str, Any]]] = {
    "E07": {
        "driver": {"repository": "nvcr.io/nvidia", "image": "driver", "imagePullPolicy": "IfNotPresent"},
        "toolkit": {
            "repository": "nvcr.io/nvidia/k8s", "image": "container-toolkit", "version": "v1.14.3-ubuntu20.04",
        },
        "devicePlugin": {
            "repository": "nvcr.io/nvidia", "image": "k8s-device-plugin", "version": "v0.14.3",
            "config": {"name": "time-slicing-config", "default": "any"},
        },
        "dcgmExporter": {
            "repository": "nvcr.io/nvidia/k8s", "image": "dcgm-exporter", "version": "3.3.0-3.2.0-ubuntu22.04",
        },
        "gfd": {"repository": "nvcr.io/nvidia", "image": "k8s-device-plugin", "version": "v0.14.3"},
        "mig": {"strategy": "mixed"},
        "daemonsets": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]},
    },
    "ConfigMaps from values": {
        "devicePlugin": {
            "config": {"create": True, "name": "plugin-configs", "default": "any", "data": {"any": TIME_SLICING}},
        },
        "migManager": {"config": {"create": True, "name": "mig-configs", "data": {"config.yaml": "version: v1\n"}}},
        "dcgmExporter": {"config": {"create": True, "name": "metrics", "data": {"dcgm-metrics.csv": "# none\n"}}},
    },
    "everything that is empty": {
        "driver": {"env": None, "resources": None, "manager": {"env": None}},
        "daemonsets": {"labels": None, "annotations": {"a": "b"}, "tolerations": []},
        "operator": {"affinity": None, "tolerations": None, "nodeSelector": None, "priorityClassName": ""},
    },
    "more objects": {
        "extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}},
            'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: text\ndata: {a: "{{ .Values.layout }}"}\n',
        ]
    },
    "an older chart's values": {
        "node-feature-discovery": {"worker": {"tolerations": []}, "gc": {"enable": True}},
        "operator": {
            "repository": "nvcr.io/nvidia", "image": "gpu-operator", "version": "v24.9.0", "defaultRuntime": "docker",
            "initContainer": {"repository": "nvcr.io/nvidia", "image": "cuda", "version": "12.3.2-base-ubi8"},
        },
        "validator": {"repository": "nvcr.io/nvidia/cloud-native", "image": "gpu-operator-validator"},
        "driver": {"useOpenKernelModules": True, "rollingUpdate": {"maxUnavailable": "1"}},
        "psp": {"enabled": False},
        "global": {"anything": 1},
    },
}  # fmt: skip
