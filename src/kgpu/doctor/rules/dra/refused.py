"""Claims that get no devices for what no other rule looks at: choices, constraints, counters, capacity, all together.

The scheduler's own allocator says so of each device (``kgpu.fit.devices``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Place
from kgpu.doctor.objects import Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.untapped import or_a_node
from kgpu.doctor.waiting import Waiting, waiting
from kgpu.fit.claims import NAME
from kgpu.fit.model import Reason

_SENTENCES: Final = 4
_SCHEDULER: Final = "cannot allocate all claims"


@rule(
    "DRA-00",
    "The claims get no devices",
    Place.CLUSTER,
    explains=("SCH-00",),
    last_resort=True,
    rests_on=("KEP-4381 structured parameters",),
)
def refused(snapshot: Snapshot) -> Iterator[Finding]:
    """Why no node has devices for all claims of a pod together, device by device, as the scheduler's allocator decides
    it: choices in order, constraints across devices, counters that devices share, capacity that claims share. Reported
    only for pods that no other rule explains.
    """
    if snapshot.fit.fitter is None:
        return
    for pending in waiting(snapshot):
        claims = list(_open_claims(snapshot, pending))
        node, reasons = _nearest(pending)
        if not claims or not node or pending.fits:
            continue
        told = "; ".join(reason.sentence for reason in reasons[:_SENTENCES])
        more = f"; and {len(reasons) - _SENTENCES} more" if len(reasons) > _SENTENCES else ""
        said = pending.said()
        yield Finding(
            cause=f"{pending.who} waits: no node has devices for its claims; node {node}: {told}{more}",
            evidence=(*(claim.cite("spec.devices") for claim in claims), *_slices(snapshot, node), *said),
            remedy=(
                Remedy("ask for what one node has, or end a pod whose claim holds the devices:"),
                Remedy("kubectl get resourceclaims -A -o wide; kubectl get resourceslices -o yaml"),
                Remedy("claims can't be changed: correct the template or manifest, then delete the claim and the pod"),
                *or_a_node(pending, Remedy("or add a node with such devices")),
            ),
            confidence=CERTAIN if any(_SCHEDULER in fact.value for fact in said) else LIKELY,
            **pending.shared(),
        )


def _open_claims(snapshot: Snapshot, pending: Waiting) -> Iterator[Obj]:
    for entry in pending.view.claims:
        claim = snapshot.get("ResourceClaim", entry.claim or "", pending.pod.namespace)
        if claim is not None and not claim.map("status.allocation"):
            yield claim


def _nearest(pending: Waiting) -> tuple[str, list[Reason]]:
    """The node with the least against the pod beside its devices, and what is said of these; "" for none."""
    best: tuple[int, int, str, list[Reason]] | None = None
    for name, reasons in pending.reasons.items():
        mine = [reason for reason in reasons if reason.filter == NAME]
        if mine:
            found = (len(reasons) - len(mine), len(mine), name, mine)
            best = found if best is None else min(best, found, key=lambda row: row[:3])
    return ("", []) if best is None else best[2:]


def _slices(snapshot: Snapshot, node: str) -> Iterator[Evidence]:
    for piece in snapshot.all("ResourceSlice"):
        if piece.text("spec.nodeName") == node:
            yield piece.cite("spec.pool")
            return
