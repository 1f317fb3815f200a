"""The features ``memory.*`` and ``system.*``, and the made-up ones of ``fake.*``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kgpu.base.quantity import Quantity
from kgpu.discovery.features.host_tree import HostTree, count, files, number, text
from kgpu.discovery.features.model import FeatureSet
from kgpu.formats.os_release import parse_os_release

_OS_RELEASE: Final = ("etc/os-release", "usr/lib/os-release")
_PAGES: Final = re.compile(r"hugepages-(\d{1,12})kB", re.ASCII)
_NUMBERS: Final = re.compile(r"(?P<major>[^.]+)(\.(?P<minor>[^.]+))?")
_DMI: Final = (
    "bios_date", "bios_release", "bios_vendor", "bios_version", "board_asset_tag", "board_name", "board_vendor",
    "board_version", "chassis_asset_tag", "chassis_type", "chassis_vendor", "chassis_version", "product_family",
    "product_name", "product_sku", "product_version", "sys_vendor",
)  # fmt: skip
FAKE_FLAGS: Final = ("flag_1", "flag_2", "flag_3")
FAKE_ATTRIBUTES: Final = {"attr_1": "true", "attr_2": "false", "attr_3": "10"}
FAKE_INSTANCES: Final = (
    {"name": "instance_1", "attr_1": "true", "attr_2": "false", "attr_3": "10", "attr_4": "foobar"},
    {"name": "instance_2", "attr_1": "true", "attr_2": "true", "attr_3": "100"},
    {"name": "instance_3"},
)


def memory_features(host: HostTree) -> FeatureSet:
    """NUMA, swap, huge pages, and memory that keeps its content."""
    nodes = count(host.text("sys/devices/system/node/online"))
    swaps = host.proc_text("swaps").splitlines()
    attributes: Mapping[str, Mapping[str, str]] = {
        "memory.numa": {"is_numa": "true" if nodes > 1 else "false", "node_count": str(nodes)} if nodes else {},
        "memory.swap": {"enabled": "true" if len(swaps) > 1 else "false"} if swaps else {},
        "memory.hugepages": dict(_huge_pages(host)),
    }
    kept = tuple(
        {"name": one.name, **dict(files(one, ("devtype", "mode")))} for one in host.folders("sys/bus/nd/devices")
    )
    return FeatureSet(
        attributes={name: values for name, values in attributes.items() if values},
        instances={"memory.nv": tuple(one for one in kept if "devtype" in one)} if kept else {},
    )


def _huge_pages(host: HostTree) -> Iterator[tuple[str, str]]:
    any_pages = False
    for folder in host.folders("sys/kernel/mm/hugepages"):
        size = _PAGES.fullmatch(folder.name)
        pages = number(text(folder / "nr_hugepages"))
        if size is None or not pages:
            continue
        any_pages = True
        kib = int(size[1])
        yield f"hugepages-{Quantity.parse(f'{kib}Ki')}", str(Quantity.parse(f"{kib * pages}Ki"))
    if any_pages:
        yield "enabled", "true"


def system_features(host: HostTree, node_name: str = "") -> FeatureSet:
    """The operating system, the node's name and the machine."""
    release = next((parse_os_release(found) for name in _OS_RELEASE if (found := host.text_inside(name))), {})
    version = _NUMBERS.match(release.get("VERSION_ID", ""))
    parts = {f"VERSION_ID.{key}": found for key, found in version.groupdict().items() if found} if version else {}
    attributes: Mapping[str, Mapping[str, str]] = {
        "system.osrelease": {**release, **parts},
        "system.name": {"nodename": node_name} if node_name else {},
        "system.dmiid": dict(files(host.root / "sys/class/dmi/id", _DMI)),
    }
    return FeatureSet(attributes={name: values for name, values in attributes.items() if values})


def fake_features() -> FeatureSet:
    """Made-up features to try rules with, as node feature discovery's source ``fake`` has them."""
    return FeatureSet(
        flags={"fake.flag": frozenset(FAKE_FLAGS)},
        attributes={"fake.attribute": FAKE_ATTRIBUTES},
        instances={"fake.instance": FAKE_INSTANCES},
    )
