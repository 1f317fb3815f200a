"""Which container runtimes give containers the CDI devices that an NRI plugin asks for, as rows that can be edited.

Others accept the request and silently drop it, so a plugin must know. The versions are the ones that the
replaced program's documentation names: containerd 1.7.30 and later 1.7, 2.1, 2.2 and later; 2.0 and CRI-O not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

CONTAINERD: Final = "containerd"
CRI_O: Final = "cri-o"

_VERSION: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRange:
    """Versions of one release line (``minor``), or with ``later`` of it and every line after it, from ``patch`` on."""

    minor: tuple[int, int]
    patch: int = 0
    later: bool = False


SUPPORTED: Final[dict[str, tuple[ReleaseRange, ...]]] = {
    CONTAINERD: (ReleaseRange(minor=(1, 7), patch=30), ReleaseRange(minor=(2, 1), later=True)),
}
WANTED: Final = "containerd 1.7.30 or a later 1.7, or 2.1 and later"


def unsupported(runtime: str, version: str) -> str:
    """Why CDI devices can't be given through this runtime's NRI, "" when they can.

    ``version`` is what the runtime says of itself, e.g. ``v2.1.4`` or ``1.7.30~ds1``.
    """
    name = runtime.strip().lower()
    ranges = SUPPORTED.get(name)
    if ranges is None:
        return f"{runtime[:60] or 'a runtime without a name'} does not give containers the CDI devices of NRI plugins"
    match = _VERSION.match(version.strip())
    if match is None:
        return f'{name} says that its version is "{version[:60]}", which is no version'
    major, minor, patch = (int(part or 0) for part in match.groups())
    for release in ranges:
        line = (major, minor)
        if (line == release.minor and patch >= release.patch) or (release.later and line > release.minor):
            return ""
    return f"{name} {major}.{minor}.{patch} drops the CDI devices of NRI plugins without a word"
