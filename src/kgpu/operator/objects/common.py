"""What all objects share: metadata with labels and owner, environment lists, and the result of rendering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kgpu.base.advice import Advice
from kgpu.base.errors import UserError
from kgpu.formats import names
from kgpu.formats.crd.common import EnvVar
from kgpu.kube import kinds
from kgpu.kube.port import Resource
from kgpu.operator.model import DeviceConfig, NvidiaDriver, Object, ObservedCluster, OperatorSettings, Policy

Owner = Policy | NvidiaDriver | DeviceConfig
_OWNERS: Final = {
    Policy: kinds.CLUSTER_POLICIES, NvidiaDriver: kinds.NVIDIA_DRIVERS, DeviceConfig: kinds.DEVICE_CONFIGS
}  # fmt: skip

KINDS: Final = {row.kind: row for row in (*kinds.MANAGED, kinds.NAMESPACES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """``objects`` are in the order of application. ``errors`` are by the operand's name, with ``agent`` for what all
    operands share in the agent layout, and ``NVIDIADriver/<name>`` for a driver object.

    ``keep`` are the states (values of the label ``nvidia.com/gpu-operator.state``) whose objects could not be rendered
    as the policy asks: their live objects stay as they are, so that a typo removes nothing. ``advice`` is on
    settings that have no effect, to be given once each.
    """

    objects: tuple[Object, ...] = ()
    errors: Mapping[str, UserError] = field(default_factory=dict)
    keep: frozenset[str] = frozenset()
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """The input of all rendering. ``vendor`` is for whose nodes a role's environment is made."""

    policy: Policy
    settings: OperatorSettings
    observed: ObservedCluster
    vendor: str = names.NVIDIA

    def new_object(
        self,
        kind: str,
        name: str,
        *,
        state: str,
        owner: Owner | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **content: Any,
    ) -> Object:
        """An object with the labels for finding and pruning it, owned by the policy or by ``owner``.

        What an NVIDIADriver owns is the policy's, too: garbage collection would take its driver's pods away together
        with it, whoever uses the driver. What becomes of them is the plan's to say.
        """
        operator = self.policy.spec.operator
        metadata: Object = {"name": name}
        if KINDS[kind].namespaced:
            metadata["namespace"] = self.settings.namespace
        metadata["labels"] = {
            **operator.labels,
            **(labels or {}),
            names.MANAGED_BY_LABEL: names.OPERATOR_FIELD_MANAGER,
            names.LABEL_OPERATOR_STATE: state,
        }
        if all_annotations := {**operator.annotations, **(annotations or {})}:
            metadata["annotations"] = all_annotations
        metadata["ownerReferences"] = [owner_reference(owner or self.policy)]
        if owner is not None and owner is not self.policy:
            shared = {"controller": False, "blockOwnerDeletion": False}
            metadata["ownerReferences"].append({**owner_reference(self.policy), **shared})
        obj = {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, **content}
        # A deep copy of plain lists and mappings, as the API server would return them.
        plain: Object = msgspec.json.decode(msgspec.json.encode(obj))
        return plain


def owner_reference(owner: Owner) -> Object:
    """The controller reference to a policy, a driver or a DeviceConfig, whose deletion nothing of kgpu's holds up."""
    row = _OWNERS[type(owner)]
    return {
        "apiVersion": row.api_version,
        "kind": row.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": not isinstance(owner, DeviceConfig),
    }


def has_kind(observed: ObservedCluster, row: Resource) -> bool:
    """True if the API server has this optional kind."""
    return f"{row.plural}.{row.group}" in observed.kinds


def manifest_of(value: Any) -> Any:
    """A struct of the policy as plain data, as in the manifest."""
    return msgspec.to_builtins(value)


def env_list(env: Mapping[str, str]) -> list[Object]:
    """A container's ``env`` with plain values."""
    return [{"name": name, "value": value} for name, value in env.items()]


def field_env(name: str, path: str) -> Object:
    """A variable with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def env_values(rows: Iterable[EnvVar]) -> dict[str, str]:
    """The user's variables; the last one of a name counts, as in a container."""
    return {row.name: row.value or "" for row in rows}


def with_user_env(env: list[Object], rows: Iterable[EnvVar]) -> list[Object]:
    """The list with the user's variables replacing those of the same name, and new ones last; no name comes twice."""
    user_env = env_values(rows)
    kept = [
        {"name": row["name"], "value": user_env.pop(row["name"])} if row["name"] in user_env else row for row in env
    ]
    return kept + env_list(user_env)


def host_volume(name: str, path: str, kind: str = "") -> Object:
    """A hostPath volume; ``kind`` is its type, such as ``DirectoryOrCreate``, "" for no check."""
    return {"name": name, "hostPath": {"path": path, **({"type": kind} if kind else {})}}


def mount(name: str, path: str, *, read_only: bool = False, propagation: str = "", sub_path: str = "") -> Object:
    """A container's mount of the volume ``name``."""
    volume_mount: Object = {"name": name, "mountPath": path}
    if read_only:
        volume_mount["readOnly"] = True
    if propagation:
        volume_mount["mountPropagation"] = propagation
    if sub_path:
        volume_mount["subPath"] = sub_path
    return volume_mount


HOST_TO_CONTAINER: Final = "HostToContainer"
BIDIRECTIONAL: Final = "Bidirectional"
CREATE: Final = "DirectoryOrCreate"
