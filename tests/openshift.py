"""OpenShift's kinds as any API server can serve them, and how its SecurityContextConstraints judge a pod.

The fields are those of github.com/openshift/api (``config/v1``, ``image/v1``, ``security/v1``), as far as kgpu reads or
writes them; what is not listed is pruned, so that a field of another name does not survive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kgpu.kube import kinds
from kgpu.kube.port import Resource

Object = dict[str, Any]

TEXT: Final[Object] = {"type": "string"}
SWITCH: Final[Object] = {"type": "boolean"}
TEXTS: Final[Object] = {"type": "array", "items": TEXT, "nullable": True}
NUMBER: Final[Object] = {"type": "integer", "format": "int64"}


def struct(**properties: Object) -> Object:
    return {"type": "object", "properties": properties}


def some(item: Object) -> Object:
    return {"type": "array", "items": item}


def named(**properties: Object) -> Object:
    return struct(name=TEXT, **properties)


STRATEGY: Final = {**struct(type=TEXT, ranges=some(struct(min=NUMBER, max=NUMBER))), "nullable": True}
SWITCHES: Final = (
    "allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID", "allowHostPorts",
    "allowPrivilegedContainer", "readOnlyRootFilesystem",
)  # fmt: skip
NEEDED: Final = (
    *SWITCHES, "allowedCapabilities", "defaultAddCapabilities", "priority", "requiredDropCapabilities", "volumes",
)  # fmt: skip
CONSTRAINTS: Final = {"required": list(NEEDED)} | struct(
    **dict.fromkeys(SWITCHES, SWITCH),
    allowPrivilegeEscalation={**SWITCH, "nullable": True},
    defaultAllowPrivilegeEscalation={**SWITCH, "nullable": True},
    **dict.fromkeys(
        ("allowedCapabilities", "allowedUnsafeSysctls", "defaultAddCapabilities", "forbiddenSysctls", "groups",
         "requiredDropCapabilities", "seccompProfiles", "users", "volumes"),
        TEXTS,
    ),
    priority={"type": "integer", "format": "int32", "nullable": True},
    runAsUser={**struct(type=TEXT, uid=NUMBER, uidRangeMin=NUMBER, uidRangeMax=NUMBER), "nullable": True},
    seLinuxContext={
        **struct(type=TEXT, seLinuxOptions=struct(level=TEXT, role=TEXT, type=TEXT, user=TEXT)), "nullable": True,
    },
    fsGroup=STRATEGY,
    supplementalGroups=STRATEGY,
)  # fmt: skip
PROXY: Final = struct(
    spec=struct(httpProxy=TEXT, httpsProxy=TEXT, noProxy=TEXT, readinessEndpoints=TEXTS, trustedCA=named()),
    status=struct(httpProxy=TEXT, httpsProxy=TEXT, noProxy=TEXT),
)
HISTORY: Final = struct(
    state=TEXT, startedTime=TEXT, completionTime={**TEXT, "nullable": True}, version=TEXT, image=TEXT, verified=SWITCH
)
CLUSTER_VERSION: Final = struct(
    spec=struct(clusterID=TEXT, channel=TEXT),
    status=struct(history=some(HISTORY), observedGeneration=NUMBER, versionHash=TEXT),
)
STREAM: Final = struct(
    spec=struct(
        lookupPolicy=struct(local=SWITCH),
        tags=some(
            named(**{"from": named(kind=TEXT, namespace=TEXT)}, reference=SWITCH, referencePolicy=struct(type=TEXT))
        ),
    ),
    status=struct(
        dockerImageRepository=TEXT,
        tags=some(struct(tag=TEXT, items=some(struct(created=TEXT, dockerImageReference=TEXT, image=TEXT)))),
    ),
)
SCHEMAS: Final = {
    kinds.CLUSTER_VERSIONS: CLUSTER_VERSION,
    kinds.PROXIES: PROXY,
    kinds.IMAGE_STREAMS: STREAM,
    kinds.SECURITY_CONTEXT_CONSTRAINTS: CONSTRAINTS,
}


def definition(resource: Resource, schema: Object) -> Object:
    about = {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()}
    version = {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    scope = "Namespaced" if resource.namespaced else "Cluster"
    return {
        "metadata": {"name": kinds.plural_and_group(resource)},
        "spec": {"group": resource.group, "names": about, "scope": scope, "versions": [version]},
    }


def definitions() -> list[Object]:
    """CustomResourceDefinitions of all of them."""
    return [definition(resource, schema) for resource, schema in SCHEMAS.items()]


def stream(**images: str) -> Object:
    """The ImageStream of driver toolkits with these images by version of RHCOS."""
    tags = [{"name": name, "from": {"kind": "DockerImage", "name": image}} for name, image in images.items()]
    return {"metadata": {"name": "driver-toolkit", "namespace": "openshift"}, "spec": {"tags": tags}}


def refusals(pod: Object, constraints: Object) -> list[str]:
    """Why these constraints do not admit a pod with that ``spec``; empty where they do."""
    return [
        *_of_pod(pod, constraints),
        *(why for each in _containers(pod) for why in _of_container(pod, each, constraints)),
    ]


def _containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _of_pod(pod: Object, constraints: Object) -> Iterator[str]:
    for field, switch in (
        ("hostPID", "allowHostPID"),
        ("hostNetwork", "allowHostNetwork"),
        ("hostIPC", "allowHostIPC"),
    ):
        if pod.get(field) and not constraints[switch]:
            yield field
    types = {key for volume in pod.get("volumes", ()) for key in volume if key != "name"}
    types |= set() if pod.get("automountServiceAccountToken") is False else {"projected"}
    if "*" not in constraints["volumes"]:
        yield from (f"volume {kind}" for kind in sorted(types - set(constraints["volumes"])))
    if "hostPath" in types and not constraints["allowHostDirVolumePlugin"]:
        yield "hostPath"
    profile = pod.get("securityContext", {}).get("seccompProfile", {}).get("type")
    yield from _seccomp(profile, constraints)


def _seccomp(profile: str | None, constraints: Object) -> Iterator[str]:
    words = {None: "", "RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}
    known = constraints.get("seccompProfiles") or []
    if words[profile] and "*" not in known and words[profile] not in known:
        yield f"seccomp {profile}"


def _of_container(pod: Object, container: Object, constraints: Object) -> Iterator[str]:
    name, security = container["name"], {**pod.get("securityContext", {}), **container.get("securityContext", {})}
    if security.get("privileged") and not constraints["allowPrivilegedContainer"]:
        yield f"{name}: privileged"
    if security.get("allowPrivilegeEscalation") and constraints["allowPrivilegeEscalation"] is False:
        yield f"{name}: escalation"
    if security.get("readOnlyRootFilesystem") is False and constraints["readOnlyRootFilesystem"]:
        yield f"{name}: writable root"
    added = set(security.get("capabilities", {}).get("add", ()))
    allowed = set(constraints["allowedCapabilities"] or ())
    if added and "*" not in allowed:
        yield from (f"{name}: capability {one}" for one in sorted(added - allowed))
    user, rule = security.get("runAsUser"), constraints["runAsUser"]
    if (rule["type"] == "MustRunAs" and user not in (None, rule["uid"])) or (rule["type"] != "RunAsAny" and user == 0):
        yield f"{name}: user {user}"
    if constraints["seLinuxContext"]["type"] == "MustRunAs" and security.get("seLinuxOptions"):
        yield f"{name}: seLinuxOptions"
    if pod.get("hostNetwork") and container.get("ports") and not constraints["allowHostPorts"]:
        yield f"{name}: host ports"
    yield from _seccomp(container.get("securityContext", {}).get("seccompProfile", {}).get("type"), constraints)
