"""Applies ``spec.daemonsets`` and ``spec.hostPaths`` to every DaemonSet: strategy, priority, tolerations, pod labels
and annotations, paths.

Labels and annotations with a chart's or program's version are left out of the pod template: every change of them would
restart all pods, and nothing in the pods depends on them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import DaemonSets, HostPaths
from kgpu.operator.model import Object, Policy
from kgpu.operator.objects.common import Scene, manifest_of
from kgpu.operator.vendors import TOLERATIONS

CONTROL_PLANE_TOLERATION: Final[Object] = {
    "key": names.TAINT_CONTROL_PLANE,
    "operator": "Exists",
    "effect": "NoSchedule",
}
ON_EVERY_NODE: Final = (*TOLERATIONS, CONTROL_PLANE_TOLERATION)
"""What the agent and the finder bear, whatever the policy says."""
PRIORITY_CLASS: Final = "system-node-critical"

# Keys that selectors depend on, and keys whose values are versions.
_FIXED: Final = frozenset({"app", names.PART_OF_LABEL, names.COMPONENT_LABEL})
_VERSIONS: Final = frozenset({names.CHART_LABEL, names.VERSION_LABEL})
_AMOUNT: Final = re.compile(r"[0-9]+%?")


def update_strategy(daemonsets: DaemonSets) -> Object:
    """``updateStrategy`` of operands. Raises ConfigError for an amount that Kubernetes would refuse."""
    if daemonsets.update_strategy == "OnDelete":
        return {"type": "OnDelete"}
    rolling = daemonsets.rolling_update
    amount = (rolling.max_unavailable if rolling else None) or "1"
    if (
        not _AMOUNT.fullmatch(amount)
        or int(amount.rstrip("%")) == 0
        or (amount.endswith("%") and int(amount[:-1]) > 100)
    ):
        raise ConfigError(
            f'daemonsets.rollingUpdate.maxUnavailable is "{amount}"',
            'a number of pods such as "1", or a percentage such as "10%", more than 0',
            "correct it in the ClusterPolicy",
        )
    return {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": amount if "%" in amount else int(amount)}}


def tolerations(daemonsets: DaemonSets, *more: Object) -> list[Object]:
    """The policy's tolerations, or those of accelerators' usual taints if it has none, plus ``more``."""
    own: list[Object] = [manifest_of(toleration) for toleration in daemonsets.tolerations] or [*map(dict, TOLERATIONS)]
    return own + [toleration for toleration in more if toleration not in own]


def pod_labels(daemonsets: DaemonSets, own: Mapping[str, str]) -> dict[str, str]:
    """Labels of the pod template: the user's, without fixed keys and versions, overridden by ``own``."""
    return {**own_labels(daemonsets.labels), **own}


def object_labels(daemonsets: DaemonSets) -> dict[str, str]:
    """The user's labels that carry versions, which only the DaemonSet itself gets."""
    return {key: value for key, value in daemonsets.labels.items() if key in _VERSIONS}


def pod_annotations(daemonsets: DaemonSets) -> dict[str, str]:
    """The user's annotations for the pod template."""
    return own_labels(daemonsets.annotations)


def pod_spec(daemonsets: DaemonSets, *, account: str) -> Object:
    """The fields of a pod that every operand has."""
    spec: Object = {
        "serviceAccountName": account,
        "priorityClassName": daemonsets.priority_class_name or PRIORITY_CLASS,
        "tolerations": tolerations(daemonsets),
    }
    if daemonsets.pod_security_context is not None:
        spec["securityContext"] = manifest_of(daemonsets.pod_security_context)
    return spec


def host_network(spec: Object, *, wanted: bool | None) -> None:
    """Put the pod on the host's network if wanted, with the cluster's DNS."""
    if wanted:
        spec["hostNetwork"] = True
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFolders:
    """The host's folders from ``spec.hostPaths``, and that of MPS from ``devicePlugin.mps``."""

    root_fs: str = "/"
    driver_install_dir: str = names.DRIVER_INSTALL_DIR
    kubelet_root: str = names.KUBELET_ROOT
    mps_root: str = names.MPS_ROOT


def paths(policy: Policy) -> HostFolders:
    """The policy's paths. Raises ConfigError for one that can't be mounted."""
    usual = HostFolders()
    host_paths = policy.spec.host_paths or HostPaths()
    mps = policy.spec.device_plugin.mps
    mps_root = (mps.root if mps else "") or usual.mps_root
    return HostFolders(
        root_fs=_path("rootFS", host_paths.root_fs or usual.root_fs, usual.root_fs, root_allowed=True),
        driver_install_dir=_path(
            "driverInstallDir", host_paths.driver_install_dir or usual.driver_install_dir, usual.driver_install_dir
        ),
        kubelet_root=_path("kubeletRootDir", host_paths.kubelet_root_dir or usual.kubelet_root, usual.kubelet_root),
        mps_root=_path("mps.root", mps_root, names.MPS_ROOT, of="devicePlugin"),
    )


# Mounting a host's folder here would hide the container's own files, or others that it needs from the host.
_TAKEN: Final = frozenset(
    {
        *("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr"),
        *("/var", "/var/lib", "/var/run", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/sbin"),
        *("/usr/local/bin", "/usr/local/lib", "/opt/kgpu", names.HOST_ROOT, names.STATE_DIR, names.NODE_STATE_DIR),
        *(names.CDI_DIR, names.VALIDATIONS_DIR, names.KUBELET_DEVICE_PLUGIN_DIR.rstrip("/")),
        *(f"{names.KUBELET_ROOT}/pod-resources", "/var/run/secrets", "/run/secrets"),
    }
)
# Nothing from the host may be mounted below these.
_CLOSED: Final = (f"{names.HOST_ROOT}/", "/dev/", "/opt/kgpu/", "/proc/", "/run/secrets/", "/sys/", "/var/run/secrets/")


def _path(key: str, path: str, example: str, *, root_allowed: bool = False, of: str = "hostPaths") -> str:
    clean = re.sub("^//", "/", posixpath.normpath(path))
    good = path.startswith("/") and ".." not in path.split("/") and not set(path) & set(":\0\n")
    reserved = (clean in _TAKEN or clean.startswith(_CLOSED)) and not root_allowed
    if not good or reserved:
        own = f"a folder of its own, since {clean} is needed by the containers themselves" if good else ""
        raise ConfigError(
            f'{of}.{key} is "{path}"',
            f"{own or 'an absolute path on the host without `..` and colons'}, for example {example}",
            "correct it in the ClusterPolicy",
        )
    return clean


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The user's labels or annotations that go onto pods."""
    return {key: value for key, value in labels.items() if key not in _FIXED | _VERSIONS}


def daemon_set(
    scene: Scene,
    name: str,
    *,
    state: str,
    app: Mapping[str, str],
    spec: Object,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """The DaemonSet for a pod's spec; ``app`` are the labels that select its pods, ``annotations`` go onto them."""
    daemonsets = scene.policy.spec.daemonsets
    metadata: Object = {"labels": pod_labels(daemonsets, app)}
    if template_annotations := {**pod_annotations(daemonsets), **own_labels(annotations or {})}:
        metadata["annotations"] = template_annotations
    return scene.new_object(
        "DaemonSet",
        name,
        state=state,
        labels={**object_labels(daemonsets), **app},
        spec={
            "selector": {"matchLabels": app},
            "updateStrategy": update_strategy(daemonsets),
            "template": {"metadata": metadata, "spec": spec},
        },
    )
