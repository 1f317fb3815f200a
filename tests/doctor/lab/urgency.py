"""How urgent each breakage is, written down here and not asked of the doctor: of two, the one further up is told first.

First comes what needs somebody, and of that what is proven before what is likely: a proven cause can be mended at once.
Among equals comes what is of a node or of the GPU stack, which hurts everybody's work, before what is of one piece of
work; then what is lost furthest down: hardware, kernel driver, driver's user space, runtime, plugin, cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.doctor.lab.breaking import Break

PROVEN: Final = (
    # Of nodes and of the stack.
    "AMD-10 HW-00 HW-01 HW-02 HW-04 HW-06 HW-07 HW-12 HW-14 KRN-10",
    "AMD-01 DRV-01 DRV-04 GAU-01 INT-04 KRN-04 KRN-05 KRN-07 KRN-11",
    "DRV-06 DRV-10 DRV-19 DRV-27 MIG-08 MIG-09",
    "RUN-06 RUN-07 RUN-08 RUN-15",
    """ASC-03 DPL-01 DPL-16 DPL-17 DPL-19 DPL-20 MIG-06 MIG-07 MPS-05 MPS-07 MPS-12 NODE-00 TNT-04 TNT-12
    TNT-14 TS-02 TS-13""",
    "AMD-12 MET-01 MET-02 MIG-01 OPR-02 OPR-03 OPR-08 OPR-21 OPR-23 QTA-05 QTA-07 QTA-09 SCH-16",
    # Of one piece of work.
    "DRV-15",
    "RUN-02",
    "DRA-07 INT-01 NET-12",
    """DRA-01 DRA-02 DRA-03 DRA-04 DRA-06 DRA-18 DRA-22 IMG-05 IMG-06 IMG-07 QTA-04 QTA-08 QTA-10
    SCH-00 SCH-04 SCH-05 SCH-06 SCH-07 SCH-08 SCH-09 SCH-11 SCH-12 SCH-13 SCH-22 SCH-23 TNT-01 TNT-02
    TOP-01 TS-05""",
)
LIKELY: Final = (
    # Of nodes and of the stack.
    "DRV-02 DRV-24 KRN-01 KRN-02",
    "MIG-02",
    "DPL-02",
    "DPL-04 MPS-01 TNT-09 TNT-10 TNT-16 TS-01 TS-04",
    "AMD-09 AMD-16 MET-08",
    # Of one piece of work.
    "DRV-11 DRV-16 GAU-03 GAU-04",
    # What is left of these is an Event of the pod's own namespace, or what its program printed: RUN-24 RUN-29, NET-01
    # NET-02 QTA-01 QTA-02 SCH-19.
    "AMD-17 NET-05 RUN-01 RUN-18 RUN-23 RUN-24 RUN-29",
    "ASC-02 IMG-03 NET-01 NET-02 NET-07 NET-11 NET-13 QTA-01 QTA-02 SCH-14 SCH-15 SCH-18 SCH-19 TS-06 TS-14",
)
POSSIBLE: Final = ("OBJ-00", "POD-00")
NOTES: Final = ("TS-03", "MET-10", "SCH-01", "HW-08", "MET-23", "TS-07")
"""What hurts nobody now, or not yet."""
_SURE: Final = (*("certain" for _ in PROVEN), *("likely" for _ in LIKELY), *("possible" for _ in POSSIBLE))
ROWS: Final = tuple(frozenset(row.split()) for row in (*PROVEN, *LIKELY, *POSSIBLE, *NOTES))
_OTHERWISE: Final = {"a tag without the patch version": "IMG-03"}
"""What is less sure than the other breakages of its rule: the rule in whose row it is."""


def urgency(broken: Break) -> int:
    """The breakage's row: the smaller the sooner; the same for two of which neither is the more urgent."""
    rule = _OTHERWISE.get(broken.what, broken.first)
    return next(number for number, row in enumerate(ROWS) if rule in row)


def sureness(broken: Break) -> str:
    """How sure the doctor is to be of it; "" for a note."""
    return dict(enumerate(_SURE)).get(urgency(broken), "")
