"""Changes of a MIG layout that failed or that nobody acts on, where no other rule reports the node."""

from __future__ import annotations

from collections.abc import Iterator

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names


def _nobody_acts(snapshot: Snapshot, node: Node) -> bool:
    """Whether a layout is asked for, the node has no state for it, and no MIG manager is there to read the label."""
    if node.labels.get(names.MIG_CONFIG_STATE_LABEL) or not snapshot.pods:
        return False
    return (
        not matching.pods_of_part(snapshot, matching.MIG_MANAGER)
        and node.labels.get(names.MIG_CONFIG_LABEL) != "all-disabled"
    )


def _unheard(node: Node, wanted: str) -> Finding:
    label = f"metadata.labels[{names.MIG_CONFIG_LABEL}]"
    return Finding(
        subject=node.subject,
        cause=(
            f"node {node.name} is to have the MIG layout {wanted}, "
            "and no MIG manager runs here that would read its label: nothing happens"
        ),
        evidence=(node.cite(label),),
        remedy=(
            Remedy("let the GPU operator bring it: migManager.enabled=true in its values"),
            Remedy(
                "or cut the GPUs by hand, on {}, with a profile of nvidia-smi mig -lgip in place of PROFILE:", node.name
            ),
            Remedy("nvidia-smi mig -i 0 -cgi PROFILE -C"),
        ),
        confidence=LIKELY,
        nodes=(node.name,),
    )


@rule(
    "MIG-00",
    "The MIG layout could not be applied",
    Place.PLUGIN,
    explains=("SCH-00", "SCH-01", "SCH-02", "SCH-05", "SCH-06"),
    last_resort=True,
    rests_on=("NVIDIA/mig-parted v0.15.0, source",),
)
def mig_failed(snapshot: Snapshot) -> Iterator[Finding]:
    """nvidia.com/mig.config.state=failed: often a pod still holds a GPU, or no such layout is configured. The log of
    the MIG manager says which.
    """
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        wanted = node.labels.get(names.MIG_CONFIG_LABEL, "")
        managers = matching.pods_of_part(snapshot, matching.MIG_MANAGER, node=node.name)
        if wanted and _nobody_acts(snapshot, node):
            yield _unheard(node, wanted)
        if node.labels.get(names.MIG_CONFIG_STATE_LABEL) != "failed":
            continue
        log = remedies.logs(managers[0].namespace, managers[0].name, "--tail=50") if managers else Remedy("")
        yield Finding(
            subject=node.subject,
            cause=f"the MIG manager could not apply the layout {wanted or 'that it was given'} on node {node.name}",
            evidence=(
                node.cite(f"metadata.labels[{names.MIG_CONFIG_STATE_LABEL}]"),
                node.cite(f"metadata.labels[{names.MIG_CONFIG_LABEL}]"),
            ),
            remedy=(
                log
                or Remedy("kubectl get pods -A -l app=nvidia-mig-manager --field-selector spec.nodeName={}", node.name),
                Remedy("end the pods that hold its GPUs, then:"),
                remedies.relabel(node.name, names.MIG_CONFIG_LABEL, wanted or "LAYOUT"),
            ),
            confidence=CERTAIN,
            nodes=(node.name,),
        )
