"""NVIDIA's resolution buckets, by their published names, and what kgpu makes of each.

A bucket is what NVIDIA's Xid catalogue says to do at once (or, in the second column, to look into). ``GUIDANCE`` turns
it into one action of kgpu's with a severity and a sentence of advice. What needs other evidence (a workflow) has the
action that holds when there is none; ``plan.py`` looks further.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.advice import Severity
from kgpu.formats.xid.action import Action


class Bucket(enum.StrEnum):
    """NVIDIA's words."""

    NONE = ""
    IGNORE = "IGNORE"
    RESTART_APP = "RESTART_APP"
    RESTART_VM = "RESTART_VM"
    RESTART_BM = "RESTART_BM"
    RESET_GPU = "RESET_GPU"
    RESTART_FM = "RESTART_FM"
    UPDATE_SWFW = "UPDATE_SWFW"
    CHECK_MECHANICALS = "CHECK_MECHANICALS"
    CHECK_UVM = "CHECK_UVM"
    CHECK_APP_CUDA = "CHECK_APP/CUDA"
    CONTACT_SUPPORT = "CONTACT_SUPPORT"
    REPORT_ISSUE = "REPORT_ISSUE"
    INVESTIGATE_SW = "INVESTIGATE_SW"
    INVESTIGATE_SW_USER = "INVESTIGATE_SW_USER"
    INVESTIGATE_LINK_SI = "INVESTIGATE_LINK_SI"
    INVESTIGATE_SW_USER_LINK_SI = "INVESTIGATE_SW_USER_LINK_SI"
    INVESTIGATE_LINK_SI_AND_CABLES = "INVESTIGATE_LINK_SI_AND_CABLES"
    INVESTIGATE_PEER_DEVICE = "INVESTIGATE_PEER_DEVICE"
    INVESTIGATE_HOST = "INVESTIGATE_HOST"
    CHECK_NVLINK_FAILURE_FLOW = "CHECK_NVLINK_FAILURE_FLOW"
    SYMPATHETIC = "SYMPATHETIC_REPORT_SOLO"
    WORKFLOW_XID_13 = "WORKFLOW_XID_13"
    WORKFLOW_XID_31 = "WORKFLOW_XID_31"
    WORKFLOW_XID_45 = "WORKFLOW_XID_45"
    WORKFLOW_XID_48 = "WORKFLOW_XID_48"
    WORKFLOW_NVLINK_ERR = "WORKFLOW_NVLINK_ERR"
    WORKFLOW_NVLINK5_ERR = "WORKFLOW_NVLINK5_ERR"
    XID_137_FLOW = "XID_137_FLOW"
    XID_154 = "XID_154"
    XID_154_EVAL = "XID_154_EVAL"
    RESET_FABRIC = "RESET_FABRIC"  # kgpu's own word, for switches: NVIDIA describes it without naming it


@dataclass(frozen=True, slots=True)
class Guidance:
    """What kgpu makes of a bucket, or of a number that it knows better. ``key`` stands for the advice where programs
    talk to each other (``kgpu.formats.gpu_remedies``).
    """

    action: Action
    severity: Severity
    advice: str
    key: str = ""


def bucket_key(bucket: Bucket) -> str:
    """The key of a bucket's advice."""
    return f"bucket/{bucket}"


_I, _W, _E = Severity.INFO, Severity.WARNING, Severity.ERROR
_LOOK = Action.INSPECT

_OF_BUCKETS: Final = {
    Bucket.NONE: Guidance(_LOOK, _W, "NVIDIA names no action; keep the log line and ask support if it comes again"),
    Bucket.IGNORE: Guidance(Action.IGNORE, _I, "nothing; the GPU goes on working"),
    Bucket.RESTART_APP: Guidance(
        Action.RESTART_APP, _W, "restart the program that used the GPU; no reset, no drain: other programs are not hurt"
    ),
    Bucket.RESTART_VM: Guidance(
        Action.REBOOT, _E, "drain this node and restart the virtual machine; the physical host need not be restarted"
    ),
    Bucket.RESTART_BM: Guidance(
        Action.REBOOT, _E, "drain the node and reboot it; a power cycle if the GPU is still missing after that"
    ),
    Bucket.RESET_GPU: Guidance(
        Action.RESET_GPU, _E, "give the GPU no new work, let its pods go, reset it (`nvidia-smi -r -i GPU`), test it"
    ),
    Bucket.RESTART_FM: Guidance(_LOOK, _W, "restart the fabric manager (`systemctl restart nvidia-fabricmanager`)"),
    Bucket.UPDATE_SWFW: Guidance(
        _LOOK, _W, "bring driver, vGPU manager and firmware to versions that belong together"
    ),
    Bucket.CHECK_MECHANICALS: Guidance(
        _LOOK, _E, "have the card's seat, power plugs and cables checked; the GPU runs slower or not at all until then"
    ),
    Bucket.CHECK_UVM: Guidance(
        _LOOK, _W, "where managed memory (UVM) or vGPU is used: reset the GPU; otherwise nothing"
    ),
    Bucket.CHECK_APP_CUDA: Guidance(
        Action.RESTART_APP, _W, "look for the error in the program, e.g. with compute-sanitizer"
    ),
    Bucket.CONTACT_SUPPORT: Guidance(
        _LOOK, _W, "run nvidia-bug-report.sh, and ask the hardware vendor's support if it comes again"
    ),
    Bucket.REPORT_ISSUE: Guidance(_LOOK, _W, "report it to NVIDIA if it comes more than once a day"),
    Bucket.INVESTIGATE_SW: Guidance(_LOOK, _W, "look into the program named in the line, then into the driver"),
    Bucket.INVESTIGATE_SW_USER: Guidance(_LOOK, _W, "find out who has taken the link down, if that was not wanted"),
    Bucket.INVESTIGATE_LINK_SI: Guidance(_LOOK, _W, "have the link's signal quality checked"),
    Bucket.INVESTIGATE_SW_USER_LINK_SI: Guidance(
        _LOOK, _W, "find out who has taken the link down; if nobody has, have its signal quality checked"
    ),
    Bucket.INVESTIGATE_LINK_SI_AND_CABLES: Guidance(
        _LOOK, _W, "have cables, seats, transceivers and temperatures of the link checked"
    ),
    Bucket.INVESTIGATE_PEER_DEVICE: Guidance(_LOOK, _W, "look at the other end of the link: the cause is there"),
    Bucket.INVESTIGATE_HOST: Guidance(_LOOK, _W, "read the host's other logs: this follows from something there"),
    Bucket.CHECK_NVLINK_FAILURE_FLOW: Guidance(
        _LOOK, _W, "if a link went down in the last 30 seconds, that is the cause; otherwise report it"
    ),
    Bucket.SYMPATHETIC: Guidance(_LOOK, _W, "look at the errors around it first; report it if it stands alone"),
    Bucket.WORKFLOW_XID_13: Guidance(
        Action.RESTART_APP, _W, "look for the error in the program; if always the same SM fails, run diagnostics"
    ),
    Bucket.WORKFLOW_XID_31: Guidance(
        Action.RESTART_APP, _W, "look for the error in the program; on one GPU alone, whatever runs: run diagnostics"
    ),
    Bucket.WORKFLOW_XID_45: Guidance(
        Action.IGNORE, _I, "follow the Xid before it on this GPU; alone it means that a program was ended"
    ),
    Bucket.WORKFLOW_XID_48: Guidance(
        Action.RESET_GPU,
        _E,
        "drain and reset the GPU; with Xid 94 beside it the reset can wait until the GPU is idle",
    ),
    Bucket.WORKFLOW_NVLINK_ERR: Guidance(
        Action.RESET_GPU, _E, "drain and reset the GPUs at both ends of the link; if it comes again, check the link"
    ),
    Bucket.WORKFLOW_NVLINK5_ERR: Guidance(
        _LOOK, _W, "the unit and the first two words of the line decide: give kgpu the whole line"
    ),
    Bucket.XID_137_FLOW: Guidance(
        Action.IGNORE, _I, "look for a wrong peer-to-peer access in the program, e.g. with compute-sanitizer"
    ),
    Bucket.XID_154: Guidance(_LOOK, _W, "do what the line says: it is the driver's own verdict"),
    Bucket.XID_154_EVAL: Guidance(
        Action.RESTART_APP, _W, "do what Xid 154 says if there is one for this GPU; otherwise restart the program"
    ),
    Bucket.RESET_FABRIC: Guidance(
        Action.REBOOT, _E, "drain the node; reset all its GPUs and switches at once (`nvidia-smi -r`), or reboot it"
    ),
}  # fmt: skip
GUIDANCE: Final = {bucket: replace(what, key=bucket_key(bucket)) for bucket, what in _OF_BUCKETS.items()}

_OF_RECOVERY: Final = {
    "reset": GUIDANCE[Bucket.RESET_GPU],
    "reboot": GUIDANCE[Bucket.RESTART_BM],
    "drain": Guidance(
        Action.DRAIN, _E, "let the programs that use NVLink between GPUs end and start no new ones; then look again"
    ),
    "drain-reset": Guidance(Action.RESET_GPU, _E, "let the GPU's programs end by themselves, then reset it"),
    "imex": Guidance(_LOOK, _E, "recover the IMEX domain: see the state of nvidia-imex on all its nodes"),
}
RECOVERY: Final = {word: replace(what, key=what.key or f"recovery/{word}") for word, what in _OF_RECOVERY.items()}
"""What the driver's own verdict (NVML recovery action, Xid 154) calls for; ``none`` and ``unknown`` are not here."""

UNKNOWN: Final = Guidance(_LOOK, _W, "it is not in the catalogue: update kgpu, and ask support about it", "xid/unknown")
"""An Xid that has no row."""
