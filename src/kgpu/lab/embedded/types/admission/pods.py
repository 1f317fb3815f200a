"""What is added to new pods: account and token, priority, tolerations for broken nodes, what the runtime class says."""

from __future__ import annotations

import random
from typing import Any, Final

from kgpu.base.quantity import Quantity
from kgpu.formats.names import TAINT_NOT_READY, TAINT_UNREACHABLE
from kgpu.lab.embedded.core.model import ObjectLookup, Review
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.admission.base import PODS, new_pod, refused
from kgpu.lab.embedded.types.validate.others import SYSTEM_PRIORITIES

TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a mount path
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_MIRROR: Final = "kubernetes.io/config.mirror"
_TOLERATED_S: Final = 300
_BROKEN: Final = (TAINT_NOT_READY, TAINT_UNREACHABLE)


class ServiceAccount:
    """A pod runs as an account that exists and gets its token mounted."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if not new_pod(review):
            return
        spec, namespace = review.obj["spec"], review.namespace
        if _MIRROR in (review.obj["metadata"].get("annotations") or {}):
            return
        name = spec.get("serviceAccountName") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        account = reads.get("", "serviceaccounts", namespace, name)
        if account is None:
            raise refused(
                review, f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            )
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [dict(one) for one in account["imagePullSecrets"]]
        mounted = spec.get("automountServiceAccountToken")
        if mounted is None:
            mounted = account.get("automountServiceAccountToken")
        if mounted is not False:
            _mount_token(spec)


def _mount_token(spec: Object) -> None:
    """Into every container that has nothing at the token's path."""
    name = f"kube-api-access-{''.join(random.choices(_ALPHABET, k=5))}"  # noqa: S311 - a name
    for volume in spec.get("volumes") or ():
        if volume.get("name", "").startswith("kube-api-access-"):
            name = volume["name"]
            break
    needed = False
    for field in ("initContainers", "containers"):
        for one in spec.get(field) or ():
            mounts = one.setdefault("volumeMounts", [])
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
    """The class's number; one class at most is everybody's."""

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
            for one in reads.list("scheduling.k8s.io", "priorityclasses"):
                other = one["metadata"]["name"]
                if one.get("globalDefault") and other != review.obj["metadata"].get("name"):
                    why = f"PriorityClass {other} is already marked as default. Only one default can exist"
                    raise refused(review, why)

    @staticmethod
    def _pod(review: Review, reads: ObjectLookup, spec: Object) -> None:
        name = spec.get("priorityClassName", "")
        found: Object | None
        if name:
            found = reads.get("scheduling.k8s.io", "priorityclasses", "", name)
            if found is None and name in SYSTEM_PRIORITIES:
                found = {"value": SYSTEM_PRIORITIES[name], "preemptionPolicy": "PreemptLowerPriority"}
            if found is None:
                raise refused(review, f"no PriorityClass with name {name} was found")
        else:
            everybody = [one for one in reads.list("scheduling.k8s.io", "priorityclasses") if one.get("globalDefault")]
            found = min(everybody, key=lambda one: int(one.get("value", 0)), default=None)
            if found is None:
                found = {"value": 0, "preemptionPolicy": "PreemptLowerPriority"}
            else:
                spec["priorityClassName"] = found["metadata"]["name"]
        _computed(review, spec, found)


def _computed(review: Review, spec: Object, found: Object) -> None:
    policy = found.get("preemptionPolicy", "PreemptLowerPriority")
    for field, value, words in (
        ("priority", int(found.get("value", 0)), "the integer value of priority"),
        ("preemptionPolicy", policy, "the string value of PreemptionPolicy"),
    ):
        given: Any = spec.get(field)
        if given is not None and given != value:
            why = (
                f"{words} ({given}) must not be provided in pod spec; priority admission controller computed {value} "
                "from the given PriorityClass name"
            )
            raise refused(review, why)
        spec[field] = value


class DefaultTolerationSeconds:
    """Pods stay five minutes on a node that has gone."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        del reads
        if review.kind.key != PODS or review.subresource or review.operation not in {"CREATE", "UPDATE"}:
            return
        found: list[Object] = review.obj["spec"].get("tolerations") or []
        covered = [one.get("key", "") for one in found if one.get("effect", "") in {"NoExecute", ""}]
        added = [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_S}
            for key in _BROKEN
            if key not in covered and "" not in covered
        ]
        if added:
            review.obj["spec"]["tolerations"] = [*found, *added]


class RuntimeClass:
    """Overhead, node selector and tolerations of a pod's runtime class."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if not new_pod(review):
            return
        spec = review.obj["spec"]
        name = spec.get("runtimeClassName")
        own = spec.get("overhead")
        found: Object | None = None
        if name is not None:
            found = reads.get("node.k8s.io", "runtimeclasses", "", name)
            if found is None:
                raise refused(review, f'pod rejected: RuntimeClass "{name}" not found')
        overhead = ((found or {}).get("overhead") or {}).get("podFixed")
        if own and not overhead:
            words = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            raise refused(review, words)
        if overhead:
            if own and _amounts(own) != _amounts(overhead):
                raise refused(review, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
            spec["overhead"] = dict(overhead)
        scheduling = (found or {}).get("scheduling") or {}
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


def _amounts(found: Object) -> dict[str, Quantity]:
    return {name: Quantity.parse(text) for name, text in found.items()}
