"""The GPU operator's releases that people replace: until when each is supported, and what it brought.

Sources: the GPU operator's life cycle and component pages as of the documents (26.3 current, 25.10 deprecated, older
ones without support). A release that is not listed is newer than these rows or none: nothing is said of it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.formats.support import Version, parse


class Support(enum.StrEnum):
    """What NVIDIA does for a release."""

    FULL = "supported"
    DEPRECATED = "deprecated"
    ENDED = "past the end of its support"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A line of releases up to and with ``line``. ``components`` are the versions that its newest rows name."""

    line: Version
    support: Support
    components: Mapping[str, str] = field(default_factory=dict)


# The oldest line first: the first row whose line is not older than a version is the version's.
RELEASES: Final = (
    Release(line=(25, 3), support=Support.ENDED),
    Release(line=(25, 10), support=Support.DEPRECATED),
    Release(line=(26, 3), support=Support.FULL, components={"toolkit": "v1.19.0", "devicePlugin": "v0.19.0"}),
    Release(
        line=(26, 7),
        support=Support.FULL,
        components={"driver": "595.91.07", "toolkit": "v1.20.0", "devicePlugin": "v0.20.0"},
    ),
)


def release_of(version: str) -> Release | None:
    """The row of a release such as ``v24.9.0``; None for what is no version or newer than all rows."""
    numbers = parse(version)[:2]
    return next((row for row in RELEASES if numbers and numbers <= row.line), None)


def told(version: str) -> str:
    """``release v24.9.0, which is past the end of its support``; "" when there is nothing to say."""
    row = release_of(version)
    if row is None or not version:
        return ""
    return f"release {version[:40]}, which is {row.support}"
