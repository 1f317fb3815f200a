"""SXids of NVSwitches: rows of the Fabric Manager guide's error tables (see catalogue.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.formats.xid.action import Action
from kgpu.formats.xid.buckets import Bucket
from kgpu.formats.xid.rows import Sxid

PORT: Final = "an error on one port of the switch: the link, or the GPU at its other end, which may report Xid 74"
SWITCH: Final = "the switch itself: no port of it can be trusted"
SINGLE: Final = "one bit was wrong, and the switch has corrected it"
DOUBLE: Final = "bits were wrong in a way that the switch can't correct"
HEAT: Final = "the switch is too hot: cooling of the machine"

ALWAYS_FATAL: Final = {
    12020: "egress sequence ID", 22003: "link controller (Minion) halt", 22011: "link controller (Minion), external",
    23001: "ingress SRC-VC buffer overflow", 23002: "ingress SRC-VC buffer underflow",
    23003: "egress DST-VC credit overflow", 23004: "egress DST-VC credit underflow", 23005: "ingress packet burst",
    23006: "ingress packet sticky", 23007: "possible bubbles at ingress", 23008: "ingress packet, invalid destination",
    23009: "ingress packet parity", 23010: "ingress SRC-VC buffer overflow", 23011: "ingress SRC-VC buffer underflow",
    23012: "egress DST-VC credit overflow", 23013: "egress DST-VC credit underflow", 23014: "ingress packet burst",
    23015: "ingress packet sticky", 23016: "possible bubbles at ingress", 23017: "ingress credit parity",
}  # fmt: skip
FATAL: Final = {
    11001: "ingress invalid command", 11009: "ingress invalid VC set", 11013: "ingress header, double bit",
    11018: "ingress routing table, double bit", 11019: "ingress LAN table, double bit", 11020: "ingress control parity",
    12001: "egress crossbar overflow", 12002: "egress packet route", 12022: "egress input, double bit",
    12024: "egress output, double bit", 12025: "egress credit overflow", 12026: "egress destination request ID",
    12027: "egress destination response ID", 12030: "egress control parity", 12031: "egress credit parity",
    12032: "egress flit type mismatch", 14017: "tag store timeout", 15001: "route buffer over- or underflow",
    15006: "route transdone over- or underflow", 15009: "route table, double bit", 15010: "route parity",
    15012: "route incoming, double bit", 15013: "route credit parity", 19047: "fabric header, double bit",
    19048: "fabric data, double bit", 19054: "header memory, double bit", 19056: "data memory 0, double bit",
    19058: "data memory 1, double bit", 19060: "request memory header, double bit",
    19061: "request memory data, double bit", 19063: "response memory header, double bit",
    19064: "response memory data, double bit", 19066: "common memory header, double bit",
    19067: "common memory data, double bit", 19069: "response memory 1 header, double bit",
    19070: "response memory 1 data, double bit", 20034: "link fault (LTSSM fault up)",
    22012: "link controller (Minion) link not active", 24004: "source track, double bit",
    24005: "source track data, double bit", 24006: "source track 1, double bit", 24007: "source track timeout",
}  # fmt: skip
CORRECTED: Final = (
    11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071,
    24001, 24002, 24003,
)  # fmt: skip
OTHERS: Final = (
    Sxid(10001, "switch register error", "non-fatal", Bucket.IGNORE, "often followed by the fatal one that matters"),
    Sxid(10002, "switch register timeout", "non-fatal", Bucket.IGNORE, "often followed by the fatal one that matters"),
    Sxid(10003, "interrupt that nobody handles", "always-fatal", Bucket.RESET_FABRIC, SWITCH),
    Sxid(10004, "too hot: begins", "non-fatal", Bucket.CHECK_MECHANICALS, HEAT,
         advice="have the machine's cooling checked; links of this switch may run at a fraction of their speed"),
    Sxid(10005, "too hot: over", "non-fatal", Bucket.IGNORE, HEAT),
    Sxid(11004, "ingress, not allowed by the partition", "non-fatal", Bucket.RESTART_VM,
         "partitions of the fabric manager are set up wrongly; the GPU's NVLink traffic hangs", Action.REBOOT,
         "correct the fabric manager's partitions, then restart the virtual machine, or the node"),
    Sxid(12028, "egress, access that is not allowed", "non-fatal", Bucket.RESTART_VM,
         "the GPU's NVLink traffic hangs, its programs end with Xid 45", Action.REBOOT,
         "drain the node and restart the virtual machine, or the node"),
    Sxid(19084, "link heartbeat timeout", "non-fatal", Bucket.RESET_FABRIC, PORT),
    Sxid(20001, "packets were sent again", "non-fatal", Bucket.IGNORE, "the link is a little slower while it lasts"),
    Sxid(20009, "short error rate", "non-fatal", Bucket.IGNORE, "the link's signal is not good; it is corrected"),
    Sxid(20012, "broken or inconsistent connection", "non-fatal", Bucket.CHECK_MECHANICALS,
         "the link was torn down without notice, or its connection is loose"),
    Sxid(22013, "request of the link controller", "non-fatal", Bucket.IGNORE, "nothing is wrong"),
)  # fmt: skip


def rows() -> Iterator[Sxid]:
    """Every row, in no particular order."""
    for code, what in ALWAYS_FATAL.items():
        yield Sxid(code, what, "always-fatal", Bucket.RESET_FABRIC, SWITCH)
    for code, what in FATAL.items():
        yield Sxid(code, what, "fatal", Bucket.RESET_GPU, DOUBLE if "double bit" in what else PORT)
    for code in CORRECTED:
        yield Sxid(code, "single-bit error, corrected", "non-fatal", Bucket.IGNORE, SINGLE)
    yield from OTHERS
