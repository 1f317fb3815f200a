"""Stories of pods whose claims are to be allocated: what there is, and pods that come one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
DRIVER = "gpu.example.com"
CLASS = "gpu.example.com"
GPU = f'device.attributes["{DRIVER}"]'
API = "resource.k8s.io/v1"
ADMIN_LABEL = "resource.kubernetes.io/admin-access"


@dataclass(frozen=True)
class DeviceStory:
    """``objects`` are there before the first pod; ``steps`` are done one by one: a pod or another object comes, or
    (``delete``) one goes, or (``conditions``) a driver says how a claim's devices are. ``capacity`` is what nodes have of extended resources.
    """

    name: str
    objects: Sequence[Object] = ()
    steps: Sequence[Object] = ()
    nodes: Sequence[str] = ("a", "b")
    capacity: Sequence[tuple[str, str, str]] = ()


FIELDS = (
    "taints", "consumesCounters", "allowMultipleAllocations", "bindsToNode", "bindingConditions",
    "bindingFailureConditions",
)  # fmt: skip


def device(name: str, *, memory: str = "80Gi", **more: Any) -> Object:
    """Keywords that are no field of a device are its attributes."""
    fields = {key: more.pop(key) for key in FIELDS if key in more}
    kinds: dict[type, str] = {str: "string", bool: "bool", int: "int"}
    attributes = {key: {kinds[type(value)]: value} for key, value in more.items()}
    found = {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **fields}
    return {key: value for key, value in found.items() if value}


def pieces(node: str, devices: Sequence[Object], *, count: int = 1, name: str = "", **spec: Any) -> Object:
    """A ResourceSlice; of a node, or with ``spec``'s own reach."""
    reach = {} if {"allNodes", "nodeSelector"} & spec.keys() else {"nodeName": node}
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    made = {"driver": DRIVER, "pool": pool, **({"devices": list(devices)} if devices else {}), **reach, **spec}
    metadata = {"name": name or f"{node}-slice"}
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": metadata, "spec": made}


def device_class(name: str = CLASS, *selectors: str, **spec: Any) -> Object:
    chosen = selectors or (f'device.driver == "{DRIVER}"',)
    made = {"selectors": [{"cel": {"expression": one}} for one in chosen], **spec}
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": made}


def exactly(name: str = "gpu", *selectors: str, of: str = CLASS, **more: Any) -> Object:
    ask: Object = {"deviceClassName": of, **more}
    if selectors:
        ask["selectors"] = [{"cel": {"expression": one}} for one in selectors]
    return {"name": name, "exactly": ask}


def choices(name: str, *rows: Object) -> Object:
    return {"name": name, "firstAvailable": [{"name": row["name"], **row["exactly"]} for row in rows]}


def claim(name: str, *requests: Object, **devices: Any) -> Object:
    spec = {"devices": {"requests": list(requests), **devices}}
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def template(name: str, *requests: Object) -> Object:
    spec = {"spec": {"devices": {"requests": list(requests)}}}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}


def pod(name: str, *claims: str, on: str = "", limits: Object | None = None, **spec: Any) -> Object:
    """Claims by name; ``template/NAME`` for one that is made of a template."""
    uses = []
    for number, source in enumerate(claims):
        made = source.removeprefix("template/")
        uses.append(
            {"name": f"c{number}", "resourceClaimName" if made == source else "resourceClaimTemplateName": made}
        )
    container: Object = {"name": "c", "image": "registry.invalid/none"}
    if limits:
        container["resources"] = {"limits": limits}
    made_spec: Object = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    if uses:
        made_spec["resourceClaims"] = uses
    if on:
        made_spec["nodeSelector"] = {"kubernetes.io/hostname": on}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": made_spec}


def given(obj: Object, node: str, name: str) -> Object:
    """The claim with a device of the node, before any pod has come."""
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": name}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {**obj, "status": {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}}


def policy(name: str, resource: str) -> list[Object]:
    """Refuses every update of a claim's part."""
    rule = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": [resource]}
    said = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false", "message": "no"}]}
    bound = {"policyName": name, "validationActions": ["Deny"]}
    kinds = (("ValidatingAdmissionPolicy", said), ("ValidatingAdmissionPolicyBinding", bound))
    version = "admissionregistration.k8s.io/v1"
    return [{"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec} for kind, spec in kinds]


def gone(kind: str, name: str) -> Object:
    return {"delete": kind, "metadata": {"name": name}}


TAINT = {"key": "gpu.example.com/xid", "value": "79", "effect": "NoSchedule"}
TOLERATION = {"key": "gpu.example.com/xid", "operator": "Exists"}
FOUR = [device(f"gpu-{at}", model="h100" if at > 1 else "a100", numa=at % 2) for at in range(4)]
H100 = f'{GPU}.model == "h100"'
COUNTERS = [{"name": "set", "counters": {"memory": {"value": "80Gi"}}}]


def part(name: str, memory: str) -> Object:
    uses = [{"counterSet": "set", "counters": {"memory": {"value": memory}}}]
    return device(name, memory=memory, consumesCounters=uses)


PARTS = [
    pieces("a", [], count=2, name="a-counters", sharedCounters=COUNTERS),
    pieces("a", [part("whole", "80Gi"), part("half-0", "40Gi"), part("half-1", "40Gi")], count=2, name="a-devices"),
]
IMPLICIT = f"deviceclass.resource.kubernetes.io/{CLASS}"
CONFIG = {"driver": DRIVER, "parameters": {"apiVersion": "example.com/v1", "kind": "GpuConfig", "sharing": "none"}}


def basic(*objects: Object, **more: Any) -> list[Object]:
    """Four GPUs on node a, their class, and more."""
    return [device_class(), pieces("a", FOUR), *objects]


STORIES: tuple[DeviceStory, ...] = (
    DeviceStory("one by CEL", basic(claim("c", exactly("gpu", H100))), [pod("p", "c")]),
    DeviceStory("two of a kind", basic(claim("c", exactly("gpu", H100, count=2))), [pod("p", "c")]),
    DeviceStory("more than there are", basic(claim("c", exactly("gpu", H100, count=3))), [pod("p", "c")]),
    DeviceStory(
        "all of them",
        basic(claim("c", exactly("gpu", allocationMode="All")), claim("d", exactly())),
        [pod("p", "c"), pod("q", "d")],
    ),
    DeviceStory(
        "the second choice",
        basic(claim("c", choices("gpu", exactly("big", f'{GPU}.model == "h200"'), exactly("two", H100, count=2)))),
        [pod("p", "c")],
    ),
    DeviceStory(
        "the node with the first choice",
        [
            device_class(),
            pieces("a", [device("gpu-0", model="a100")]),
            pieces("b", [device("gpu-0", model="h100")]),
            claim("c", choices("gpu", exactly("good", H100), exactly("any"))),
        ],
        [pod("p", "c")],
    ),
    DeviceStory(
        "the same node of memory",
        basic(
            claim(
                "c",
                exactly("one", f'{GPU}.model == "a100"'),
                exactly("two", H100),
                constraints=[{"matchAttribute": f"{DRIVER}/numa"}],
            ),
        ),
        [pod("p", "c")],
    ),
    DeviceStory(
        "no two with the same",
        basic(claim("c", exactly(count=3), constraints=[{"matchAttribute": f"{DRIVER}/numa"}])),
        [pod("p", "c")],
    ),
    DeviceStory(
        "a taint",
        [
            device_class(),
            pieces("a", [device("gpu-0", taints=[TAINT])]),
            claim("c", exactly()),
            claim("d", exactly(tolerations=[TOLERATION])),
        ],
        [pod("p", "c"), pod("q", "d")],
    ),
    DeviceStory(
        "parts of a GPU",
        [
            device_class(),
            *PARTS,
            *(
                claim(name, exactly("gpu", f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) == 0'))
                for name in "cde"
            ),
            claim("w", exactly()),
        ],
        [pod("p", "c"), pod("q", "d"), pod("r", "e"), pod("s", "w")],
    ),
    DeviceStory(
        "admin access",
        [
            device_class(),
            pieces("a", FOUR[:1]),
            claim("c", exactly()),
            claim("d", exactly(adminAccess=True)),
            claim("e", exactly()),
        ],
        [pod("p", "c"), pod("q", "d"), pod("r", "e")],
    ),
    DeviceStory(
        "one claim, two pods, and one that must go elsewhere",
        basic(claim("c", exactly())),
        [pod("p", "c"), pod("q", "c"), pod("r", "c", on="b")],
    ),
    DeviceStory("a class that is not there", basic(claim("c", exactly(of="none.example.com"))), [pod("p", "c")]),
    DeviceStory(
        "a class that comes later",
        [pieces("a", FOUR), claim("c", exactly())],
        [pod("p", "c"), device_class()],
    ),
    DeviceStory("devices that come later", [device_class(), claim("c", exactly())], [pod("p", "c"), pieces("a", FOUR)]),
    DeviceStory("CEL that divides by zero", basic(claim("c", exactly("gpu", f"1 / {GPU}.numa == 1"))), [pod("p", "c")]),
    DeviceStory("CEL without its key", basic(claim("c", exactly("gpu", f"{GPU}.speed == 1"))), [pod("p", "c")]),
    DeviceStory(
        "a class whose CEL fails",
        [device_class(CLASS, f"{GPU}.speed == 1"), pieces("a", FOUR), claim("c", exactly())],
        [pod("p", "c")],
    ),
    DeviceStory("a claim that is not there", basic(), [pod("p", "c"), pod("q", on="a")]),
    DeviceStory("a claim that comes later", basic(), [pod("p", "c"), claim("c", exactly())]),
    DeviceStory(
        "of a template", basic(template("t", exactly(count=3))), [pod("p", "template/t"), pod("q", "template/t")]
    ),
    DeviceStory(
        "the next one when the first is gone",
        basic(claim("c", exactly(count=4)), claim("d", exactly(count=2))),
        [pod("p", "c"), pod("q", "d"), gone("Pod", "p")],
    ),
    DeviceStory(
        "settings of class and claim",
        [
            device_class(CLASS, config=[{"opaque": CONFIG}]),
            pieces("a", FOUR),
            claim(
                "c",
                exactly("one"),
                exactly("two"),
                config=[{"requests": ["two"], "opaque": CONFIG}, {"opaque": CONFIG}],
            ),
        ],
        [pod("p", "c")],
    ),
    DeviceStory(
        "a device that is shared",
        [
            device_class(),
            pieces("a", [device("gpu-0", allowMultipleAllocations=True)]),
            *(claim(name, exactly(capacity={"requests": {"memory": "30Gi"}})) for name in "cde"),
        ],
        [pod("p", "c"), pod("q", "d"), pod("r", "e")],
    ),
    DeviceStory(
        "a pool that is not whole",
        [device_class(), pieces("a", FOUR, count=2), claim("c", exactly()), claim("d", exactly(allocationMode="All"))],
        [pod("p", "c"), pod("q", "d")],
    ),
    DeviceStory(
        "devices of every node",
        [device_class(), pieces("net", FOUR, allNodes=True), claim("c", exactly())],
        [pod("p", "c", on="a"), pod("q", "c", on="b")],
    ),
    DeviceStory(
        "devices of some nodes",
        [
            device_class(),
            pieces(
                "net",
                FOUR,
                nodeSelector={
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}
                    ]
                },
            ),
            claim("c", exactly()),
        ],
        [pod("p", "c"), pod("q", "c", on="a")],
    ),
    DeviceStory(
        "two claims for the only device",
        [device_class(), pieces("a", FOUR[:1]), claim("c", exactly()), claim("d", exactly())],
        [pod("p", "c", "d"), pod("q", "c")],
    ),
    DeviceStory(
        "more than a claim can hold",
        [
            device_class(),
            pieces("a", [device(f"gpu-{at}") for at in range(40)]),
            claim("c", exactly(allocationMode="All")),
        ],
        [pod("p", "c")],
    ),
    DeviceStory(
        "no node to begin with, and a pod that is too large",
        basic(claim("c", exactly())),
        [pod("p", "c", limits={"cpu": "100"}), pod("q", "c", on="b")],
    ),
    DeviceStory(
        "a claim that is of no use where it is",
        [device_class(), pieces("a", FOUR), pieces("b", FOUR), claim("c", exactly()), claim("d", exactly())],
        [pod("p", "c", on="a"), pod("q", "d", on="a"), gone("Pod", "p"), pod("r", "c", on="b"), pod("s", "d", on="b")],
    ),
    DeviceStory(
        "a claim that was allocated for nobody",
        [
            device_class(),
            pieces("a", FOUR),
            pieces("b", FOUR),
            given(claim("c", exactly()), "a", "gpu-1"),
            given(claim("d", exactly()), "a", "gpu-2"),
        ],
        [pod("p", "c", on="b"), pod("q", "d")],
    ),
    DeviceStory(
        "a claim that has its devices, and one that has not",
        [
            device_class(),
            pieces("net", FOUR, allNodes=True),
            *(claim(name, exactly()) for name in "cde"),
        ],
        [pod("p", "c", on="a"), pod("q", "c", "d"), pod("r", "c", "e", on="b")],
    ),
    DeviceStory(
        "an extended resource of a class",
        [device_class(extendedResourceName="example.com/gpu"), pieces("a", FOUR)],
        [
            pod("p", limits={"example.com/gpu": "3"}),
            pod("q", limits={"example.com/gpu": "2", "cpu": "1"}),
            gone("Pod", "p"),
        ],
    ),
    DeviceStory(
        "an extended resource by the class's name, of several containers",
        [device_class(), pieces("a", FOUR)],
        [
            pod(
                "p",
                limits={IMPLICIT: "2", "cpu": "10m"},
                initContainers=[
                    {"name": "i", "image": "none", "resources": {"limits": {IMPLICIT: "1"}}},
                    {"name": "j", "image": "none", "resources": {"limits": {IMPLICIT: "4"}}},
                    {"name": "k", "image": "none", "resources": {"limits": {IMPLICIT: "3"}}},
                    {
                        "name": "s",
                        "image": "none",
                        "restartPolicy": "Always",
                        "resources": {"limits": {IMPLICIT: "1"}},
                    },
                ],
            )
        ],
    ),
    DeviceStory(
        "an extended resource, by a plugin here and by a class there",
        [
            device_class(extendedResourceName="example.com/gpu"),
            device_class("older", extendedResourceName="example.com/gpu"),
            pieces("a", FOUR),
        ],
        [
            pod("p", on="b", limits={"example.com/gpu": "2"}),
            pod("q", on="b", limits={"example.com/gpu": "1"}),
            pod("r", on="a", limits={"example.com/gpu": "1"}),
        ],
        capacity=[("b", "example.com/gpu", "2")],
    ),
    DeviceStory(
        "an extended resource whose class comes later",
        [pieces("a", FOUR)],
        [pod("p", limits={"example.com/gpu": "1"}), device_class(extendedResourceName="example.com/gpu")],
    ),
    DeviceStory(
        "an extended resource and a claim",
        basic(claim("c", exactly("gpu", H100, count=2)), template("t", exactly())),
        [pod("p", "c", "template/t", limits={IMPLICIT: "1"}), pod("q", limits={IMPLICIT: "1"})],
    ),
    DeviceStory(
        "a claim that may not be written",
        basic(claim("c", exactly()), *policy("claims-stay", "resourceclaims/status")),
        [pod("p", "c")],
    ),
    DeviceStory(
        "a claim that may not be protected",
        basic(claim("c", exactly()), *policy("claims-stay", "resourceclaims")),
        [pod("p", "c")],
    ),
    DeviceStory(
        "all of a constraint that forbids one",
        basic(claim("c", exactly(allocationMode="All"), constraints=[{"matchAttribute": f"{DRIVER}/numa"}])),
        [pod("p", "c")],
    ),
)
