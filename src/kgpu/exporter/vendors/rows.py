"""One metric of a vendor's own exporter as data: name, reading, factor, who has it, help.

The order of a table is that of the output. A ``{}`` in a reading's key stands for a place, which becomes the label
``index``; with ``Of.PART`` the first one is the partition's number.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class Of(enum.StrEnum):
    """What has the metric: CARD rows are of physical sensors, and on a parted GPU the first partition has them; WHOLE
    rows say nothing on a parted GPU; PART rows are each partition's.
    """

    CARD = "GPU"
    WHOLE = "GPU that is not parted"
    PART = "partition"


@dataclass(frozen=True, slots=True)
class VendorRow:
    """One metric, or one kind of its series. ``less`` is a reading that is taken away, ``part_of`` one whose change
    since the reading before is the whole of a percentage.
    """

    name: str
    key: str
    help: str
    unit: str = ""
    factor: float = 1.0
    of: Of = Of.CARD
    index: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    less: str = ""
    part_of: str = ""

    @property
    def field(self) -> str:
        """Its name in the configuration."""
        return self.name.upper()


PLACES: Final = 64
"""More values than any list has."""
