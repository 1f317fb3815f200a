"""What the two words of an NVLink 5 error (Xid 144 to 150) mean: the rows of NVIDIA's decoding table.

``units`` are the names that the line may carry: before driver 575, and from it on. ``reason`` is bits 25:20 of the
first word, ``status`` the second word; None where it does not matter. ``immediate`` is the bucket, ``raised`` the one
that counts instead when the first word says that the error was raised to fatal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kgpu.formats.xid.buckets import Bucket as Do


class Nvlink5Row(NamedTuple):
    """One row."""

    xid: int
    units: tuple[str, ...]
    reason: int | None
    status: int | None
    immediate: Do
    investigate: Do
    raised: Do | None = None


_I, _R, _E = Do.IGNORE, Do.RESET_GPU, Do.XID_154_EVAL
_S, _F = Do.CONTACT_SUPPORT, Do.CHECK_NVLINK_FAILURE_FLOW
_ANY: Final = (0x80000000, _I, _S)  # an error of software that no other bit describes

# xid, units, and per status word: immediate and investigatory bucket
_UNITS: Final = (
    (144, ("SAW_MVB",), ((0x1, _I, _S), (0x2, _R, _S), (0x4, _I, _I), (0x8, _I, _S), (0x10, _R, _S), (0x20, _I, _I))),
    (145, ("RLW_CTRL",), (_ANY,)),
    (145, ("RLW_REMAP",), (
        (0x1, _E, _S), (0x2, _E, _S), (0x4, _E, _F), (0x8, _E, _F), (0x10, _E, _F), (0x20, _E, _F), (0x40, _R, _S),
        (0x80, _R, _S), (0x100, _I, _I), (0x200, _I, _I), _ANY,
    )),
    (145, ("RLW_RSPCOL",), ((0x1, _I, _I), (0x2, _R, _S), _ANY)),
    (145, ("RLW_RXPIPE",), ((0x8, _I, _S), _ANY)),
    (145, ("RLW_SRC_TRACK",), (
        (0x1, _R, _S), (0x2, _I, _I), (0x4, _E, _I), (0x8, _E, _I), (0x10, _R, _S), (0x20, _R, _S), _ANY,
    )),
    (145, ("RLW_TAGSTATE",), (
        (0x1, _I, _I), (0x2, _R, _S), (0x10000, _I, _I), (0x20000, _R, _S), (0x100000, _R, _S), _ANY,
    )),
    (146, ("TLW_CTRL",), ((0x1, _I, _I), (0x2, _I, _S), (0x4, _R, _S), _ANY)),
    (146, ("TLW_RX", "TLW_RX_PIPE0"), ((0x1, _I, _I), (0x2, _I, _S), (0x4, _R, _S), _ANY)),
    (146, ("TLW_RX", "TLW_RX_PIPE1"), ((0x1, _I, _I), (0x2, _I, _S), (0x4, _R, _S), _ANY)),
    (146, ("TLW_TX", "TLW_TX_PIPE0"), ((0x1, _I, _I), (0x2, _I, _S), (0x4, _R, _S), _ANY)),
    (146, ("TLW_TX", "TLW_TX_PIPE1"), ((0x1, _I, _I), (0x2, _I, _S), (0x4, _R, _S), _ANY)),
    (147, ("TREX",), ((0x1, _I, _S), _ANY)),
    (148, ("NVLPW_CTRL", "NVLPW"), (_ANY,)),
    (150, ("MSE", "MSE_WATCHDOG"), ((0x0, _R, _S), (0xFFFFFFFF, _R, _S))),
)  # fmt: skip
_RAISED: Final = (145, ("RLW_RXPIPE",), (0x1, 0x2, 0x4))

# Why a link went down: bits 25:20 of the first word
_LINK_DOWN: Final = (
    (Do.SYMPATHETIC, (0,)),
    (Do.REPORT_ISSUE, (1,)),
    (Do.INVESTIGATE_LINK_SI, (2, 4, 10)),
    (Do.INVESTIGATE_SW_USER, (15, 17, 22)),
    (Do.INVESTIGATE_SW_USER_LINK_SI, (16, 18)),
    (Do.INVESTIGATE_PEER_DEVICE, (21, 32, 33, 34, 35, 36, 37)),
    (Do.INVESTIGATE_LINK_SI_AND_CABLES, (42, 43)),
)
_LINK_DOWN_HARMLESS: Final = ((Do.INVESTIGATE_SW_USER, 38), (Do.INVESTIGATE_HOST, 40))
_LINK: Final = ("NETIR_LINK_EVT", "NETIR_LINK_DOWN")
_FIRMWARE_FATAL: Final = (1, 4, 5, 7)
MASKS: Final = frozenset(range(144, 149))
"""The Xids whose status word is a set of bits; that of the others is one number."""


def rules() -> Iterator[Nvlink5Row]:
    """Every row."""
    for xid, units, statuses in _UNITS:
        for status, immediate, investigate in statuses:
            yield Nvlink5Row(xid, units, 0, status, immediate, investigate)
    xid, units, promoted = _RAISED
    for status in promoted:
        yield Nvlink5Row(xid, units, 0, status, _I, _S, _R)
    yield Nvlink5Row(149, ("NETIR", "NETIR_INT"), 0, None, _R, Do.SYMPATHETIC)
    for investigate, reasons in _LINK_DOWN:
        for reason in reasons:
            yield Nvlink5Row(149, _LINK, reason, None, _R, investigate)
    for investigate, reason in _LINK_DOWN_HARMLESS:
        yield Nvlink5Row(149, _LINK, reason, None, _I, investigate)
    for status in range(4):
        yield Nvlink5Row(149, ("NETIR_BER_EVENT",), 0, status, _I, Do.INVESTIGATE_LINK_SI_AND_CABLES)
    for status in _FIRMWARE_FATAL:
        yield Nvlink5Row(149, ("NETIR_MFDE_EVENT",), 0, status, _R, _S)
    yield Nvlink5Row(149, ("NETIR_MFDE_EVENT",), 0, 3, _I, _I)
