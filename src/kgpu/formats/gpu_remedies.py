"""What is to be done about a GPU, as rows: a key that programs of kgpu hand each other, and kgpu's own words for it.

Whoever reads a key from outside looks it up here, so that no words from outside are ever offered as a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kgpu.formats.names import AMD, GAUDI, INTEL
from kgpu.formats.xid import catalogue
from kgpu.formats.xid.action import WORDS, Action
from kgpu.formats.xid.buckets import GUIDANCE, RECOVERY, UNKNOWN, Bucket, bucket_key

RESET: Final = bucket_key(Bucket.RESET_GPU)
REBOOT: Final = bucket_key(Bucket.RESTART_BM)
RESTART_APP: Final = bucket_key(Bucket.RESTART_APP)
RESTART_FABRIC_MANAGER: Final = bucket_key(Bucket.RESTART_FM)
RESET_LINK: Final = bucket_key(Bucket.WORKFLOW_NVLINK_ERR)
LINK_SIGNAL: Final = bucket_key(Bucket.INVESTIGATE_LINK_SI)
RESET_AMD: Final = "check/reset-amd"
RESET_GAUDI: Final = "check/reset-gaudi"
RESET_INTEL: Final = "check/reset-intel"
REPLACE: Final = "check/replace"
RESET_WHEN_IDLE: Final = "check/reset-when-idle"
SEAT: Final = "check/seat"
COOLING: Final = "check/cooling"
POWER: Final = "check/power"
SPARE_ROWS: Final = "check/spare-rows"
DOWN_LINKS: Final = "check/down-links"
KERNEL_LOG: Final = "check/kernel-log"
KERNEL_LOG_OR_RESET: Final = "check/kernel-log-or-reset"
CUDA: Final = "check/cuda"
NOTHING: Final = "check/nothing"

CHECKS: Final[Mapping[str, str]] = {
    RESET_AMD: "give the GPU no new work, let its pods go, reset it (`amd-smi reset --gpureset --gpu GPU`), test it",
    RESET_GAUDI: "give the card no new work, let its pods go, reset it (`hl-smi -r -i BUS`), test it",
    RESET_INTEL: "give the GPU no new work, let its pods go, drain the node and reboot it",
    REPLACE: "drain the GPU, run the vendor's diagnostics and have it replaced",
    RESET_WHEN_IDLE: "reset the GPU when it is idle; what runs on it may go on until then",
    SEAT: "have the card's seat, riser and slot checked; it is slower until then",
    COOLING: "check fans, air flow and room temperature",
    POWER: "check the power supplies and the rack's power limit",
    SPARE_ROWS: "plan to replace the GPU: few spare rows are left",
    DOWN_LINKS: "look for NVLinks that are down",
    KERNEL_LOG: "read the driver's lines in the kernel log",
    KERNEL_LOG_OR_RESET: "read the driver's lines in the kernel log; reset the GPU if it goes on",
    CUDA: "see `kgpu validate`",
    NOTHING: "nothing: the driver asks for nothing",
}
"""What follows from readings; what follows from an Xid, an SXid or the driver's own verdict is in the catalogue."""


OF_VENDOR: Final[Mapping[str, Mapping[str, str]]] = {
    AMD: {RESET: RESET_AMD, RESET_LINK: RESET_AMD},
    GAUDI: {RESET: RESET_GAUDI, RESET_LINK: RESET_GAUDI},
    INTEL: {RESET: RESET_INTEL},
}
"""Keys that stand for another vendor's program, and what takes their place."""


def of_vendor(key: str, vendor: str) -> str:
    """The key for a GPU of this vendor."""
    return OF_VENDOR.get(vendor, {}).get(key, key)


def configured(action: Action) -> str:
    """The key for an action that the user's configuration has for a number."""
    return f"config/{action}"


def words(key: str) -> str:
    """What is to be done, "" for a key that there is not."""
    kind, _, name = key.partition("/")
    find = _KINDS.get(kind)
    try:
        return find(name) if find is not None else ""
    except (KeyError, ValueError):
        return ""


def _number(name: str) -> int:
    """Raises ValueError for what is no number of at most six digits."""
    if not name.isascii() or not name.isdecimal() or len(name) > 6:
        raise ValueError(name)
    return int(name)


_KINDS: Final[Mapping[str, Callable[[str], str]]] = {
    "bucket": lambda name: GUIDANCE[Bucket(name)].advice,
    "recovery": lambda name: RECOVERY[name].advice,
    "xid": lambda name: UNKNOWN.advice if name == "unknown" else catalogue.guidance(_number(name)).advice,
    "sxid": lambda name: catalogue.switch_guidance(_number(name)).advice,
    "check": lambda name: CHECKS[f"check/{name}"],
    "config": lambda name: f"{WORDS[Action(name)]}: the config says so for this number",
}
