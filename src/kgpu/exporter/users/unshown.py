"""Users that are not shown: reported once, with an example, and counted for a metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.exporter.holders import NOT_ASKED, NOT_PUBLISHED, UNKNOWN_ID, Unshown
from kgpu.exporter.users.shares import NO_NAME, NO_POD, NOT_HELD
from kgpu.formats.names import CONTAINER_LOGS


class Notice(NamedTuple):
    """The text for one kind of user that is not shown: what, why, remedy and severity."""

    what: str
    why: str
    remedy: str
    severity: Severity = Severity.WARNING


_NOTICES: Final[Mapping[tuple[str, str], Notice]] = {
    ("device", UNKNOWN_ID): Notice(
        "a container's device is not shown with its GPU", "its id names no GPU or MIG device of this node",
        "was MIG changed under a running pod? restart the pod; device plugins other than kgpu's should use UUIDs",
    ),
    ("claim", NOT_ASKED): Notice(
        "a container's claimed device is not shown with its GPU", "devices of resource claims are not resolved",
        "turn on --kubernetes-enable-dra (KUBERNETES_ENABLE_DRA=true)",
    ),
    ("claim", NOT_PUBLISHED): Notice(
        "a container's claimed device is not shown with its GPU", "no ResourceSlice of this node has the device",
        "look at the DRA driver's pod on this node, and whether kgpu may read resourceslices",
    ),
    ("claim", UNKNOWN_ID): Notice(
        "a container's claimed device is not shown with its GPU", "its ResourceSlice names no GPU of this node",
        "look at the DRA driver's pod on this node: has it published what is there now?",
    ),
    ("process", NOT_HELD): Notice(
        "a pod uses a GPU that it does not hold", "its processes are on a device that the kubelet did not give it",
        "let it ask for the GPU in its resources; privileged pods reach every GPU",
    ),
    ("process", NO_NAME): Notice(
        "a process on a GPU is not shown with its pod", "its container is not known to the kubelet",
        f"see that the agent has the host's {CONTAINER_LOGS} and may list pods",
    ),
    ("process", NO_POD): Notice(
        "a process on a GPU is in no pod", "its control group is none of the kubelet's",
        "nothing, where the host uses GPUs itself", Severity.INFO,
    ),
    ("job-file", "unknown-device"): Notice(
        "a file of batch jobs is for no GPU", "its name is the index of none",
        "name it 0, 1, ..., or 0.7 for an instance",
    ),
    ("job-file", "unreadable"): Notice(
        "a file of batch jobs can't be read", "it is no small regular file that this user may read", "correct it",
    ),
    ("job-file", "too-many"): Notice("files of batch jobs are left out", "there are more than 512", "remove old ones"),
    ("job-file", "too-many-jobs"): Notice("batch jobs are left out", "a device has more than 64", "remove old ones"),
}  # fmt: skip


@dataclass(slots=True)
class UnshownReporter:
    """Reports each kind of problem when it is new; one that ends and comes back is new again."""

    tell: AdviceSink
    _known: set[tuple[str, str]] = field(default_factory=set)

    def missing(self, unshown: Iterable[Unshown], counted: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        """Count what is not shown, together with ``counted``, and report kinds that are new."""
        counts = dict(counted)
        examples: dict[tuple[str, str], Unshown] = {}
        for hidden in unshown:
            kind = (hidden.what, hidden.reason)
            counts[kind] = counts.get(kind, 0) + 1
            examples.setdefault(kind, hidden)
        for kind in counts.keys() - self._known:
            self.tell(_record(kind, examples.get(kind)))
        self._known = set(counts)
        return counts


def _record(kind: tuple[str, str], example: Unshown | None) -> Advice:
    word = _NOTICES[kind]
    evidence: tuple[str, ...] = ()
    if example is not None:
        namespace, pod, container = example.key
        whose = f"{namespace}/{pod}, container {container}: " if pod else ""
        evidence = (f"{whose}{example.what} {example.id[:80]}",)
    return Advice(
        subject="", what=word.what, why=word.why, evidence=evidence, severity=word.severity, remedy=word.remedy,
        reason="PodNotShown",
    )  # fmt: skip
