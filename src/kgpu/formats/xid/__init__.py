"""Xids and SXids: what each number means, and what it calls for."""

from __future__ import annotations

from typing import Final

_MAX_DIGITS: Final = 9


def xid_of(fact: str) -> int | None:
    """The number in a name of health's evidence: ``xid:79``, of an instance ``xid:13@2`` or ``xid:13@2.0``; None for
    evidence of another kind.
    """
    source, _, key = fact.partition(":")
    code = key.partition("@")[0]
    if source != "xid" or not code.isdecimal() or not code.isascii() or len(code) > _MAX_DIGITS:
        return None
    return int(code)
