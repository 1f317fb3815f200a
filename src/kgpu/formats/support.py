"""Which versions go together: the documents' support matrix as rows, for the operator and for the doctor.

Sources: the GPU operator's platform support page for 26.3 and 26.7 (Kubernetes, containerd, CRI-O, NRI), Kubernetes'
feature gates (CDI devices of device plugins), NVIDIA's release notes (MIG with some drivers of the 570 series) and
CUDA's table of driver branches. A version that can't be read is within.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

Version: TypeAlias = tuple[int, ...]

_NUMBER: Final = re.compile(r"[^0-9]*([0-9]+(?:\.[0-9]+)*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Range:
    """Versions from ``low`` to ``high``, both included; ``high`` counts with all that begins with it."""

    low: Version
    high: Version

    def has(self, version: Version) -> bool:
        return self.low <= version and version[: len(self.high)] <= self.high

    def __str__(self) -> str:
        return f"{dotted(self.low)} to {dotted(self.high)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Supported:
    """One row: a thing, the versions of it that are supported, and what to do outside of them."""

    what: str
    ranges: tuple[Range, ...]
    remedy: str
    said: str = ""
    """The ranges in words, where their numbers are not how people write them."""

    def has(self, version: Version) -> bool:
        """Whether it is within, or unknown."""
        return not version or any(versions.has(version) for versions in self.ranges)

    @property
    def listed(self) -> str:
        """The ranges alone, for people."""
        return self.said or " and ".join(map(str, self.ranges))

    @property
    def words(self) -> str:
        """What is supported, for people."""
        listed = self.listed
        return f"supported is {listed}" if listed else "no version is supported"

    @property
    def lowest(self) -> str:
        """Where only the beginning matters."""
        return f"supported from {dotted(self.ranges[0].low)}"


KUBERNETES: Final = Supported(
    what="Kubernetes", ranges=(Range((1, 32), (1, 36)),), remedy="bring the cluster to a supported version"
)
RUNTIMES: Final = {
    "containerd": Supported(
        what="containerd", ranges=(Range((1, 7), (2, 2)),), remedy="bring containerd to a supported version"
    ),
    "cri-o": Supported(
        what="CRI-O", ranges=(Range((1, 32), (1, 36)),), remedy="use the CRI-O of the kubelet's version"
    ),
}
NRI: Final = {
    "containerd": Supported(
        what="containerd with the NRI plugin",
        ranges=(Range((1, 7, 30), (1, 7)), Range((2, 1), (2, 2))),
        remedy="upgrade containerd, or set cdi.nriPluginEnabled: false",
    ),
    "cri-o": Supported(
        what="CRI-O with the NRI plugin", ranges=(), remedy="set cdi.nriPluginEnabled: false: CRI-O is not supported"
    ),
    "docker": Supported(
        what="Docker with the NRI plugin", ranges=(), remedy="set cdi.nriPluginEnabled: false: Docker has no NRI"
    ),
}
CDI_DEVICES: Final = Supported(
    what="the kubelet, for CDI devices of device plugins",
    ranges=(Range((1, 29), (9,)),),
    remedy="upgrade the kubelet, or set cdi.enabled: false",
)
CDI_RUNTIMES: Final = {"containerd": (1, 7), "cri-o": (1, 23)}
"""The first release of each engine that gives pods CDI devices (README of the Container Device Interface)."""
# Systems for which driver containers exist; versions as far as the image names have them.
DRIVER_SYSTEMS: Final = {
    "ubuntu": Supported(
        what="a driver container for Ubuntu",
        ranges=(Range((22, 4), (22, 4)), Range((24, 4), (24, 4)), Range((26, 4), (26, 4))),
        said="22.04, 24.04 and 26.04",
        remedy="use a supported release, or install the driver on the node and set driver.enabled: false",
    ),
    "rhel": Supported(
        what="a driver container for Red Hat Enterprise Linux",
        ranges=(Range((8,), (10,)),),
        remedy="use a supported release, or install the driver on the node and set driver.enabled: false",
    ),
    "rocky": Supported(
        what="a driver container for Rocky Linux",
        ranges=(Range((9,), (10,)),),
        remedy="use a supported release, or install the driver on the node and set driver.enabled: false",
    ),
}
NO_DRIVER_SYSTEMS: Final = frozenset({"talos", "bottlerocket", "flatcar", "amzn", "fedora", "cos"})
"""Systems that bring their driver themselves: no driver container is published for them."""

MIG_BROKEN_DRIVERS: Final = frozenset({"570.124.06", "570.133.20", "570.148.08", "570.158.01"})
MIG_FIXED_DRIVER: Final = "580.65.06"

# The newest CUDA that programs may use with the drivers of a branch, newest branch first.
CUDA_BY_BRANCH: Final = (
    (595, "13.2"),
    (590, "13.1"),
    (580, "13.0"),
    (575, "12.9"),
    (570, "12.8"),
    (565, "12.7"),
    (560, "12.6"),
    (555, "12.5"),
    (550, "12.4"),
    (545, "12.3"),
    (535, "12.2"),
    (530, "12.1"),
    (525, "12.0"),
    (515, "11.7"),
    (510, "11.6"),
    (470, "11.4"),
)
OLDEST_BRANCH: Final = 535
"""Older branches get no fixes any more."""


def cuda_of(driver: str) -> str:
    """The newest CUDA of a driver's branch, "" when it is not known: ``580.65.06`` gives ``13.0``."""
    branch = parse(driver)[:1]
    return next((cuda for low, cuda in CUDA_BY_BRANCH if branch and branch[0] >= low), "")


def parse(version: str) -> Version:
    """The leading numbers of a version such as ``v1.35.2+k3s1``; () when there are none."""
    match = _NUMBER.match(version[:100])
    return tuple(int(part) for part in match[1].split(".")[:6]) if match else ()


def dotted(version: Version) -> str:
    """As people write it."""
    return ".".join(map(str, version))
