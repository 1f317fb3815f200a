"""What admission adds to pods: account and token, priority, tolerations for broken nodes, runtime class fields."""

from __future__ import annotations

import random
from typing import Any, Final

from kgpu.base.quantity import Quantity
from kgpu.formats.names import MIRROR_ANNOTATION, TAINT_NOT_READY, TAINT_UNREACHABLE
from kgpu.lab.embedded.core.model import ObjectLookup, Review
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.admission.base import PODS, new_pod, refused
from kgpu.lab.embedded.types.validate.other_groups import SYSTEM_PRIORITIES

TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a mount path
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_TOLERATED_S: Final = 300
_BROKEN: Final = (TAINT_NOT_READY, TAINT_UNREACHABLE)


class ServiceAccount:
    """A pod runs as an existing account and gets the account's token mounted."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if not new_pod(review):
            return
        spec, namespace = review.obj["spec"], review.namespace
        if MIRROR_ANNOTATION in (review.obj["metadata"].get("annotations") or {}):
            return
        name = spec.get("serviceAccountName") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        account = reads.get("", "serviceaccounts", namespace, name)
        if account is None:
            raise refused(
                review, f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            )
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [dict(secret) for secret in account["imagePullSecrets"]]
        mounted = spec.get("automountServiceAccountToken")
        if mounted is None:
            mounted = account.get("automountServiceAccountToken")
        if mounted is not False:
            _mount_token(spec)


def _mount_token(spec: Object) -> None:
    """Mount a token into every container that has nothing at its path."""
    name = f"kube-api-access-{''.join(random.choices(_ALPHABET, k=5))}"  # noqa: S311 - a name
    for volume in spec.get("volumes") or ():
        if volume.get("name", "").startswith("kube-api-access-"):
            name = volume["name"]
            break
    needed = False
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            mounts = container.setdefault("volumeMounts", [])
            if not any(mount.get("mountPath") == TOKEN_PATH for mount in mounts):
                mounts.append({"name": name, "mountPath": TOKEN_PATH, "readOnly": True})
                needed = True
    if needed and not any(volume.get("name") == name for volume in spec.get("volumes") or ()):
        spec.setdefault("volumes", []).append({"name": name, "projected": _token_source()})


def _token_source() -> Object:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
    }


class Priority:
    """A pod gets the value of its priority class; at most one class is the global default."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if review.kind.key == PODS and not review.subresource:
            spec = review.obj["spec"] if review.obj else {}
            if review.operation == "CREATE":
                self._pod(review, reads, spec)
            elif review.operation == "UPDATE" and review.old is not None:
                for name in ("priority", "preemptionPolicy"):
                    if name not in spec and name in review.old["spec"]:
                        spec[name] = review.old["spec"][name]
        elif review.kind.key == ("scheduling.k8s.io", "priorityclasses") and review.obj.get("globalDefault"):
            for priority_class in reads.list("scheduling.k8s.io", "priorityclasses"):
                class_name = priority_class["metadata"]["name"]
                if priority_class.get("globalDefault") and class_name != review.obj["metadata"].get("name"):
                    why = f"PriorityClass {class_name} is already marked as default. Only one default can exist"
                    raise refused(review, why)

    @staticmethod
    def _pod(review: Review, reads: ObjectLookup, spec: Object) -> None:
        name = spec.get("priorityClassName", "")
        priority_class: Object | None
        if name:
            priority_class = reads.get("scheduling.k8s.io", "priorityclasses", "", name)
            if priority_class is None and name in SYSTEM_PRIORITIES:
                priority_class = {"value": SYSTEM_PRIORITIES[name], "preemptionPolicy": "PreemptLowerPriority"}
            if priority_class is None:
                raise refused(review, f"no PriorityClass with name {name} was found")
        else:
            defaults = [
                candidate
                for candidate in reads.list("scheduling.k8s.io", "priorityclasses")
                if candidate.get("globalDefault")
            ]
            priority_class = min(defaults, key=lambda candidate: int(candidate.get("value", 0)), default=None)
            if priority_class is None:
                priority_class = {"value": 0, "preemptionPolicy": "PreemptLowerPriority"}
            else:
                spec["priorityClassName"] = priority_class["metadata"]["name"]
        _computed(review, spec, priority_class)


def _computed(review: Review, spec: Object, priority_class: Object) -> None:
    policy = priority_class.get("preemptionPolicy", "PreemptLowerPriority")
    for field, value, words in (
        ("priority", int(priority_class.get("value", 0)), "the integer value of priority"),
        ("preemptionPolicy", policy, "the string value of PreemptionPolicy"),
    ):
        stated: Any = spec.get(field)
        if stated is not None and stated != value:
            why = (
                f"{words} ({stated}) must not be provided in pod spec; priority admission controller computed {value} "
                "from the given PriorityClass name"
            )
            raise refused(review, why)
        spec[field] = value


class DefaultTolerationSeconds:
    """Pods stay five minutes on a node that is not ready or unreachable."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        del reads
        if review.kind.key != PODS or review.subresource or review.operation not in {"CREATE", "UPDATE"}:
            return
        tolerations: list[Object] = review.obj["spec"].get("tolerations") or []
        covered = [
            toleration.get("key", "") for toleration in tolerations if toleration.get("effect", "") in {"NoExecute", ""}
        ]
        added = [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_S}
            for key in _BROKEN
            if key not in covered and "" not in covered
        ]
        if added:
            review.obj["spec"]["tolerations"] = [*tolerations, *added]


class RuntimeClass:
    """A pod gets the overhead, node selector and tolerations of its runtime class."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if not new_pod(review):
            return
        spec = review.obj["spec"]
        name = spec.get("runtimeClassName")
        own = spec.get("overhead")
        runtime_class: Object | None = None
        if name is not None:
            runtime_class = reads.get("node.k8s.io", "runtimeclasses", "", name)
            if runtime_class is None:
                raise refused(review, f'pod rejected: RuntimeClass "{name}" not found')
        overhead = ((runtime_class or {}).get("overhead") or {}).get("podFixed")
        if own and not overhead:
            words = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            raise refused(review, words)
        if overhead:
            if own and _amounts(own) != _amounts(overhead):
                raise refused(review, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
            spec["overhead"] = dict(overhead)
        scheduling = (runtime_class or {}).get("scheduling") or {}
        selector = dict(spec.get("nodeSelector") or {})
        for key, value in (scheduling.get("nodeSelector") or {}).items():
            if selector.get(key, value) != value:
                why = (
                    f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
                    f"pod.spec.nodeSelector[{key}] = {selector[key]}"
                )
                raise refused(review, why)
            selector[key] = value
        if selector:
            spec["nodeSelector"] = selector
        for toleration in scheduling.get("tolerations") or ():
            if toleration not in (spec.get("tolerations") or []):
                spec.setdefault("tolerations", []).append(dict(toleration))


def _amounts(resource_list: Object) -> dict[str, Quantity]:
    return {name: Quantity.parse(text) for name, text in resource_list.items()}
