"""Rows OPR known by a message: in events of DaemonSets, in conditions, in logs of the operator and of Helm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy, words
from kgpu.doctor import matching, messages, remedies
from kgpu.doctor.matching import DRIVER, OPERATOR, VALIDATOR
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Place, Subject
from kgpu.doctor.objects import Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.operator.objects import CRDS, FIELDS, by_hand, old_schema
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot

_BELOW: Final = ("SCH-02", "DPL-*", "TNT-04", "TNT-12", "RUN-01", "OPR-15")
PSA: Final = "pod-security.kubernetes.io/enforce"


def _refused(snapshot: Snapshot, pattern: str, words: str) -> dict[str, list[Hit]]:
    """Events of controllers whose pods are refused, by namespace."""
    refusals: dict[str, list[Hit]] = {}
    kinds = frozenset({"DaemonSet", "ReplicaSet", "StatefulSet", "Job"})
    for event in snapshot.all_events():
        kind, namespace, name = event.about
        hit = re.search(pattern, event.message) if kind in kinds and words in event.message else None
        maker = snapshot.get(kind, name, namespace) if hit else None
        if hit is None or (maker is not None and not _of_stack(maker)) or (maker is None and "nvidia" not in name):
            continue
        if (
            maker is not None
            and maker.number("status.numberReady")
            and maker.number("status.numberReady") >= maker.number("status.desiredNumberScheduled")
        ):
            continue
        refusals.setdefault(namespace, []).append(Hit(hit, event.quote()))
    return refusals


def _of_stack(maker: Obj) -> bool:
    """Whether its pods are a part of a GPU stack, or ask for accelerators."""
    return bool(matching.parts_of(maker)) or matching.makes_accelerator_pods(maker)


def allow_privileged(namespace: str) -> Remedy:
    """What lets privileged pods into a namespace."""
    return remedies.label_namespace(namespace, PSA, "privileged")


@rule(
    "OPR-02",
    "The namespace forbids privileged pods",
    Place.CLUSTER,
    explains=_BELOW,
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def pod_security(snapshot: Snapshot) -> Iterator[Finding]:
    """Pod Security admission: the operator's namespace needs enforce=privileged."""
    for namespace, hits in _refused(
        snapshot, r"violates PodSecurity \\?\"(?P<level>[\w-]+)", "violates PodSecurity"
    ).items():
        place = snapshot.get("Namespace", namespace)
        label = f"metadata.labels[{PSA}]"
        if place is not None and place.labels.get(PSA) == "privileged":
            continue
        yield Finding(
            subject=Subject("Namespace", namespace),
            cause=(
                f"namespace {namespace} allows pods of the level {hits[0].match['level']} alone: "
                "the GPU stack's privileged pods are refused"
            ),
            evidence=(hits[0].evidence, *((place.cite(label),) if place else ())),
            remedy=(allow_privileged(namespace),),
            confidence=CERTAIN,
        )


@rule(
    "OPR-12",
    "No security context constraints",
    Place.CLUSTER,
    explains=_BELOW,
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def no_constraint(snapshot: Snapshot) -> Iterator[Finding]:
    """On OpenShift each service account needs SecurityContextConstraints that allow privileged pods."""
    for namespace, hits in _refused(
        snapshot, r"unable to validate against any security context constraint", "security context constraint"
    ).items():
        yield Finding(
            subject=Subject("Namespace", namespace),
            cause=f"no SecurityContextConstraints allow the GPU stack's pods in namespace {namespace}",
            evidence=(hits[0].evidence,),
            remedy=(
                Remedy("install kgpu's chart with platform.openshift=true, which brings them"),
                Remedy("or, for NVIDIA's operator, install it from OperatorHub (OLM)"),
                Remedy("or:"),
                Remedy(
                    "oc adm policy add-scc-to-user privileged -z nvidia-driver -n {}  # for each service account",
                    namespace,
                ),
            ),
            confidence=CERTAIN,
        )


def webhook_blocks(snapshot: Snapshot) -> Iterator[Finding]:
    """OPR-18 by events: a webhook that does not answer keeps the stack's pods from being made."""
    for namespace, hits in _refused(
        snapshot, r"failed calling webhook \\?\"(?P<webhook>[^\"\\]+)", "failed calling webhook"
    ).items():
        name = hits[0].match["webhook"]
        yield Finding(
            subject=Subject("Namespace", namespace),
            cause=f"the webhook {name} does not answer, and no pods of the GPU stack are made in namespace {namespace}",
            evidence=(hits[0].evidence,),
            remedy=(
                Remedy("kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"),
                Remedy("mend the service behind it, or let it leave out this namespace (namespaceSelector)"),
            ),
            confidence=CERTAIN,
        )


_FORBIDDEN: Final = re.compile(
    r"(?P<what>[\w./-]+) is forbidden: User \\?\"system:serviceaccount:(?P<space>[\w.-]+):"
    r"(?P<account>[\w.-]+)\\?\" cannot (?P<verb>\w+) resource"
    r" \\?\"(?P<resource>[\w./-]+)\\?\" in API group \\?\"(?P<group>[\w.-]*)\\?\""
    r"(?P<where> at the cluster scope| in the namespace \\?\"[\w.-]+\\?\")"
)
_PARTS: Final = (
    OPERATOR,
    matching.PLUGIN,
    matching.GFD,
    matching.NFD_MASTER,
    matching.NFD_WORKER,
    matching.AGENT,
    matching.DRA,
    matching.MIG_MANAGER,
)


def forbidden(snapshot: Snapshot) -> Iterator[Finding]:
    """OPR-18: the API server denies a part of the stack a request that its ClusterRole or Role does not allow."""
    for hit in messages.in_logs(snapshot, _FORBIDDEN, "is forbidden: User", parts=_PARTS):
        pod, denial = hit.pod, hit.match
        if pod is None or pod.ready or denial["space"] != pod.namespace:
            continue
        account = f"system:serviceaccount:{denial['space']}:{denial['account']}"
        everywhere = denial["where"].startswith(" at")
        kind = "ClusterRole" if everywhere else "Role"
        of_group = f"{denial['resource']}.{denial['group']}" if denial["group"] else denial["resource"]
        # An informer lists first, and then watches.
        verbs = "get, list and watch" if denial["verb"] in ("get", "list", "watch") else denial["verb"]
        place = () if everywhere else ("-n", denial["where"].split('"')[1].rstrip("\\"))
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} may not {denial['verb']} {of_group}{denial['where'].replace(chr(92), '')}: its account's "
                "rights lack it, as after an upgrade whose role was not brought along"
            ),
            evidence=(hit.evidence,),
            remedy=(
                Remedy(
                    "kubectl {}",
                    words(
                        *place,
                        "auth",
                        "can-i",
                        denial["verb"],
                        of_group,
                        "--as",
                        account,
                        *(("-A",) if everywhere else ()),
                    ),
                ),
                Remedy(
                    "upgrade to a release whose {} has it, or install the release's roles again; where they can't be "
                    "had, add {} of {} to the {} of that account by hand",
                    kind,
                    verbs,
                    of_group,
                    kind,
                ),
            ),
            confidence=LIKELY,
            nodes=(pod.node,) if pod.node else (),
            pods=(pod.path,),
        )


def kept_out(snapshot: Snapshot) -> Iterator[Finding]:
    """OPR-18 by events and by refusals."""
    yield from webhook_blocks(snapshot)
    yield from forbidden(snapshot)


def known_field(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """A field that newer releases have: then the CRD is old. Others are mistakes."""
    del snapshot
    return () if hit.match["field"].split(".")[0] in FIELDS else None


def unknown_field(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """A field that no release has, or a section that is required."""
    del snapshot
    field = hit.match["field"]
    return () if field is None or field.split(".")[0] not in FIELDS else None


def finished(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Evidence that the awaited pod, or another of the validator's where it is gone, has finished; else None."""
    name = hit.match["waited"]
    named = [pod for pod in snapshot.pods.values() if pod.name == name]
    tests = (pod for pod in snapshot.pods.values() if pod.phase == "Succeeded" and _is_test(pod))
    waited = named[0] if named else next(tests, None) if _TEST.match(name) else None
    return (waited.cite("status.phase"),) if waited and waited.phase == "Succeeded" else None


_TEST: Final = re.compile(r"nvidia-(?:cuda|device-plugin)-validator")


def _is_test(pod: Obj) -> bool:
    return any(part.name == VALIDATOR for part in matching.parts_of(pod))


_MOFED: Final = re.compile(r"/(?:doca-driver|mofed)\b")


def mofed_later(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The network driver's pod that is still at work on that node; without one it is another row."""
    for pod in snapshot.pods_by_node.get(hit.node, ()):
        for container in pod.containers:
            if _MOFED.search(container.image) and not pod.ready:
                return (container.cite("image"), container.cite_status())
    return None


RULES: Final = rules_of(
    Sign(
        id="OPR-01",
        title="The CRDs are older than the operator",
        place=Place.CLUSTER,
        pattern=r"unknown field \\?\"spec\.(?P<field>[\w.\[\]]+)\\?\"",
        words="unknown field",
        where=(LOG, STATUS, EVENT),
        always=True,
        cause=(
            "{who}: the ClusterPolicy's CRD does not know spec.{field}, which this release has: "
            "Helm does not upgrade CRDs"
        ),
        remedy=CRDS,
        explain=(
            "Helm installs the folder crds/ once. Without upgradeCRD the schema stays old, "
            "and the API server prunes what it does not know."
        ),
        confidence=CERTAIN,
        proof=known_field,
        besides=old_schema,
        rests_on=(
            "NVIDIA/gpu-operator#139",
            "NVIDIA/gpu-operator#196",
            "NVIDIA/gpu-operator#431",
            "edgelesssys/contrast#2599",
        ),
    ),
    Sign(
        id="OPR-14",
        title="A hand-written ClusterPolicy",
        place=Place.CLUSTER,
        pattern=(
            r"unknown field \\?\"spec\.(?P<field>[\w.\[\]]+)\\?\""
            r"|ClusterPolicy[^\n]*spec\.(?P<section>\w+): Required value"
        ),
        words="spec.",
        where=(LOG, STATUS, EVENT),
        always=True,
        cause=(
            "{who}: a ClusterPolicy with spec.{field}{section} as it is in some guide is refused: no such field, "
            "or a required section is left out"
        ),
        remedy=(
            "take the chart's instead:",
            "helm install gpu-operator nvidia/gpu-operator -n gpu-operator --create-namespace",
            "kubectl explain clusterpolicy.spec",
        ),
        explain=(
            "operator, daemonsets, driver, toolkit, devicePlugin, dcgm, dcgmExporter, gfd and nodeStatusExporter are "
            "required; spec.nodeFeatureDiscovery does not exist."
        ),
        confidence=CERTAIN,
        proof=unknown_field,
        besides=by_hand,
    ),
    Sign(
        id="OPR-11",
        title="OpenShift's driver toolkit is missing",
        place=Place.KERNEL,
        pattern=(
            r"(?i)RHCOS '[^']{1,100}' imagetag missing|(?:driver[- ]?toolkit|\bdtk\b)[^\n]*"
            r"(?:not found|missing|does not (?:exist|have)|no (?:image|tag)|unavailable)"
            r"|imagestream[^\n]*driver-toolkit[^\n]*not found"
        ),
        words="",
        where=(LOG, STATUS),
        parts=(OPERATOR, DRIVER),
        always=True,
        cause=(
            "{who}: OpenShift's ImageStream driver-toolkit has no image for the nodes' system, "
            "with which the driver would be built"
        ),
        remedy=(
            "oc get -n openshift imagestream driver-toolkit -o jsonpath='{{.spec.tags[*].name}}'",
            (
                "update OpenShift to a release whose machine-os has a driver toolkit, "
                "and let the internal registry be reachable"
            ),
            (
                "where there is none (OKD): install the driver on the nodes and set driver.enabled=false, "
                "or bring an own driver image"
            ),
        ),
        explain=(
            "On RHCOS drivers are built in the driver toolkit's image of exactly the node's release. Without one the "
            "driver's container falls back to the packages, which need an entitlement and a way to the repositories."
        ),
        explains=("DRV-02", "DRV-24", "DRV-25", "KRN-01", *_BELOW),
        rests_on=(
            "NVIDIA GPU Operator documentation: troubleshooting, release notes",
            "NVIDIA/gpu-operator v26.7.0, source",
        ),
    ),
    Sign(
        id="OPR-17",
        title="The network's driver is not there yet",
        place=Place.KERNEL,
        pattern=r"[Ww]aiting for MOFED to be installed",
        words="MOFED",
        where=(LOG, STATUS),
        cause=(
            "{who} waits for the network operator's driver (MOFED), "
            "which is still being installed there and comes before NVIDIA's"
        ),
        remedy=(
            "kubectl get pods -A -l nvidia.com/ofed-driver --field-selector spec.nodeName={node}",
            "install the network operator first, or set driver.rdma.useHostMofed=true where MOFED is on the host",
        ),
        explain=(
            "With driver.rdma.enabled nvidia-peermem is built against MOFED, and waits for "
            "/run/mellanox/drivers/.driver-ready."
        ),
        confidence=CERTAIN,
        proof=mofed_later,
        explains=("NET-06", "DRV-02", "DRV-03", *_BELOW),
        rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
    ),
    Sign(
        id="OPR-18",
        title="The operator can't reach what it needs",
        place=Place.CLUSTER,
        pattern=(
            r"dial tcp (?P<address>[\w.:\[\]-]+): (?:i/o timeout|connect: connection timed out"
            r"|connect: no route to host)"
        ),
        words="dial tcp",
        where=(LOG,),
        parts=(OPERATOR,),
        cause="{who} can't reach {address}: a NetworkPolicy or a firewall is in between",
        remedy=("kubectl get networkpolicy -n {namespace}", "allow its pods to reach the API server (443, 6443)"),
        explain="The operator works through the API server alone.",
        besides=kept_out,
        explains=_BELOW,
        rests_on=("kubernetes/kubernetes, apiserver: responsewriters/errors.go",),
    ),
    Sign(
        id="OPR-22",
        title="Waiting for pods that are never Ready",
        place=Place.CLUSTER,
        pattern=r"timed out waiting for the condition on pods/(?P<waited>[\w.-]+)",
        words="timed out waiting for the condition on pods/",
        where=(LOG, STATUS),
        always=True,
        cause=(
            "{who} waits for all pods to be Ready, and {waited} has completed, which is right for it: "
            "such a wait never ends"
        ),
        remedy=("kubectl wait clusterpolicy/{policy} --for=jsonpath='{{.status.state}}'=ready --timeout=20m",),
        explain="The validator's test pods (nvidia-cuda-validator-...) end as Completed; completed pods are not Ready.",
        confidence=CERTAIN,
        proof=finished,
    ),
    Sign(
        id="OPR-24",
        title="An image without gpu-feature-discovery",
        place=Place.CLUSTER,
        pattern=r"exec: \\?\"gpu-feature-discovery\\?\": (?:executable file not found|stat)",
        words="gpu-feature-discovery",
        where=(EVENT, STATUS, LOG),
        cause="{who}: this image of the device plugin has no gpu-feature-discovery: it is older than 0.15",
        remedy=("take gfd.image and gfd.version out of the values, so that they go with devicePlugin.version",),
        explain="gpu-feature-discovery came into the device plugin's image with 0.15; before it had its own.",
        confidence=CERTAIN,
    ),
    Sign(
        id="OPR-25",
        title="Installed twice by Helm",
        place=Place.CLUSTER,
        pattern=r"(?P<what>\w+ \\?\"?[\w.:-]+\\?\"?)[^\n]{0,80} exists and cannot be imported into the current release",
        words="cannot be imported into the current release",
        where=(LOG, STATUS, EVENT),
        always=True,
        cause="{who}: Helm can't install a second release: {what} belongs to the first one",
        remedy=(
            "helm list -A | grep gpu-operator",
            "upgrade the release that is listed, by its name (RELEASE) in its NAMESPACE:",
            "helm upgrade RELEASE nvidia/gpu-operator -n NAMESPACE --reuse-values",
        ),
        explain=(
            "Cluster-wide objects carry the name of their release; --generate-name makes another one with each install."
        ),
        confidence=CERTAIN,
    ),
)
