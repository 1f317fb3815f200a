"""Why a pod's volume claim keeps it from every node: the claim is not there, or has no volume and will not get one.

What is said goes on after "waits:"; the steps mend the claim. What nobody has looked at is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies, smallest_change
from kgpu.doctor.model import Evidence
from kgpu.doctor.objects import Obj, plain
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import Waiting
from kgpu.fit.filters_volume import BINDING, RESTRICTIONS
from kgpu.formats import names

CLAIM: Final = "PersistentVolumeClaim"
_CLASS: Final = "StorageClass"
_BY_HAND: Final = "kubernetes.io/no-provisioner"


@dataclass(frozen=True, slots=True)
class StuckClaim:
    """``why`` in words, what shows it, and what helps."""

    why: str
    evidence: tuple[Evidence, ...]
    remedy: tuple[Remedy, ...]


def stuck_claim(pending: Waiting) -> StuckClaim | None:
    """The claim for which a pod waits whatever the node, None where it waits for no claim."""
    reason = next((row for row in pending.anywhere if row.filter in (BINDING, RESTRICTIONS) and row.subject), None)
    if reason is None:
        return None
    name, snapshot, pod = plain(reason.subject), pending.snapshot, pending.pod
    look = remedies.describe(pod.namespace, "pvc", name)
    claim = snapshot.get(CLAIM, name, pod.namespace)
    if claim is None:
        return _missing(pending, name, generated=(reason.subject, True) in pending.view.volume_claims)
    cited = (pod.cite("spec.volumes"), claim.cite("status.phase"))
    if claim.deleting:
        return StuckClaim(
            f"its volume claim {name} is being deleted", (*cited, claim.cite("metadata.deletionTimestamp")),
            (
                remedies.describe(pod.namespace, "pvc", name).why("its finalizer waits until no pod uses it"),
                Remedy("then make the claim anew, and the pod"),
            ),
        )  # fmt: skip
    if claim.text("status.phase") == "Lost":
        volume = plain(claim.text("spec.volumeName")) or "?"
        return StuckClaim(
            f"the volume {volume} of its claim {name} is gone, and the data with it",
            (*cited, claim.cite("spec.volumeName")),
            (remedies.delete(pod.namespace, "pvc", name).why("then make it anew, and bring the data back"),),
        )
    why, evidence, steps = _unbound(snapshot, claim)
    return StuckClaim(f"its volume claim {name} has no volume: {why}", (*cited, *evidence), (*steps, look))


def _missing(pending: Waiting, name: str, *, generated: bool) -> StuckClaim:
    pod, snapshot = pending.pod, pending.snapshot
    evidence = (pod.cite("spec.volumes"), Evidence(object=f"{CLAIM} {pod.namespace}/{name}", value="not there"))
    if generated:
        return StuckClaim(
            f"the claim {name} of its ephemeral volume was not made yet", evidence,
            (remedies.describe(pod.namespace, "pod", pod.name).why("its events say what is in the way"),),
        )  # fmt: skip
    others = [claim for claim in snapshot.all(CLAIM) if claim.name and not claim.deleting]
    near = smallest_change.nearest(name, sorted(claim.name for claim in others if claim.namespace == pod.namespace))
    elsewhere = next((claim.namespace for claim in others if claim.name == name), "")
    hint = f"; did you mean {near}?" if near else f"; namespace {elsewhere} has one of that name" if elsewhere else ""
    return StuckClaim(
        f"it mounts the volume claim {name}, and namespace {pod.namespace} has no such claim{hint}", evidence,
        (
            Remedy("kubectl -n {} get pvc", pod.namespace),
            Remedy(
                "correct claimName in the manifest of {}{}, or make the claim {} in namespace {}",
                pod.owner or pod, f" to {near}" if near else "", name, pod.namespace,
            ),
        ),
    )  # fmt: skip


def _unbound(snapshot: Snapshot, claim: Obj) -> tuple[str, tuple[Evidence, ...], tuple[Remedy, ...]]:
    """Why, further evidence, and steps."""
    name = claim.text("spec.storageClassName") or claim.annotations.get("volume.beta.kubernetes.io/storage-class", "")
    classes = {storage_class.name: storage_class for storage_class in snapshot.all(_CLASS)}
    event = next((event_ for event_ in snapshot.events(claim) if event_.warning), None)
    quoted = (event.quote(),) if event is not None else ()
    cited_classes = matching.cite_classes(snapshot, _CLASS)
    name = plain(name)
    asks = claim.cite("spec.storageClassName")
    known = classes.get(name)
    if volume := plain(claim.text("spec.volumeName")):
        return (
            f"it asks for the volume {volume}",
            (claim.cite("spec.volumeName"), *quoted),
            (Remedy("kubectl get pv {}", volume),),
        )
    if name and known is None and snapshot.knows(_CLASS):
        near = smallest_change.nearest(name, sorted(classes))
        has = f"there are {', '.join(sorted(classes)[:5])}" if classes else "there is none at all"
        step = Remedy(
            "delete the claim and make it anew with a class that is there{}, or make the class {}",
            f" ({near})" if near else "", name,
        )  # fmt: skip
        return (
            f"it names the storage class {name}, which is not there; " + (f"did you mean {near}?" if near else has),
            (asks, cited_classes, *quoted), (Remedy("kubectl get storageclass"), step),
        )  # fmt: skip
    none = claim.at("spec.storageClassName") is None and not name and snapshot.knows(_CLASS)
    if none and not any(
        storage_class.annotations.get(names.DEFAULT_STORAGE_CLASS) == "true" for storage_class in classes.values()
    ):
        first = next(iter(sorted(classes)), "CLASS")
        which = "" if classes else ", with its name in place of CLASS"
        return (
            "it names no storage class, and the cluster has no default one", (asks, cited_classes, *quoted),
            (
                Remedy("name a class in the claim, or make one the default{}:", which),
                Remedy("kubectl annotate storageclass {} {}=true", first, names.DEFAULT_STORAGE_CLASS),
            ),
        )  # fmt: skip
    if event is not None:
        return event.message, (asks, *quoted), ()
    if not name or (known is not None and known.text("provisioner") == _BY_HAND):
        return "no volume that is free is for it, and nothing makes one", (asks,), (Remedy("kubectl get pv"),)
    if known is None:
        return "nobody has made one for it yet", (asks,), ()
    provisioner = plain(known.text("provisioner"))
    return (
        f"the provisioner {provisioner} of storage class {name} has made none", (asks, known.cite("provisioner")),
        (Remedy("look whether {} runs:", provisioner), Remedy("kubectl get pods -A")),
    )  # fmt: skip
