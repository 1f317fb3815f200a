"""Reads the words that NVLink errors carry: Xid 144 to 150 (NVLink 5) and Xid 74 (before).

Both say more than their number: the same Xid is harmless or asks for a reset. What they do not say, or say in a way
that NVIDIA's tables do not know, falls back on the line's own ``Fatal`` or ``Nonfatal``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from kgpu.formats.xid.buckets import GUIDANCE, Bucket
from kgpu.formats.xid.nvlink5_rows import MASKS, Nvlink5Row, rules

NVLINK5: Final = range(144, 151)
NVLINK4: Final = 74

_LINE5: Final = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]{1,31}) {1,8}(?P<fatal>Nonfatal|Non-fatal|Link Fatal|Fatal) {1,8}XC(?P<xc>[01]) {1,8}"
    r"i(?P<injected>[0-9]{1,3}) {1,8}Link {1,8}(?P<link>-?[0-9]{1,3}) {0,8}\("
    r"(?P<words>0x[0-9a-fA-F]{1,8}(?:[ ,]{1,4}0x[0-9a-fA-F]{1,8}){0,15})\)"
)
_LINE4: Final = re.compile(
    r"\blink {1,4}(?P<link>[0-9]{1,3}) {0,4}\((?P<words>0x[0-9a-fA-F]{1,8}(?:, {0,4}0x[0-9a-fA-F]{1,8}){6})\)"
)
_RAISED_BITS: Final = ((0x7FF, 0x4C2), (0xFF, 0x86))
"""RLW_RXPIPE raised to fatal: mask and value of the first word before driver 575, and from it on."""

# Xid 74: register (from 0), bits, what they mean. What is not here is not expected.
_HARMLESS, _FOLLOWS, _HARD, _SIGNAL, _REPEATED, _LIMIT = (
    "harmless", "follows from another error", "the link's memory is failing", "bad signal on the link",
    "matters only when it comes again", "many corrected errors",
)  # fmt: skip
_REGISTERS4: Final = (
    (0, (0, 23, 30), _HARMLESS), (0, (1, 20), _FOLLOWS), (0, (4, 5), _HARD), (0, (8, 9, 12, 16, 17, 24, 28), _HARD),
    (0, (21, 22), _SIGNAL), (0, (27, 29), _REPEATED),
    (2, (0, 1, 2, 6), _HARD), (2, (16, 17, 18, 19), _REPEATED),
    (3, (16, 17), _FOLLOWS), (3, (18,), _FOLLOWS),
    (4, (18, 19, 21, 22, 24, 25, 27, 28), _HARD), (4, (20, 23, 26, 29), _LIMIT),
)  # fmt: skip
_VALID4: Final = (0, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkLine:
    """What an NVLink line says. ``bucket`` and ``investigate`` are what follows; ``known`` is False for a guess."""

    unit: str
    link: int | None
    fatal: bool | None
    bucket: Bucket
    investigate: Bucket
    what: str
    known: bool = True


def read(code: int, text: str) -> NvlinkLine | None:
    """The meaning of the text of an Xid 74 or 144 to 150; None when it has no such words."""
    if code in NVLINK5:
        hit = _LINE5.search(text)
        return _read5(code, hit) if hit else None
    if code == NVLINK4:
        hit = _LINE4.search(text)
        return _read4(hit) if hit else None
    return None


@cache
def _rules() -> tuple[Nvlink5Row, ...]:
    return tuple(rules())


def _read5(code: int, hit: re.Match[str]) -> NvlinkLine:
    words = [int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", hit["words"])]
    info = words[0]
    status = words[1] if len(words) > 1 else None
    unit, fatal = hit["unit"], hit["fatal"] in {"Fatal", "Link Fatal"}
    link = int(hit["link"]) if not hit["link"].startswith("-") else None
    reason = info >> 20 & 0x3F
    of_unit = [rule for rule in _rules() if rule.xid == code and unit in rule.units and rule.reason in {None, reason}]
    matching = [rule for rule in of_unit if rule.status in {None, status}]
    if not matching and status and code in MASKS:
        # Several bits at once: each means what it means alone, and the strongest decides.
        matching = [rule for rule in of_unit if rule.status and rule.status & status]
    raised = any(info & mask == value for mask, value in _RAISED_BITS)
    if not matching:
        bucket = Bucket.RESET_GPU if fatal else Bucket.XID_154_EVAL
        return NvlinkLine(
            unit=unit, link=link, fatal=fatal, bucket=bucket, investigate=Bucket.CONTACT_SUPPORT, known=False,
            what=f"{unit} {'fatal' if fatal else 'not fatal'}, in words that NVIDIA's table does not have",
        )  # fmt: skip
    strongest = max(matching, key=lambda rule: GUIDANCE[_effective(rule, raised=raised)].action.rank)
    bucket = _effective(strongest, raised=raised)
    where = "" if link is None else f" on link {link}"
    return NvlinkLine(
        unit=unit, link=link, fatal=fatal, bucket=bucket, investigate=strongest.investigate,
        what=f"{unit}{where}, {'fatal' if fatal else 'not fatal'}",
    )  # fmt: skip


def _effective(rule: Nvlink5Row, *, raised: bool) -> Bucket:
    return rule.raised if raised and rule.raised is not None else rule.immediate


def _read4(hit: re.Match[str]) -> NvlinkLine:
    words = [int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", hit["words"])]
    meanings: list[str] = []
    unknown = False
    for register in _VALID4:
        rest = words[register]
        for where, bits, meaning in _REGISTERS4:
            mask = sum(1 << bit for bit in bits)
            if where == register and rest & mask:
                meanings.append(meaning)
                rest &= ~mask
        unknown = unknown or rest != 0
    mild = not unknown and bool(meanings) and set(meanings) <= {_HARMLESS, _LIMIT}
    if unknown:
        meanings.append("bits that are not in NVIDIA's table")
    link = int(hit["link"])
    explanation = "; ".join(dict.fromkeys(meanings)) or "no register says why"
    return NvlinkLine(
        unit="NVLINK", link=link, fatal=not mild, bucket=Bucket.IGNORE if mild else Bucket.WORKFLOW_NVLINK_ERR,
        investigate=Bucket.CONTACT_SUPPORT, what=f"link {link}: {explanation}", known=not unknown,
    )  # fmt: skip
