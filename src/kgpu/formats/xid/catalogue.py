"""The catalogue of Xids and SXids: what each number means, what NVIDIA says to do, and what kgpu advises.

The numbers, mnemonics, products and buckets are those of NVIDIA's Xid catalogue and Fabric Manager guide; the texts are
kgpu's own. Rows are in ``xid_rows.py`` and ``sxid_rows.py``. A number that is not in the catalogue has no row: it is
shown as it is, and a person should look.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from kgpu.formats.xid import sxid_rows, xid_rows
from kgpu.formats.xid.buckets import GUIDANCE, UNKNOWN, Bucket, Guidance
from kgpu.formats.xid.rows import Sxid, XidRow

LAST_XID: Final = 172


@cache
def xids() -> Mapping[int, XidRow]:
    """Every Xid of the catalogue by its number, in order."""
    return {row.code: row for row in xid_rows.ROWS}


@cache
def sxids() -> Mapping[int, Sxid]:
    """Every NVSwitch SXid of the guide by its number, in order."""
    return {row.code: row for row in sorted(sxid_rows.rows(), key=lambda row: row.code)}


def guidance(code: int) -> Guidance:
    """What an Xid alone calls for. A row may know better than its bucket; an unknown number is for a person."""
    row = xids().get(code)
    if row is None:
        return UNKNOWN
    usual = GUIDANCE[row.immediate]
    advice, key = (row.advice, f"xid/{code}") if row.advice else (usual.advice, usual.key)
    return Guidance(row.action or usual.action, row.severity or usual.severity, advice, key)


def switch_guidance(code: int, *, fatal: bool | None = None) -> Guidance:
    """What an SXid calls for. ``fatal`` is the log's own word, which decides about numbers that have no row."""
    row = sxids().get(code)
    if row is not None:
        usual = GUIDANCE[row.bucket]
        advice, key = (row.advice, f"sxid/{code}") if row.advice else (usual.advice, usual.key)
        return Guidance(row.action or usual.action, usual.severity, advice, key)
    if fatal:
        return GUIDANCE[Bucket.RESET_GPU]
    if fatal is False:
        return GUIDANCE[Bucket.IGNORE]
    return GUIDANCE[Bucket.CONTACT_SUPPORT]


def short_name(code: int) -> str:
    """The meaning for a line of text; never empty."""
    row = xids().get(code)
    return row.what if row else "not in the catalogue"


def reports_recovery(code: int, driver: int | None) -> bool:
    """True when a driver of this major version follows this Xid with its own verdict (Xid 154).

    None for a version that is not known: then nothing is concluded from the driver's silence.
    """
    row = xids().get(code)
    return row is not None and bool(row.linked) and driver is not None and driver >= row.linked
