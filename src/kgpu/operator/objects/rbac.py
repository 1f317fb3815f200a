"""ServiceAccounts and their permissions, as rows. The operator can grant only what it may do itself, so the chart's
rules for the operator contain every row here.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats.names import NFD_DOMAIN
from kgpu.kube.port import NODE_FEATURES as FEATURES_KIND
from kgpu.operator.model import Object
from kgpu.operator.objects.common import Owner, Scene, has_kind

RBAC_GROUP: Final = "rbac.authorization.k8s.io"


def rule(group: str, resources: str, verbs: str) -> Object:
    """One rule; resources and verbs are separated by spaces."""
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


# For labels and a process's own reports.
NODES: Final = rule("", "nodes", "get list watch patch")
NODE_STATUS: Final = rule("", "nodes/status", "patch")
# For the labels and uids of pods, and to see which GPUs a claim has.
POD_METADATA_RULES: Final = (rule("", "pods", "get list watch"),)
SLICE_RULES: Final = (rule("resource.k8s.io", "resourceslices", "list watch"),)
PODS_READ: Final = rule("", "pods", "get")
NODE_FEATURES: Final = rule(NFD_DOMAIN, "nodefeatures", "get create patch delete")

DRIVER_MANAGER_RULES: Final = (
    rule("", "nodes", "get list watch patch update"),
    rule("", "pods", "get list watch"),
    rule("", "pods/eviction", "create"),
    rule("apps", "daemonsets", "get"),
)

# An agent reads its own pod, the owner of the node's features.
FEATURE_RULES: Final = (PODS_READ, NODE_FEATURES)


def read_config_maps(*names: str) -> Object:
    """The rule to read the ConfigMaps of these names and no others. A request to list or watch names one of them in its
    field selector, as every informer of an agent does.
    """
    return {**rule("", "configmaps", "list watch"), "resourceNames": list(dict.fromkeys(names))}


def configs(scene: Scene, state: str, subject: str, names: tuple[str, ...]) -> list[Object]:
    """The permission to read the ConfigMaps that the policy names, for the ServiceAccount ``subject``."""
    if not names:
        return []
    rules = (read_config_maps(*names),)
    return _bound(scene, "Role", f"{subject}-configs", state=state, account=subject, rules=rules)


def features_role(subject: str) -> str:
    """The name of the Role that lets the ServiceAccount ``subject`` publish a node's features."""
    return f"{subject}-publish-features"


def features(scene: Scene, state: str, subject: str) -> list[Object]:
    """The permission to publish a node's features, for the ServiceAccount ``subject``. It exists if the API server has
    the kind, even if nothing turns features into labels now, so that agents can remove theirs.
    """
    if not has_kind(scene.observed, FEATURES_KIND):
        return []
    return _bound(scene, "Role", features_role(subject), state=state, account=subject, rules=FEATURE_RULES)


def account(
    scene: Scene,
    name: str,
    state: str,
    *,
    cluster: tuple[Object, ...] = (),
    namespaced: tuple[Object, ...] = (),
    owner: Owner | None = None,
) -> list[Object]:
    """A ServiceAccount with its roles and bindings, in the order of application."""
    objects = [scene.new_object("ServiceAccount", name, state=state, owner=owner)]
    for kind, rules in (("Role", namespaced), ("ClusterRole", cluster)):
        if rules:
            objects += _bound(scene, kind, name, state=state, account=name, rules=rules, owner=owner)
    return objects


def cluster_role(scene: Scene, name: str, state: str, subject: str, rules: tuple[Object, ...]) -> list[Object]:
    """A separate ClusterRole, bound to the ServiceAccount ``subject``."""
    return _bound(scene, "ClusterRole", name, state=state, account=subject, rules=rules)


def _bound(
    scene: Scene,
    kind: str,
    name: str,
    *,
    state: str,
    account: str,
    rules: tuple[Object, ...],
    owner: Owner | None = None,
) -> list[Object]:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": scene.settings.namespace}
    reference = {"apiGroup": RBAC_GROUP, "kind": kind, "name": name}
    return [
        scene.new_object(kind, name, state=state, owner=owner, rules=list(rules)),
        scene.new_object(f"{kind}Binding", name, state=state, owner=owner, roleRef=reference, subjects=[subject]),
    ]
