"""NodeOperation ``kgpu.dev/v1alpha1``: one change of one node, from the wish to what came of it.

The spec says what is wanted and can't be changed once it is there, but for a person's word: ``approved``, ``cancel``,
``resume``. The status is the engine's record: it is written before anything is done, so that whoever takes over knows
what may have happened.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal

import msgspec

from kgpu.formats import names
from kgpu.formats.crd.common import Block, doc
from kgpu.formats.crd.status import CONDITIONS_LIST, StatusCondition
from kgpu.formats.mig_request import MAX_ID, MAX_NAME, MAX_PROFILES

WAITING_FOR_PODS: Final = "WaitingForPods"
"""The reason of an operation that waits for pods to end before it evicts any."""
DRIVER_RELEASED: Final = "DriverReleased"
"""The condition of an upgrade whose node is empty, once the node's agent has had its time to let go of the driver."""
ROLLOUT_STOPPED: Final = "RolloutStopped"
"""The reason of an operation that waits because others of its rollout have failed."""
MAX_TEXT: Final = 1024
MAX_GPUS: Final = 16
MAX_WAITING: Final = 20
"""Pods that a status names; all are counted."""
DRAIN_SECONDS: Final = 300
ACT_SECONDS: Final = 1800
"""Servers with many GPUs take ten minutes and more to boot."""
MIG_DRAIN_SECONDS: Final = 3600
"""A change of MIG slices waits long for disruption budgets: nobody loses anything meanwhile."""
UPGRADE_SECONDS: Final = 3600
"""A driver may have to be downloaded and compiled on each node."""
STEADY_SECONDS: Final = 10.0
"""How long a driver has to stay: its container may be Ready, and the node well, before its last part has failed."""
STOP_AFTER: Final = 2
MAX_SELECTOR: Final = 1024
MOST: Final = 2**31 - 1
"""The largest number in a spec. The API server does not hold a format such as int32 against a value."""
INT32: Final = {"format": "int32", "maximum": MOST}
_TIME: Final = {"format": "date-time"}
_SHORT: Final = {"maxLength": 253}
_LONG: Final = {"maxLength": MAX_TEXT}
_UUIDS: Final = {
    "maxItems": MAX_GPUS,
    "x-kubernetes-list-type": "set",
    "items": {"type": "string", "minLength": 1, "maxLength": 100},
}


class OperationType(enum.StrEnum):
    """What is done to a node."""

    MAINTENANCE = "Maintenance"
    REBOOT = "Reboot"
    GPU_RESET = "GpuReset"
    REPLACE = "Replace"
    DRIVER_UPGRADE = "DriverUpgrade"
    MIG_CHANGE = "MigChange"


class OperationPhase(enum.StrEnum):
    """How far an operation is, in order."""

    PENDING = "Pending"
    CORDONING = "Cordoning"
    DRAINING = "Draining"
    ACTING = "Acting"
    VERIFYING = "Verifying"
    RESTORING = "Restoring"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Result(enum.StrEnum):
    """What came of it."""

    SUCCEEDED = "Succeeded"
    TRANSIENT_FAILURE = "TransientFailure"
    PERMANENT_FAILURE = "PermanentFailure"
    SUPERSEDED = "Superseded"
    CANCELLED = "Cancelled"


class OnTimeout(enum.StrEnum):
    """What becomes of pods that are still there when the drain's time is over."""

    FAIL = "Fail"
    FORCE = "Force"


SHARE: Final = (
    (
        "type(self) == string ? self.matches('^([0-9]{1,6}|[0-9]{1,2}%|100%)$') : self >= 0",
        "it has to be a number of nodes such as 2, or a share such as 25%",
    ),
)
_SELECTOR: Final = {"maxLength": MAX_SELECTOR}


class OperationWaitFor(Block, frozen=True, kw_only=True):
    """Pods that are waited for before any pod is asked to go."""

    pod_selector: Annotated[
        str,
        doc("Their labels, as `kubectl get --selector` takes them.", schema={"minLength": 1, **_SELECTOR}),
    ]
    timeout_seconds: Annotated[
        int, doc("How long; then the drain goes on without them. 0: for ever.", minimum=0, schema=INT32)
    ] = 0


class OperationDrain(Block, frozen=True, kw_only=True):
    """How the node is emptied; the rules are those of `kubectl drain --ignore-daemonsets`."""

    timeout_seconds: Annotated[
        int,
        doc("How long it may take; `onTimeout` says what comes after that.", minimum=1, schema=INT32),
    ] = DRAIN_SECONDS
    on_timeout: Annotated[
        Literal["Fail", "Force"],
        doc(
            "What comes after `timeoutSeconds`: with `Fail` the operation fails, and the node goes back. With `Force` "
            "the pods that disruption budgets hold are deleted, each with its grace period; it needs "
            "`operations.allowForce` in the chart's values."
        ),
    ] = "Fail"
    grace_period_seconds: Annotated[
        int | None, doc("How long pods get to end; their own time if not given.", minimum=0, schema=INT32)
    ] = None
    force: Annotated[bool, doc("Whether pods go that no controller makes anew.")] = False
    delete_empty_dir_data: Annotated[bool, doc("Whether pods go that lose what is in an emptyDir.")] = False
    only_gpu_pods: Annotated[
        bool,
        doc("Whether only pods go that ask for GPUs or have resource claims; the node is cordoned all the same."),
    ] = False
    pod_selector: Annotated[
        str,
        doc(
            "Only pods with these labels go, as `kubectl drain --pod-selector`; with a DriverUpgrade pods with GPUs go "
            "in any case.",
            schema=_SELECTOR,
        ),
    ] = ""
    wait_for: Annotated[OperationWaitFor | None, doc("Pods that are waited for before any pod is asked to go.")] = None


class OperationDriver(Block, frozen=True, kw_only=True):
    """The driver that a node is to run. Its DaemonSet has it in its template already; its pod there is exchanged."""

    namespace: Annotated[str, doc("The DaemonSet's namespace: the operator's.", schema={"minLength": 1, **_SHORT})]
    daemon_set: Annotated[str, doc("The DaemonSet's name.", schema={"minLength": 1, **_SHORT})]
    digest: Annotated[
        str,
        doc("The `DRIVER_CONFIG_DIGEST` that is wanted: it differs when a driver has to be installed anew.",
            schema={"minLength": 1, "maxLength": 63}),
    ]  # fmt: skip
    image: Annotated[str, doc("The image that is wanted of the container `nvidia-driver-ctr`.", schema=_LONG)] = ""
    version: Annotated[str, doc("The driver's release, as far as it is known.", schema=_SHORT)] = ""
    from_version: Annotated[str, doc("The release that ran before, as far as it is known.", schema=_SHORT)] = ""


class OperationRollout(Block, frozen=True, kw_only=True):
    """Operations that belong together: a budget of their own, within that of all operations."""

    name: Annotated[str, doc("Operations with the same name are one rollout.", schema={"minLength": 1, **_SHORT})]
    max_parallel: Annotated[
        int, doc("How many of them may be under way at a time; 0: any number.", minimum=0, schema=INT32)
    ] = 1
    max_unavailable: Annotated[
        int | str,
        doc(
            "None of them begins while as many nodes with GPUs are down, for whatever reason: a number, or a share of "
            "the nodes with GPUs such as `25%`, rounded down and at least 1.",
            rules=SHARE,
            schema={"maxLength": 16},
        ),
    ] = "100%"
    stop_after_failures: Annotated[
        int,
        doc(
            "After so many of them in a row that failed for the same driver, no other begins until a person lets one; "
            "0: however many.",
            minimum=0, schema=INT32,
        ),
    ] = STOP_AFTER  # fmt: skip


class MigDrain(enum.StrEnum):
    """Who goes before GPUs are cut anew."""

    NODE = "node"
    GPU = "gpu"
    NONE = "none"


class OperationMigLayout(Block, frozen=True, kw_only=True):
    """How one GPU is to be cut."""

    gpu: Annotated[str, doc("The GPU's UUID.", schema={"minLength": 1, "maxLength": 100})]
    enabled: Annotated[bool, doc("Whether MIG is on.")]
    devices: Annotated[
        dict[str, int],
        doc(
            "How many slices of each profile, such as `1g.10gb`; or a partition mode, such as `cpx_nps4`.",
            schema={"maxProperties": MAX_PROFILES},
        ),
    ] = msgspec.field(default_factory=dict)


class OperationMig(Block, frozen=True, kw_only=True):
    """The MIG slices that some GPUs are to have."""

    config: Annotated[str, doc("The config's name, from the label.", schema={"minLength": 1, "maxLength": MAX_NAME})]
    request: Annotated[
        str,
        doc("Which of the node's requests it is for; each is carried out once.",
            schema={"minLength": 1, "maxLength": MAX_ID}),
    ]  # fmt: skip
    layouts: Annotated[
        tuple[OperationMigLayout, ...],
        doc("How each of the GPUs in `gpus` is to be cut.", schema={"minItems": 1, "maxItems": MAX_GPUS}),
    ]
    release: Annotated[bool, doc("Whether a GPU has to be reset for it, so that no program may have it open.")] = False
    drain: Annotated[
        Literal["node", "gpu", "none"],
        doc(
            "Who goes first: with `gpu` the pods that hold one of the GPUs; with `node` all pods of the node, which is "
            "cordoned; with `none` nobody is asked to go, and the pods that hold one of the GPUs are waited for."
        ),
    ] = "gpu"


class NodeOperationSpec(Block, frozen=True, kw_only=True):
    """What is wanted."""

    node_name: Annotated[str, doc("The node.", schema={"minLength": 1, **_SHORT})]
    node_uid: Annotated[
        str | None,
        doc("The Node's uid; if not given, that of the node when the operation is first seen.", schema=_SHORT),
    ] = msgspec.field(default=None, name="nodeUID")
    type: Annotated[
        Literal["Maintenance", "Reboot", "GpuReset", "Replace", "DriverUpgrade", "MigChange"],
        doc(
            "What is done: `Maintenance` empties the node and keeps it so until a person says that it is over; "
            "`Reboot` empties it, has it boot anew, and gives it back once it is Ready with the GPUs that it had; "
            "`GpuReset` resets the GPUs in `gpus` once no pod holds them, while pods with other GPUs go on; "
            "`Replace` keeps what is known of the node, empties it, and holds it until its machine is replaced or "
            "repaired, or a person resumes it: kgpu deletes no machine and no Node; `DriverUpgrade` empties it, "
            "exchanges the pod of its driver for one of the driver in `driver`, and gives it back once that is loaded; "
            "`MigChange` cuts the GPUs in `gpus` into the MIG slices in `mig`, or sets their partition modes, once no "
            f"pod holds them: a node's own label `{names.MIG_CONFIG_LABEL}` or `{names.AMD_PROFILE_LABEL}` asks for it."
        ),
    ]
    driver: Annotated[OperationDriver | None, doc("The driver that a DriverUpgrade installs.")] = None
    mig: Annotated[OperationMig | None, doc("The MIG slices that a MigChange makes.")] = None
    rollout: Annotated[OperationRollout | None, doc("The rollout that it belongs to.")] = None
    gpus: Annotated[
        tuple[str, ...],
        doc(
            "The UUIDs of the GPUs that are meant. A Maintenance with them empties these GPUs alone: only pods that "
            "hold one of them go, and the node is not cordoned.",
            schema=_UUIDS,
        ),
    ] = ()
    requested_by: Annotated[str, doc("Who wants it, by their own account: nobody checks it.", schema=_SHORT)] = ""
    reason: Annotated[str, doc("Why, for people.", schema=_LONG)] = ""
    drain: Annotated[OperationDrain, doc("How the node is emptied.")] = OperationDrain()
    duration_seconds: Annotated[
        int | None,
        doc("How long a Maintenance lasts; without it, until `resume` is set.", minimum=1, schema=INT32),
    ] = None
    act_timeout_seconds: Annotated[
        int | None,
        doc(
            f"How long a reboot may take until the node is there with another boot ({ACT_SECONDS} if not given), or a "
            f"DriverUpgrade until the other driver is loaded ({UPGRADE_SECONDS}). A reset or a MigChange gets at most "
            "10 minutes.",
            minimum=1,
            schema=INT32,
        ),
    ] = None
    not_before: Annotated[str | None, doc("When it may begin.", schema=_TIME)] = None
    deadline: Annotated[str | None, doc("When it must have begun; it fails otherwise.", schema=_TIME)] = None
    approved: Annotated[bool, doc("Whether it may begin; one that is not approved waits.")] = True
    even_if_stopped: Annotated[bool, doc("Set it to let it begin although its rollout has stopped after failures.")] = (
        False
    )
    cancel: Annotated[bool, doc("Set it to end the operation and give the node back.")] = False
    resume: Annotated[bool, doc("Set it when the work on the node is done, to give the node back.")] = False


class NodeBefore(Block, frozen=True, kw_only=True):
    """How the node was before anything was done to it."""

    unschedulable: Annotated[bool, doc("Whether it was cordoned.")] = False
    boot_id: Annotated[str, doc("Its boot.", schema=_SHORT)] = msgspec.field(default="", name="bootID")
    checked: Annotated[bool, doc("Whether its validator told of which boot its checks were.")] = False
    gpus: Annotated[dict[str, int], doc("How many GPUs it offered, by resource.")] = msgspec.field(default_factory=dict)


class NodeAct(Block, frozen=True, kw_only=True):
    """What the node is asked to do, once it is empty."""

    id: Annotated[str, doc("Under which it is asked; a machine heeds each once.", schema=_SHORT)] = ""
    boot_id: Annotated[str, doc("The boot in which it is asked; a reboot ends it.", schema=_SHORT)] = msgspec.field(
        default="", name="bootID"
    )
    pod: Annotated[str, doc("The driver's pod that a DriverUpgrade deletes.", schema=_SHORT)] = ""
    pod_uid: Annotated[str, doc("That pod's uid.", schema=_SHORT)] = msgspec.field(default="", name="podUID")


class WaitingPod(Block, frozen=True, kw_only=True):
    """A pod that has not gone yet."""

    namespace: Annotated[str, doc("Its namespace.", schema=_SHORT)]
    name: Annotated[str, doc("Its name.", schema=_SHORT)]
    why: Annotated[str, doc("What it waits for.", schema=_LONG)] = ""


class DrainProgress(Block, frozen=True, kw_only=True):
    """How far the node is emptied."""

    total: Annotated[int, doc("Pods that had to go.", schema=INT32)] = 0
    gone: Annotated[int, doc("Pods that have gone.", schema=INT32)] = 0
    waiting: Annotated[tuple[WaitingPod, ...], doc("Some of the others.")] = ()


class OperationEvidence(Block, frozen=True, kw_only=True):
    """The ConfigMap that keeps what was known of the node: an archive of `kgpu collect`."""

    namespace: Annotated[str, doc("Its namespace, which is the operator's.", schema=_SHORT)]
    name: Annotated[str, doc("Its name.", schema=_SHORT)]
    size_bytes: Annotated[int, doc("How large the archive is.", schema=INT32)] = 0


class NodeOperationStatus(Block, frozen=True, kw_only=True):
    """What was done."""

    phase: Annotated[
        Literal["Pending", "Cordoning", "Draining", "Acting", "Verifying", "Restoring", "Complete", "Failed"],
        doc("How far it is."),
    ] = "Pending"
    message: Annotated[str, doc("What it does or waits for, or what came of it, and what to do.", schema=_LONG)] = ""
    reason: Annotated[str, doc("The same in a word.", schema=_SHORT)] = ""
    result: Annotated[
        Literal["", "Succeeded", "TransientFailure", "PermanentFailure", "Superseded", "Cancelled"],
        doc("What came of it; known from the moment when the node is being given back."),
    ] = ""
    node_uid: Annotated[str, doc("The Node's uid.", schema=_SHORT)] = msgspec.field(default="", name="nodeUID")
    started_at: Annotated[str | None, doc("When it was admitted.", schema=_TIME)] = None
    phase_since: Annotated[str | None, doc("When the phase began.", schema=_TIME)] = None
    phase_deadline: Annotated[str | None, doc("When the phase must be over.", schema=_TIME)] = None
    completed_at: Annotated[str | None, doc("When it ended.", schema=_TIME)] = None
    before: Annotated[NodeBefore | None, doc("How the node was.")] = None
    drain: Annotated[DrainProgress | None, doc("How far the node is emptied.")] = None
    act: Annotated[NodeAct | None, doc("What the node is asked to do.")] = None
    evidence: Annotated[
        OperationEvidence | None,
        doc("What was known of the node before a Replace emptied it; `kgpu operations bundle` fetches it."),
    ] = None
    conditions: Annotated[
        tuple[StatusCondition, ...],
        doc(
            "`Admitted`, `Cordoned`, `EvidenceCollected`, `PodsCompleted`, `Forced`, `Drained`, `DriverReleased`, "
            "`ActDone`, `Verified`, `Restored`, `Complete`.",
            schema=CONDITIONS_LIST,
        ),
    ] = ()


IMMUTABLE: Final = tuple(
    (
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        f"{name} is immutable: make a new NodeOperation instead",
    )
    for name in (
        "nodeName",
        "nodeUID",
        "type",
        "gpus",
        "driver",
        "mig",
        "rollout",
        "requestedBy",
        "reason",
        "drain",
        "durationSeconds",
        "actTimeoutSeconds",
        "notBefore",
        "deadline",
    )
)
ENDED_BY_PEOPLE: Final = frozenset({OperationType.MAINTENANCE, OperationType.REPLACE})
"""The types that hold a node until a person resumes them."""
ONLY_MAINTENANCE: Final = (
    (
        "!self.resume || self.type == 'Maintenance' || self.type == 'Replace'",
        "only a Maintenance or a Replace is resumed: others end by themselves; cancel ends them early",
    ),
    (
        "!has(self.durationSeconds) || self.type == 'Maintenance'",
        "durationSeconds is for a Maintenance alone: others end by themselves; leave it out",
    ),
)
GPUS_OF_TYPE: Final = (
    (
        "self.type != 'GpuReset' || (has(self.gpus) && size(self.gpus) > 0)",
        "a GpuReset needs gpus: the UUIDs that are meant",
    ),
    (
        "self.type != 'Reboot' || !has(self.gpus) || size(self.gpus) == 0",
        "a Reboot is of the whole node: leave gpus out",
    ),
    (
        "self.type != 'Replace' || !has(self.gpus) || size(self.gpus) == 0",
        "a Replace is of the whole node: leave gpus out",
    ),
    (
        "self.type != 'DriverUpgrade' || !has(self.gpus) || size(self.gpus) == 0",
        "a DriverUpgrade is of the whole node: leave gpus out",
    ),
    (
        "!has(self.drain.waitFor) || !has(self.gpus) || size(self.gpus) == 0",
        "drain.waitFor is for operations on whole nodes: leave gpus or waitFor out",
    ),
)
DRIVER_OF_TYPE: Final = (
    (
        "self.type != 'DriverUpgrade' || has(self.driver)",
        "a DriverUpgrade needs driver, the DaemonSet and its digest: `kgpu node upgrade-driver` knows them",
    ),
    ("self.type == 'DriverUpgrade' || !has(self.driver)", "driver is for a DriverUpgrade alone: leave it out"),
)
_EACH_GPU: Final = "size(self.mig.layouts) == size(self.gpus) && self.mig.layouts.all(row, row.gpu in self.gpus)"
MIG_OF_TYPE: Final = (
    (
        "self.type != 'MigChange' || (has(self.mig) && has(self.gpus) && size(self.gpus) > 0)",
        f"a MigChange needs gpus and mig, which only the node knows: set its label {names.MIG_CONFIG_LABEL} instead",
    ),
    ("self.type == 'MigChange' || !has(self.mig)", "mig is for a MigChange alone: leave it out"),
    (
        f"!has(self.mig) || !has(self.gpus) || ({_EACH_GPU})",
        "mig.layouts has to say for each GPU in gpus, and for no other, how it is to be cut",
    ),
)
ONE_WAY: Final = tuple(
    (f"!oldSelf.{name} || self.{name}", f"{name} can't be taken back: make a new NodeOperation instead")
    for name in ("approved", "cancel", "resume", "evenIfStopped")
)
"""A word that was given stays: what follows from it may have begun."""


def _stays(field: str) -> str:
    """A rule about the whole object: once the status has the field, it keeps it."""
    known = f"has(oldSelf.status) && has(oldSelf.status.{field})"
    kept = f"has(self.status) && has(self.status.{field}) && self.status.{field} == oldSelf.status.{field}"
    return f"!({known}) || ({kept})"


def _only_in(field: str, phases: str) -> str:
    """A rule about the whole object: with the field, the phase is one of these."""
    known = f"has(self.status) && has(self.status.{field})"
    return f"!({known}) || (has(self.status.phase) && self.status.phase {phases})"


NOT_FORGOTTEN: Final = (
    (_stays("startedAt"), "status.startedAt stays: an operation that has begun does not begin again"),
    (_stays("completedAt"), "status.completedAt stays: make a new NodeOperation instead"),
    (_only_in("startedAt", "!= 'Pending'"), "an operation that has begun is not Pending"),
    (_only_in("completedAt", "in ['Complete', 'Failed']"), "an operation that is over is Complete or Failed"),
)
"""An emptied status would let a node that has rebooted reboot again."""
