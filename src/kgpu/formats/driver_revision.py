"""Which driver a driver's pod installs, and whether that is the one that its DaemonSet's template asks for now.

The digest ``DRIVER_CONFIG_DIGEST`` changes exactly when a driver has to be installed anew, by the rules of the program
that works it out: an annotation of the pod names kgpu's rules. A pod without it, or of other rules (NVIDIA's operator,
another kgpu), is compared by its driver's image alone, so that a change of the program leaves each node as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.plain import items, mapping, strings, text
from kgpu.base.printable import one_line
from kgpu.formats import names

# NVIDIA's tags: 580.95.05, 580.95.05-ubuntu24.04; those of precompiled drivers name a branch: 580-6.8.0-57-generic.
_RELEASE: Final = re.compile(r"(?P<release>[0-9]{3,}(?:\.[0-9]+){0,2})(?:-|$)", re.ASCII)
MAX_DIGEST: Final = 63
MAX_IMAGE: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRevision:
    """What a pod or a DaemonSet's template has. ``rules`` are those of its digest, "" if it names none; ``image`` is
    that of the driver's container.
    """

    digest: str = ""
    rules: str = ""
    image: str = ""

    def runs(self, digest: str, image: str) -> bool:
        """Whether this is the driver that kgpu wants, by its digest and its driver's image."""
        return self.is_same(DriverRevision(digest=digest, rules=names.THIS_DRIVER_DIGEST_VERSION, image=image))

    def is_same(self, other: DriverRevision) -> bool:
        """Whether both are the same driver: by their digests where both are made by kgpu's rules, else by the image."""
        if self.digest and self.rules == other.rules == names.THIS_DRIVER_DIGEST_VERSION:
            return self.digest == other.digest
        return bool(self.image) and self.image == other.image


def release_of(image: str) -> str:
    """The release in a driver image's tag, "" without one."""
    match = _RELEASE.match(image.rpartition("/")[2].partition("@")[0].partition(":")[2])
    return match["release"] if match else ""


def is_of_release(loaded: str, release: str) -> bool:
    """Whether the loaded driver is of a release, or of a branch such as 580."""
    parts = release.split(".")
    return loaded.split(".")[: len(parts)] == parts


def revision_of(pod: Mapping[str, Any]) -> DriverRevision:
    """Read a Pod, or the template of one. What is malformed counts as not there."""
    spec = mapping(pod.get("spec"))
    annotations = strings(mapping(pod.get("metadata")).get("annotations"))
    containers = {
        text(row.get("name")): row
        for row in map(mapping, (*items(spec.get("initContainers")), *items(spec.get("containers"))))
    }
    driver = containers.get(names.DRIVER_CONTAINER, {})
    manager = containers.get(names.DRIVER_MANAGER_CONTAINER, {})
    return DriverRevision(
        digest=one_line(_digest((driver, manager)), MAX_DIGEST),
        rules=one_line(annotations.get(names.DRIVER_DIGEST_VERSION, ""), MAX_DIGEST),
        image=one_line(text(driver.get("image")), MAX_IMAGE),
    )


def _digest(containers: Iterable[Mapping[str, Any]]) -> str:
    for container in containers:
        for row in map(mapping, items(container.get("env"))):
            if row.get("name") == names.ENV_DRIVER_CONFIG_DIGEST and text(row.get("value")):
                return text(row.get("value"))
    return ""
