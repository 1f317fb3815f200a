"""What a node's package lists and disks say: found, not there, unreadable, hostile."""

from __future__ import annotations

from pathlib import Path

from kgpu.doctor.sources import node_packages
from kgpu.doctor.sources.host import gather
from kgpu.host.engines.paths import MountedPaths

KERNEL = "6.8.0-45-generic"


def lists(root: Path, text: str, name: str = "archive_dists_noble_main_binary-amd64_Packages") -> MountedPaths:
    folder = root / "var/lib/apt/lists"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return MountedPaths.at(root)


def test_headers_are_found_at_the_beginning_and_in_the_middle_of_a_list(tmp_path: Path) -> None:
    line = f"Package: linux-headers-{KERNEL}\n"
    assert node_packages.has_headers(lists(tmp_path, line), KERNEL)
    assert node_packages.has_headers(lists(tmp_path, f"Package: zsh\nVersion: 1\n\n{line}Version: 2\n"), KERNEL)


def test_other_kernels_headers_are_no_headers(tmp_path: Path) -> None:
    text = f"Package: linux-headers-{KERNEL}-lpae\n\nDescription: Package: linux-headers-{KERNEL}\n"
    assert node_packages.has_headers(lists(tmp_path, text), KERNEL) is False
    assert node_packages.has_headers(lists(tmp_path, "", "empty_Packages"), KERNEL) is False


def test_without_lists_or_with_a_strange_kernel_nobody_knows(tmp_path: Path) -> None:
    assert node_packages.has_headers(MountedPaths.at(tmp_path), KERNEL) is None
    assert node_packages.has_headers(lists(tmp_path, "Package: zsh\n"), "6.8\nPackage: x") is None


def test_a_nodes_facts_have_both(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text(f"{KERNEL}\n")
    (tmp_path / "var/lib/kubelet").mkdir(parents=True)
    facts = gather(lists(tmp_path, f"Package: linux-headers-{KERNEL}\n"), node="a")
    assert facts.headers_offered is True
    assert facts.headers is False
    disk = facts.disks["/var/lib/kubelet"]
    assert disk.size >= disk.free > 0
    assert set(facts.disks) == {"/var/lib/kubelet"}
