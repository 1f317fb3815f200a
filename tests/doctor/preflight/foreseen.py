"""What a preflight foresees, as a table: how each node is made unfit, and what then becomes of its driver's pod.

``FORESEEN`` are nodes whose driver's pod fails, ``MADE`` the failures that are no such pod's, each with the test that makes it,
``ELSEWHERE`` what no failure is predicted of. Together they have every check of a preflight.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kgpu.formats.names import NFD_KERNEL_FULL, NFD_OS_ID, NFD_OS_VERSION

KERNEL: Final = platform.release()
UBUNTU: Final = {NFD_OS_ID: "ubuntu", NFD_OS_VERSION: "24.04"}
OWN_KERNEL: Final = "6.8.0-7-mycompany"
DRIVER, MANAGER = "nvidia-driver-ctr", "k8s-driver-manager"
NOT_FOUND: Final = "not found"
PULL: Final = "Back-off pulling image"


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def fit(root: Path) -> None:
    """The lists of its packages have the headers, as on every node here that is not said to lack them."""
    write(root / "proc/modules", "ext4 929792 1 - Live 0x0000000000000000\n")
    write(root / "var/lib/apt/lists/archive_Packages", f"Package: linux-headers-{KERNEL}\n")


def no_headers(root: Path) -> None:
    write(root / "var/lib/apt/lists/archive_Packages", "Package: linux-headers-6.8.0-31-generic\n")


def nouveau(root: Path) -> None:
    write(root / "proc/modules", "nouveau 2772992 4 - Live 0x0000000000000000\n")
    write(root / "sys/module/nouveau/refcnt", "4\n")


def idle_nouveau(root: Path) -> None:
    write(root / "proc/modules", "nouveau 2772992 0 - Live 0x0000000000000000\n")
    write(root / "sys/module/nouveau/refcnt", "0\n")


def secure_boot(root: Path) -> None:
    write(root / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\x06\0\0\0\1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """A node that gets a driver. ``break_it`` is done to its machine, ``driver`` is its NVIDIADriver's spec.

    ``rule`` is the id that is predicted and found afterwards, "" for none; then the driver is loaded. Otherwise
    ``container`` of its driver's pod does not get on, ``words`` are said of it, by its log or by the kubelet, and the
    kubelet tells ``event``.
    """

    name: str
    rule: str = ""
    check: str = "nouveau"
    break_it: Callable[[Path], None] = fit
    profile: str = "l4"
    driver: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    container: str = DRIVER
    words: str = ""
    event: str = "Back-off restarting failed container"

    @property
    def node(self) -> str:
        return f"{self.name}-1"


FORESEEN: Final = (
    Foreseen(name="fit"),
    Foreseen(name="idle", break_it=idle_nouveau),
    Foreseen(
        name="signed", check="Secure Boot", break_it=secure_boot, driver={"version": "580", "usePrecompiled": True},
        labels={NFD_KERNEL_FULL: "6.8.0-45-generic"},
    ),
    Foreseen(
        name="headless", rule="KRN-01", check="kernel headers", break_it=no_headers,
        words="Could not resolve Linux kernel version",
    ),
    Foreseen(
        name="nouveau", rule="KRN-03", break_it=nouveau, container=MANAGER,
        words="nouveau has the GPUs and can't be unloaded",
    ),
    Foreseen(
        name="secured", rule="KRN-04", check="Secure Boot", break_it=secure_boot, words="Key was rejected by service",
    ),
    Foreseen(
        name="aged", rule="KRN-09", check="GPUs of the driver", profile="dgx-1-v100", driver={"version": "595.91.07"},
        words="could not insert 'nvidia': No such device",
    ),
    Foreseen(
        name="young", rule="KRN-09", check="GPUs of the driver", profile="hgx-b200", driver={"version": "550.54.15"},
        words="could not insert 'nvidia': No such device",
    ),
    Foreseen(
        name="opened", rule="KRN-07", check="GPUs of the driver", profile="dgx-1-v100",
        driver={"kernelModuleType": "open"}, words="could not insert 'nvidia': No such device",
    ),
    Foreseen(
        name="closed", rule="KRN-08", check="GPUs of the driver", profile="hgx-b200",
        driver={"kernelModuleType": "proprietary"}, words="could not insert 'nvidia': No such device",
    ),
    Foreseen(
        name="mistyped", rule="IMG-07", check="driver image", driver={"version": "999.1"}, words=NOT_FOUND,
        event=PULL,
    ),
    Foreseen(
        name="debian", rule="DRV-08", check="driver image", labels={NFD_OS_ID: "debian", NFD_OS_VERSION: "12"},
        words=NOT_FOUND,
        event=PULL,
    ),
    Foreseen(
        name="custom", rule="DRV-07", check="driver image", driver={"version": "580", "usePrecompiled": True},
        labels={NFD_KERNEL_FULL: OWN_KERNEL}, words=NOT_FOUND,
        event=PULL,
    ),
)  # fmt: skip

SETTINGS, REAL, POD_SECURITY = (
    "doctor/preflight/test_operated.py", "lab/real/test_foreseen.py", "lab/real/test_driver_container.py",
)  # fmt: skip
MADE: Final[Mapping[str, tuple[str, str]]] = {
    "container runtime": (REAL, "test_cdi_that_is_off_is_predicted_and_pods_start_without_their_gpu"),
    "disk": (REAL, "test_a_disk_without_room_is_predicted_and_the_drivers_image_does_not_fit"),
    "Pod Security": (POD_SECURITY, "test_a_namespace_without_privileged_pods_is_predicted_and_takes_none"),
    "other device plugins": (SETTINGS, "test_of_two_device_plugins_the_one_that_comes_last_takes_the_node"),
    "one system per driver image": (SETTINGS, "test_an_image_by_digest_fails_on_the_node_of_another_system"),
    "NVIDIADrivers": (SETTINGS, "test_two_nvidiadrivers_of_one_node_change_no_driver"),
    "GDS and GDRCopy": (SETTINGS, "test_gds_with_precompiled_drivers_is_refused_and_the_drivers_stay"),
}
"""By the check's name: the test, by its file, that predicts a failure, makes it, and sees it happen."""

ELSEWHERE: Final[Mapping[str, str]] = {
    "the node's own driver": "a note: nothing fails, as that driver is used",
    "Kubernetes' version": "a note: nothing fails for sure, and a lab has one version",
    "other GPU operators": "a note: kgpu does nothing beside another operator",
}
"""By the check's name: why no lab makes it. They are notes alone, which predict no failure."""
