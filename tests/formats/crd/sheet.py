"""The replaced operator's fields as a table of text, written down apart from the structs.

``name: TYPE =default {enum} R``; a TYPE in capitals is a block of fields below the name; blocks named before a ``+`` are
joined. ``[]`` is a list, ``{}`` a mapping with texts as keys. ``K:Name`` is a type of Kubernetes' core.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

BLOCKS = {
    "IMG": "repository: str; image: str ~[a-zA-Z0-9\\-]+; version: str; imagePullPolicy: str; imagePullSecrets: []str",
    "ENV": "env: []VAR",
    "VAR": "name: str R; value: str",
    "SIDE": "IMG + ENV + enabled: bool; args: []str",
    "IMGENV": "IMG + ENV",
    "WORK": "IMG + ENV + args: []str; resources: RES; hostNetwork: bool",
    "COMP": "WORK + enabled: bool",
    "RES": "limits: {}quantity; requests: {}quantity",
    "PROBE": "initialDelaySeconds: int32; timeoutSeconds: int32 >=1; periodSeconds: int32 >=1; "
    "successThreshold: int32 >=1; failureThreshold: int32 >=1",
    "SM": "enabled: bool; interval: duration; scrapeTimeout: duration; honorLabels: bool; additionalLabels: {}str; "
    "relabelings: []RELABEL",
    "RELABEL": "sourceLabels: []str; separator: str; targetLabel: str; regex: str; modulus: int64; replacement: str; "
    "action: str =replace {replace keep drop hashmod labelmap labeldrop labelkeep lowercase uppercase keepequal "
    "dropequal Replace Keep Drop HashMod LabelMap LabelDrop LabelKeep Lowercase Uppercase KeepEqual DropEqual}",
    "UPG": "maxParallelUpgrades: int =1 >=0; maxUnavailable: int-or-string =25%; waitForCompletion: WAIT; "
    "podDeletion: DELETION; drain: DRAIN",
    "WAIT": "podSelector: str =''; timeoutSeconds: int =0 >=0",
    "DELETION": "force: bool =false; timeoutSeconds: int =300 >=0; deleteEmptyDir: bool =false",
    "DRAIN": "enable: bool =false; force: bool =false; podSelector: str =''; timeoutSeconds: int =300 >=0; "
    "deleteEmptyDir: bool =false",
    "NAME": "name: str",
    "ON": "enabled: bool",
    "RDMA": "enabled: bool; useHostMofed: bool",
    "OPERATOR": "runtimeClass: str =nvidia; use_ocp_driver_toolkit: bool; labels: {}str; annotations: {}str; "
    "metrics: METRICS; defaultRuntime: str; initContainer: IMG",
    "METRICS": "serviceMonitor: SM",
    "DAEMONSETS": "labels: {}str; annotations: {}str; tolerations: []K:Toleration; priorityClassName: str; "
    "podSecurityContext: K:PodSecurityContext; updateStrategy: str =RollingUpdate {RollingUpdate OnDelete}; "
    "rollingUpdate: ROLLING",
    "ROLLING": "maxUnavailable: str",
    "DRIVER": "COMP + useNvidiaDriverCRD: bool; usePrecompiled: bool; "
    "kernelModuleType: str =auto {auto open proprietary}; useOpenKernelModules: bool; startupProbe: PROBE; "
    "livenessProbe: PROBE; readinessProbe: PROBE; rdma: RDMA; upgradePolicy: CPUPG; manager: IMGENV; "
    "repoConfig: REPO; certConfig: NAME; licensingConfig: LICENCE; virtualTopology: TOPOLOGY; "
    "kernelModuleConfig: NAME; secretEnv: str",
    "CPUPG": "UPG + autoUpgrade: bool =false",
    "REPO": "configMapName: str",
    "LICENCE": "configMapName: str; secretName: str; nlsEnabled: bool",
    "TOPOLOGY": "config: str",
    "TOOLKIT": "COMP + installDir: str =/usr/local/nvidia",
    "PLUGIN": "COMP + config: CHOICE; mps: MPS",
    "CHOICE": "name: str; default: str",
    "MPS": "root: str =/run/nvidia/mps",
    "DCGM": "COMP + hostPort: int32",
    "EXPORTER": "COMP + config: NAME; serviceMonitor: SM; service: SERVICE; annotations: {}str; hostPID: bool; "
    "hpcJobMapping: HPC; enablePodLabels: bool; enablePodUID: bool; podLabelAllowlistRegex: []str",
    "SERVICE": "type: str; internalTrafficPolicy: str",
    "HPC": "enabled: bool; directory: str",
    "MIG": "strategy: str {none single mixed}",
    "MIGMANAGER": "COMP + config: MIGCONFIG; gpuClientsConfig: NAME",
    "MIGCONFIG": "name: str =''; default: str =all-disabled",
    "VALIDATOR": "WORK + driver: ENV; toolkit: ENV; cuda: ENV; plugin: ENV; vfioPCI: ENV; vgpuManager: ENV; "
    "vgpuDevices: ENV",
    "CDI": "enabled: bool =true; default: bool =false; nriPluginEnabled: bool =false",
    "PATHS": "rootFS: str; driverInstallDir: str; kubeletRootDir: str =/var/lib/kubelet",
    "SANDBOX": "enabled: bool; defaultWorkload: str =container {container vm-passthrough vm-vgpu}; "
    "mode: str =kubevirt {kubevirt kata}",
    "VGPU": "COMP + driverManager: IMGENV; kernelModuleConfig: NAME",
    "VGPUDEVICES": "COMP + config: VGPUCONFIG",
    "VGPUCONFIG": "name: str; default: str =default",
    "VFIO": "COMP + driverManager: IMGENV",
    "CC": "COMP + defaultMode: str {on off devtools}",
    "KATA": "COMP + config: KATACONFIG",
    "KATACONFIG": "artifactsDir: str =/opt/nvidia-gpu-operator/artifacts/runtimeclasses; runtimeClasses: []KATACLASS",
    "KATACLASS": "name: str R; nodeSelector: {}str; artifacts: ARTIFACTS R",
    "ARTIFACTS": "url: str R; pullSecret: str",
    "CLUSTERPOLICY": "operator: OPERATOR; daemonsets: DAEMONSETS; driver: DRIVER; toolkit: TOOLKIT; "
    "devicePlugin: PLUGIN; dcgm: DCGM; dcgmExporter: EXPORTER; gfd: COMP; nodeStatusExporter: COMP; mig: MIG; "
    "migManager: MIGMANAGER; validator: VALIDATOR; cdi: CDI; hostPaths: PATHS; sandboxWorkloads: SANDBOX; gds: SIDE; "
    "gdrcopy: SIDE; vgpuManager: VGPU; vgpuDeviceManager: VGPUDEVICES; vfioManager: VFIO; "
    "sandboxDevicePlugin: COMP; kataSandboxDevicePlugin: COMP; ccManager: CC; kataManager: KATA; psa: ON; psp: ON; "
    "nodeFeatureDiscovery: ON",
    "NVIDIADRIVER": "default: bool =false; driverType: str =gpu {gpu vgpu vgpu-host-manager}; usePrecompiled: bool; "
    "image: str =nvcr.io/nvidia/driver; repository: str; version: str; imagePullPolicy: str; "
    "imagePullSecrets: []str; kernelModuleType: str =auto {auto open proprietary}; useOpenKernelModules: bool; "
    "nodeSelector: {}str; nodeAffinity: K:NodeAffinity; tolerations: []K:Toleration; priorityClassName: str; "
    "labels: {}str; annotations: {}str; podSecurityContext: K:PodSecurityContext; hostNetwork: bool; resources: RES; "
    "args: []str; env: []VAR; secretEnv: str; startupProbe: PROBE; livenessProbe: PROBE; readinessProbe: PROBE; "
    "manager: IMGENV; gds: SIDE; gdrcopy: SIDE; rdma: RDMA; repoConfig: NAME; certConfig: NAME; "
    "virtualTopologyConfig: NAME; kernelModuleConfig: NAME; licensingConfig: POOLLICENCE; upgradePolicy: POOLUPG",
    "POOLLICENCE": "name: str; secretName: str; nlsEnabled: bool",
    "POOLUPG": "UPG + autoUpgrade: bool =true",
}


@dataclass(frozen=True)
class Entry:
    """One leaf. ``default`` is text as in the table, None without one."""

    path: str
    type: str
    default: str | None = None
    enum: tuple[str, ...] = ()
    pattern: str = ""
    minimum: int | None = None
    required: bool = False


def entries(block: str, above: str = "") -> Iterator[Entry]:
    """All leaves of a block, those of blocks inside it too."""
    for part in BLOCKS[block].split(" + "):
        if part in BLOCKS:
            yield from entries(part, above)
            continue
        for text in part.split("; "):
            name, _, rest = text.partition(": ")
            kind, *marks = rest.split(" ", 1)
            yield from _entry(f"{above}{name}", kind, marks[0] if marks else "")


def _entry(path: str, kind: str, marks: str) -> Iterator[Entry]:
    inner = kind.removeprefix("[]").removeprefix("{}")
    path += kind.removesuffix(inner)
    if inner in BLOCKS:
        yield from entries(inner, f"{path}.")
        return
    default = re.search(r"=(\S+)", re.sub(r">=\d+", "", marks))
    least = re.search(r">=(\d+)", marks)
    enum = re.search(r"\{(.*)\}", marks)
    pattern = re.search(r"~(\S+)", marks)
    yield Entry(
        path=path,
        type=inner,
        default=default[1].replace("''", "") if default else None,
        enum=tuple(enum[1].replace("''", "").split(" ")) if enum else (),
        pattern=pattern[1] if pattern else "",
        minimum=int(least[1]) if least else None,
        required=bool(re.search(r"\bR\b", marks)),
    )
