"""Rows DRA: claims that get no device, found by evaluating every selector on every device."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from kgpu.base.quantity import Quantity, QuantityError
from kgpu.base.remedy import Remedy
from kgpu.doctor import devices as dra
from kgpu.doctor import matching, remedies, smallest_change
from kgpu.doctor.devices import ClaimRequest, Device, Stand, Verdict
from kgpu.doctor.matching import DRA
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Place
from kgpu.doctor.objects import Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.untapped import or_a_node
from kgpu.doctor.waiting import Waiting, waiting

_SHOWN: Final = 3
_GIB: Final = 1 << 30
"""By a resource's domain the DRA driver of its devices, where that has another domain."""
_NO_DEVICES: Final = "cannot allocate all claims"
_MATCH: Final = frozenset({Stand.FREE, Stand.TAKEN, Stand.TAINTED})


def _claims(snapshot: Snapshot) -> Iterator[tuple[Waiting, Obj]]:
    """Claims of waiting pods to which no devices are allocated yet."""
    for pending in waiting(snapshot):
        for entry in pending.view.claims:
            claim = snapshot.get("ResourceClaim", entry.claim or "", pending.pod.namespace)
            if claim is not None and not claim.map("status.allocation"):
                yield pending, claim


Fate = tuple[Waiting, ClaimRequest, str, tuple[Verdict, ...]]


def _fates(snapshot: Snapshot) -> tuple[Fate, ...]:
    """Each request of such a claim with what blocks it: none, error, false, tainted or taken."""
    fates: list[Fate] = []
    for pending, claim in _claims(snapshot):
        requests = dra.requests(snapshot, claim)
        if any("firstAvailable" in request.path for request in requests):
            continue
        for request in requests:
            if snapshot.get("DeviceClass", request.device_class) is None:
                continue
            mine = tuple(row for row in dra.judge(snapshot, request) if row.stand is not Stand.OTHER)
            if word := _fate(request, mine):
                fates.append((pending, request, word, mine))
    return tuple(fates)


def _fate(request: ClaimRequest, mine: tuple[Verdict, ...]) -> str:
    stands = {row.stand for row in mine}
    if Stand.UNJUDGED in stands:
        return ""
    if not mine:
        return "none"
    if Stand.ERROR in stands:
        return "error"
    if not stands & _MATCH:
        return "false"
    if _most(mine, Stand.FREE) >= request.count:
        return ""
    return "tainted" if _most(mine, Stand.FREE, Stand.TAINTED) >= request.count else "taken"


def _most(rows: tuple[Verdict, ...], *stands: Stand) -> int:
    """How many devices with these stands a single node can use at most; devices without a node count everywhere."""
    counts = Counter(row.device.node for row in rows if row.stand in stands)
    return counts.pop("", 0) + max(counts.values(), default=0)


def _named(request: ClaimRequest) -> str:
    return f"request {request.name or '?'} of claim {request.claim.path}"


def _selector(request: ClaimRequest) -> Evidence:
    return request.claim.cite(f"{request.path}.selectors")


def _values(device: Device, expression: str) -> tuple[Evidence, ...]:
    """The device's values of the attributes and capacities that a selector uses."""
    base = f"{device.path}.basic" if device.slice.map(f"{device.path}.basic") else device.path
    evidence = []
    for field in ("attributes", "capacity"):
        for key, value in device.slice.map(f"{base}.{field}").items():
            if str(key).rpartition("/")[2] in expression:
                evidence.append(
                    device.slice.cite(
                        f"{base}.{field}.{key} ({device.name})",
                        next(iter(value.values()), value) if isinstance(value, dict) else value,
                    )
                )
    return tuple(evidence[:_SHOWN])


@rule(
    "DRA-01",
    "No device is free",
    Place.CLUSTER,
    rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu, documentation",),
)
def _taken(snapshot: Snapshot) -> Iterator[Finding]:
    """The scheduler's message is the same for every cause: cannot allocate all claims. This rule evaluates each
    selector on each device and counts what other claims hold.
    """
    for pending, request, word, rows in snapshot.once(_fates):
        if word != "taken":
            continue
        held = [row for row in rows if row.stand is Stand.TAKEN]
        matches = [row for row in rows if row.stand in _MATCH]
        holders = list(dict.fromkeys(row.why for row in held))
        claims = [snapshot.get("ResourceClaim", *reversed(path.split("/", 1))) for path in holders[:_SHOWN]]
        taken_by = f", {len(held)} are taken by {', '.join(holders[:5])}" if held else ""
        yield Finding(
            cause=(
                f"{pending.who} waits: {_named(request)} wants {request.count} on one node; of {len(rows)} devices of "
                f"class {request.device_class} {len(matches)} match{taken_by}, "
                f"and at most {_most(rows, Stand.FREE)} are free on one node"
            ),
            evidence=(
                request.claim.cite(request.path),
                *(claim.cite("status.allocation.devices.results") for claim in claims if claim),
                *(row.device.slice.cite(f"{row.device.path}.name") for row in matches[:_SHOWN]),
            ),
            remedy=(
                *(
                    Remedy(
                        "kubectl -n {} get resourceclaim {} -o jsonpath='{{.status.reservedFor}}'  # who holds it; "
                        "end that pod if it is idle",
                        path.split("/", 1)[0],
                        path.split("/", 1)[-1],
                    )
                    for path in holders[:1]
                ),
                Remedy("or ask for fewer devices"),
                *or_a_node(pending, Remedy("or add a node with more of them")),
            ),
            confidence=CERTAIN,
            **pending.shared(table=()),
        )


@rule(
    "DRA-04",
    "A selector fails",
    Place.CLUSTER,
    explains=("DRA-01",),
    rests_on=("kubernetes/kubernetes#135184",),
)
def _fails(snapshot: Snapshot) -> Iterator[Finding]:
    """An attribute or capacity that a device lacks is an error in CEL, not false, and ends the search. Ask with has()
    or in first.
    """
    for pending, request, word, rows in snapshot.once(_fates):
        if word != "error":
            continue
        bad = next(row for row in rows if row.stand is Stand.ERROR)
        key = bad.key
        yield Finding(
            cause=(
                f"{pending.who} waits: a selector of {_named(request)} fails on device {bad.device.name} of "
                f"{bad.device.driver} ({bad.why}), and a selector that fails on one device fails the claim"
            ),
            evidence=(_selector(request), bad.device.slice.cite(bad.device.path)),
            remedy=(
                Remedy('guard it: "{}" in device.attributes["{}"] && ..., or correct the name', key, bad.device.driver)
                if key
                else Remedy("correct the selector {}", repr(bad.selector)),
                Remedy("see what devices have:"),
                Remedy("kubectl get resourceslice {} -o yaml", bad.device.slice.name),
            ),
            confidence=CERTAIN,
            **pending.shared(table=()),
        )


@rule("DRA-06", "A selector is never true", Place.CLUSTER)
def _never_true(snapshot: Snapshot) -> Iterator[Finding]:
    """The selector is valid and false for every device. A device has less memory than its name says: NVIDIA's of 80 GB
    81559Mi, which is less than 80Gi, and AMD's of 192 GB less than 192Gi.
    """
    for pending, request, word, rows in snapshot.once(_fates):
        if word != "false":
            continue
        # The device that passes the most selectors is the nearest miss.
        near = max(
            rows, key=lambda row: request.selectors.index(row.selector) if row.selector in request.selectors else 0
        )
        values = _values(near.device, near.selector)
        has = "; ".join(f"{fact.field.split('.')[-1]} is {fact.value}" for fact in values)
        yield Finding(
            cause=(
                f"{pending.who} waits: a selector of {_named(request)} is false for all {len(rows)} devices of class "
                f"{request.device_class}" + (f"; the nearest, {near.device.name}: {has}" if has else "")
            ),
            evidence=(_selector(request), *values, near.device.slice.cite(f"{near.device.path}.name")),
            remedy=(
                Remedy("change the selector {} so that it fits what there is{}", f"{near.selector!r}", _memory(values)),
                Remedy("kubectl -n {} get resourceclaim {} -o yaml", request.claim.namespace, request.claim.name),
            ),
            confidence=CERTAIN,
            **pending.shared(table=()),
        )


def _memory(values: tuple[Evidence, ...]) -> str:
    """What the nearest device has of memory, where that is what a selector asks for: in the whole Gi to ask for."""
    for fact in values:
        if "memory" not in fact.field.lower():
            continue
        with contextlib.suppress(QuantityError):
            whole = Quantity.parse(fact.value).value // _GIB
            return f" (that device has {fact.value}: ask for {whole}Gi at most)" if whole else ""
    return ""


@rule(
    "DRA-07",
    "No slices",
    Place.PLUGIN,
    explains=("SCH-02",),
    rests_on=("intel/intel-resource-drivers-for-kubernetes#13", "google/dranet#30"),
)
def _no_slices(snapshot: Snapshot) -> Iterator[Finding]:
    """DRA drivers publish devices in ResourceSlices. Without any, the kubelet plugin does not run, or the API group or
    feature gates are off.
    """
    if not snapshot.knows("ResourceSlice"):
        return
    for pending, request, word, _ in snapshot.once(_fates):
        if word != "none":
            continue
        pods = matching.pods_of_part(snapshot, DRA)
        ill = [pod for pod in pods if not pod.ready]
        drivers = sorted({device.driver for device in dra.devices(snapshot)})
        offered = (
            f"; slices are there of {', '.join(drivers)}"
            if drivers
            else "; there are no ResourceSlices with devices at all"
        )
        who = f", and {ill[0]} is not ready" if ill else "" if pods else ", and no pod of a DRA driver runs"
        yield Finding(
            cause=(
                f"{pending.who} waits: no ResourceSlice offers a device of class {request.device_class}{offered}{who}"
            ),
            evidence=(
                request.claim.cite(f"{request.path}.deviceClassName"),
                Evidence(object="ResourceSlices", field="count", value=str(len(list(snapshot.all("ResourceSlice"))))),
                *(pod.cite("status.phase") for pod in ill[:1]),
            ),
            remedy=(
                Remedy("kubectl get resourceslices; kubectl get pods -A -o wide | grep dra"),
                Remedy(
                    "start the driver's kubelet plugin on the GPU nodes; before Kubernetes 1.34 turn the gate "
                    "DynamicResourceAllocation and the API group resource.k8s.io on"
                ),
            ),
            confidence=CERTAIN if not drivers else LIKELY,
            **pending.shared(table=(), nodes=tuple(node.name for node in pending.nodes)),
        )


@rule(
    "DRA-18",
    "Devices are tainted",
    Place.CLUSTER,
    rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu 22407113, source",),
)
def _tainted(snapshot: Snapshot) -> Iterator[Finding]:
    """Health monitors and DeviceTaintRules taint devices (gpu.nvidia.com/xid, gpu-lost, unmonitored); a request needs a
    toleration to get one.
    """
    for pending, request, word, rows in snapshot.once(_fates):
        if word != "tainted":
            continue
        bad = [row for row in rows if row.stand is Stand.TAINTED]
        first = bad[0].device
        rules = list(snapshot.all("DeviceTaintRule"))
        yield Finding(
            cause=(
                f"{pending.who} waits: {len(bad)} devices for {_named(request)} are free but tainted "
                f"({', '.join(sorted({row.why for row in bad})[:3])})"
            ),
            evidence=(
                first.slice.cite(first.path, [str(taint) for taint in first.taints]),
                request.claim.cite(request.path), *(taint_rule.cite("spec") for taint_rule in rules[:1]),
            ),
            remedy=(
                Remedy("mend what the taint stands for:"), remedies.ask_doctor(first.node or "NODE"),
                Remedy(
                    "or, if the pod can bear it, add a toleration to the request: {{key: {}, operator: Exists}}",
                    bad[0].key,
                ),
            ),
            confidence=CERTAIN,
            **pending.shared(table=(), nodes=tuple(dict.fromkeys(row.device.node for row in bad if row.device.node))),
        )  # fmt: skip


@rule("DRA-03", "The device class is not there", Place.CLUSTER)
def _no_class(snapshot: Snapshot) -> Iterator[Finding]:
    """The API server does not check deviceClassName."""
    if not snapshot.knows("DeviceClass"):
        return
    known = sorted(obj.name for obj in snapshot.all("DeviceClass"))
    for pending, claim in _claims(snapshot):
        for request in dra.requests(snapshot, claim):
            name = request.device_class
            if not name or name in known:
                continue
            near = smallest_change.nearest(name, known)
            yield Finding(
                cause=(
                    f"{pending.who} waits: {_named(request)} names DeviceClass {name}, which does not exist (there is: "
                    f"{', '.join(known[:5]) or 'none'})"
                ),
                evidence=(
                    claim.cite(f"{request.path}.deviceClassName"),
                    matching.cite_classes(snapshot, "DeviceClass"),
                ),
                remedy=(
                    Remedy("set deviceClassName: {}", near)
                    if near
                    else Remedy("install the driver that brings the class, or name one that there is:"),
                    *(() if near else (Remedy("kubectl get deviceclasses"),)),
                    Remedy(
                        "claims can't be changed: correct the template or manifest, then delete the claim and the pod"
                    ),
                ),
                confidence=CERTAIN,
                **pending.shared(table=()),
            )


def _lost_claims(snapshot: Snapshot) -> Iterator[tuple[Waiting, str, str, str]]:
    """Claims and templates that a pod names and that its namespace lacks: pod, kind, name, path in the pod."""
    for pending in waiting(snapshot):
        for position, row in enumerate(pending.pod.maps("spec.resourceClaims")):
            for field, kind in (
                ("resourceClaimName", "ResourceClaim"),
                ("resourceClaimTemplateName", "ResourceClaimTemplate"),
            ):
                name = row.get(field)
                if not isinstance(name, str) or not name or not snapshot.knows(kind):
                    continue
                if snapshot.get(kind, name, pending.pod.namespace) is None:
                    yield pending, kind, name, f"spec.resourceClaims[{position}].{field}"


@rule("DRA-02", "The claim is not there", Place.CLUSTER)
def no_claim(snapshot: Snapshot) -> Iterator[Finding]:
    """A pod's ResourceClaim or ResourceClaimTemplate has to be in its own namespace."""
    yield from _no_claim(snapshot, elsewhere=False)


@rule("DRA-22", "The claim is in another namespace", Place.CLUSTER)
def claim_elsewhere(snapshot: Snapshot) -> Iterator[Finding]:
    """Claims can't be shared between namespaces: each namespace needs its own claim or template."""
    yield from _no_claim(snapshot, elsewhere=True)


def _no_claim(snapshot: Snapshot, *, elsewhere: bool) -> Iterator[Finding]:
    for pending, kind, name, path in _lost_claims(snapshot):
        others = sorted(obj.namespace for obj in snapshot.all(kind) if obj.name == name)
        if bool(others) is not elsewhere:
            continue
        hint = (
            f"; one of that name is in namespace {', '.join(others[:3])}, and claims are not shared between namespaces"
            if others
            else ""
        )
        near = smallest_change.nearest(
            name, (obj.name for obj in snapshot.all(kind) if obj.namespace == pending.pod.namespace)
        )
        step = (
            Remedy("name {} in the pod, or create {}", near, name)
            if near
            else Remedy("create {} {} in namespace {}", kind, name, pending.pod.namespace)
        )
        copied = (
            Remedy(
                "kubectl -n {} get {} {} -o yaml  # then create it in namespace {}",
                others[0],
                kind.lower(),
                name,
                pending.pod.namespace,
            )
            if others
            else step
        )
        yield Finding(
            cause=f"{pending.who} waits for {kind} {name}, which is not in namespace {pending.pod.namespace}{hint}",
            evidence=(
                pending.pod.cite(path),
                Evidence(object=f"{kind}s of {pending.pod.namespace}", value="none of that name"),
            ),
            remedy=(copied, Remedy("a template (resourceClaimTemplateName) gives every pod a claim of its own")),
            confidence=CERTAIN,
            **pending.shared(table=()),
        )


@rule(
    "DRA-20",
    "A resource where there is DRA alone",
    Place.CLUSTER,
    explains=("SCH-02",),
    rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu, documentation",),
)
def _extended(snapshot: Snapshot) -> Iterator[Finding]:
    """With the DRA driver in place of the device plugin nvidia.com/gpu is offered only through
    DeviceClass.spec.extendedResourceName and the gate DRAExtendedResource.
    """
    drivers = Counter(device.driver for device in dra.devices(snapshot))
    for pending in waiting(snapshot):
        if not pending.resource or any(
            (node.allocatable(pending.resource) or 0) > 0 for node in snapshot.nodes.values()
        ):
            continue
        mine = [name for name in drivers if dra.is_driver_of(name, pending.resource)]
        if not mine or matching.is_mig(pending.resource):
            continue
        classes = [
            obj for obj in snapshot.all("DeviceClass") if obj.text("spec.extendedResourceName") == pending.resource
        ]
        # Only with the gate the scheduler looks for devices at all.
        looked = bool(classes) and any(_NO_DEVICES in fact.value for fact in pending.said())
        why = (
            f"no node has enough devices of DeviceClass {classes[0].name}, which stands for it"
            if looked
            else f"DeviceClass {classes[0].name} stands for it, but the gate DRAExtendedResource is off"
            if classes
            else "no DeviceClass stands for it (spec.extendedResourceName)"
        )
        known = next((obj.name for obj in snapshot.all("DeviceClass") if obj.name in mine), mine[0])
        change = {"spec": {"extendedResourceName": pending.resource}}
        patch = remedies.patch_wide("deviceclass", known, change).why("needs the gate DRAExtendedResource")
        yield Finding(
            cause=(
                f"{pending.who} asks for {pending.resource}, which no node offers: {drivers[mine[0]]} devices are "
                f"offered by DRA driver {mine[0]} alone, and {why}"
            ),
            evidence=(
                pending.asked(),
                next(d.slice for d in dra.devices(snapshot) if d.driver == mine[0]).cite("spec.driver"),
                *(obj.cite("spec.extendedResourceName") for obj in classes[:1]),
            ),
            remedy=(
                Remedy("kubectl get resourceclaims -A -o wide  # who holds the devices; end a pod that is idle")
                if looked
                else Remedy("turn the gate DRAExtendedResource on in API server, scheduler and kubelets")
                if classes
                else patch,
                *(
                    or_a_node(pending, Remedy("or add a node with more of them"))
                    if looked
                    else (Remedy("or use a ResourceClaim in place of the resource"),)
                ),
            ),
            confidence=LIKELY if classes and not looked else CERTAIN,
            **pending.shared(),
        )


@rule(
    "DRA-23",
    "The gate is off in one component",
    Place.CLUSTER,
    explains=("DRA-01", "DRA-07"),
    rests_on=("google/dranet#30",),
)
def _gates(snapshot: Snapshot) -> Iterator[Finding]:
    """DynamicResourceAllocation has to be the same in API server, controller manager, scheduler and kubelets."""
    off, others = [], 0
    for pod in snapshot.pods.values():
        for container in pod.containers:
            program = next((word.rsplit("/", 1)[-1] for word in container.words[:1]), "")
            if program not in ("kube-scheduler", "kube-apiserver", "kube-controller-manager"):
                continue
            switches = [word for word in container.words if "DynamicResourceAllocation=false" in word]
            others += not switches
            if switches:
                off.append((program, pod, container))
    if not off or not any(pending.view.claims for pending in waiting(snapshot)):
        return
    program, pod, container = off[0]
    hurt = [pending for pending in waiting(snapshot) if pending.view.claims]
    yield Finding(
        subject=pod.subject,
        cause=(
            f"{program} runs with DynamicResourceAllocation=false, while pods wait with claims: "
            "nobody allocates for them"
        ),
        evidence=(container.cite("command"), hurt[0].pod.cite("spec.resourceClaims")),
        remedy=(
            Remedy(
                "set the gate alike in API server, controller manager, "
                "scheduler and kubelets (it is on by itself from Kubernetes 1.34)"
            ),
        ),
        confidence=CERTAIN if others else LIKELY,
        pods=tuple(pod.path for pending in hurt for pod in pending.pods),
    )
