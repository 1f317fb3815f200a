"""What the MIG manager knows of its Node, and what it decides."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import UserError
from kgpu.formats.mig_request import MigLabelState, MigProgress, MigReport, MigRequest
from kgpu.formats.node_order import NodeOrder
from kgpu.mig.manager.kind import LayoutLabel, LayoutPlan

ADOPTED: Final = "MigAdopted"
APPLIED: Final = "MigApplied"


class MigReason(enum.StrEnum):
    """Why a state is what it is: the words of reports and Events, of MIG's label as they stand here."""

    APPLIED = APPLIED
    ADOPTED = ADOPTED
    CHANGED_SINCE = "MigChangedByHand"
    REQUESTED = "MigRequested"
    UNDER_WAY = "MigChanging"
    APPLYING = "MigApplying"
    NO_DRIVER = "MigDriverMissing"
    UNREADABLE = "MigDriverUnreadable"
    CONFIG = "MigConfigRefused"
    LAYOUT = "MigLayoutRefused"
    NOTHING = "MigConfigMatchesNothing"
    TWO_LABELS = "MigTwoLabels"
    VENDOR = "MigVendorUnsupported"
    IN_USE = "MigGpusInUse"
    OPERATION = "MigOperationFailed"
    FAILED = "MigChangeFailed"
    BROKEN = "MigLayoutBroken"

    def word(self, label: LayoutLabel) -> str:
        """The word for this label."""
        return label.reasons + self.removeprefix("Mig")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigLabelledNode:
    """The Node as it is now.

    ``value`` is the label's, "" without it; ``by_operator``: nobody but an operator has written it. ``default`` is the
    value that kgpu's operator means in earnest. ``others`` are labels by which another program cuts the same GPUs.
    ``order`` is the operator's order for an operation on this node in this boot, whatever it is about.
    """

    uid: str = ""
    version: str = ""
    value: str = ""
    by_operator: bool = False
    default: str = ""
    others: tuple[str, ...] = ()
    state: str = ""
    request: MigRequest | None = None
    progress: MigProgress | None = None
    report: MigReport | None = None
    order: NodeOrder | None = None

    @property
    def acts(self) -> bool:
        """Whether somebody means the value: a person has set it, or the operator's default was changed to it."""
        return bool(self.value) and (not self.by_operator or self.default == self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigWish:
    """What is wanted, told apart from the same wanted at another time: ``stamp`` is of when the label was set,
    ``losses`` how often what was made has been lost since. ``noun`` is what the label names.
    """

    value: str
    stamp: str
    boot: str
    losses: int = 0
    noun: str = "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDecision:
    """What becomes of the label.

    ``message`` is for people, one line. ``request`` is what the operator is to do, ``apply`` what this process does by
    itself. ``problem`` is what is wrong, None where nothing is. ``key`` is the wish's. ``settled``: the wish is
    fulfilled. ``lost``: it was, and a reboot of the driver has taken the slices since. ``pods`` (namespace/name) hold
    parts that are gone. ``again``: it may be otherwise in a while without any news.
    """

    state: MigLabelState
    reason: MigReason
    message: str = ""
    key: str = ""
    request: MigRequest | None = None
    apply: tuple[LayoutPlan, ...] = ()
    problem: UserError | None = None
    settled: bool = False
    lost: bool = False
    pods: tuple[str, ...] = ()
    again: bool = False
