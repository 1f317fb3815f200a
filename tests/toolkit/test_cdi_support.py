"""Which CDI versions a node's engines read: by their modules, by their functions, and the oldest of several."""

from __future__ import annotations

import pytest

from kgpu.host.root import Tree
from kgpu.toolkit.cdi_support import EngineSupport, find_engines, oldest_support
from tests.host.go_program import go_program
from tests.host.tree import link, write

LIBRARY = "tags.cncf.io/container-device-interface"
OLD = "github.com/container-orchestrated-devices/container-device-interface"


def found(root) -> list[tuple[str, str]]:
    return [(engine.program, engine.newest) for engine in find_engines(Tree.at(root, "/"))]


@pytest.mark.parametrize(
    ("lines", "newest"),
    [
        ([f"dep\t{LIBRARY}\tv1.0.1", f"dep\t{LIBRARY}/specs-go\tv1.0.0"], "1.0.0"),
        ([f"dep\t{LIBRARY}\tv0.8.0", f"dep\t{LIBRARY}/specs-go\tv0.8.0"], "0.8.0"),
        ([f"dep\t{LIBRARY}\tv0.6.2"], "0.6.0"),
        ([f"dep\t{OLD}\tv0.5.4"], "0.5.0"),
        ([f"dep\t{LIBRARY}/specs-go\tv9.1.0"], "1.1.0"),
        ([f"dep\t{LIBRARY}/specs-go\tv0.0.0-20260101000000-abcdefabcdef"], "0.3.0"),
        ([f"dep\t{LIBRARY}\t(devel)"], ""),
    ],
)
def test_by_the_linked_library(tmp_path, lines: list[str], newest: str) -> None:
    write(tmp_path, "/usr/bin/containerd", go_program(["dep\tx.com/y\tv1.0.0", *lines]))
    assert found(tmp_path) == [("/usr/bin/containerd", newest)]


@pytest.mark.parametrize(
    ("tail", "newest"),
    [
        (b"vendor/x/container-device-interface/pkg/cdi.NewCache", "0.5.0"),
        (b"container-device-interface/pkg/cdi.requiresV050 container-device-interface/pkg/cdi.requiresV060", "0.6.0"),
        (b"container-device-interface/specs-go.requiresV070 container-device-interface/specs-go.requiresV060", "0.7.0"),
    ],
)
def test_by_functions_where_a_distribution_names_no_modules(tmp_path, tail: bytes, newest: str) -> None:
    """Debian's podman 4 is one: it names no modules, and refuses additionalGids."""
    write(tmp_path, "/usr/bin/podman", go_program(["path\tgithub.com/containers/podman"], tail=tail))
    assert found(tmp_path) == [("/usr/bin/podman", newest)]


def test_programs_without_cdi_and_links_to_the_same_one_don_t_count(tmp_path) -> None:
    write(tmp_path, "/usr/bin/dockerd", go_program(["dep\tx.com/y\tv1.0.0", "dep\tx.com/z\tv1.0.0"]))
    write(tmp_path, "/usr/bin/crio", b"#!/bin/sh\n")
    write(tmp_path, "/usr/local/bin/k3s", go_program([f"dep\t{LIBRARY}/specs-go\tv0.8.0", "dep\tx.com/z\tv1.0.0"]))
    link(tmp_path, "/usr/local/bin/containerd", "k3s")
    assert [newest for _, newest in found(tmp_path)] == ["0.8.0"]


def test_the_oldest_decides_and_nothing_is_known_of_nobody() -> None:
    assert oldest_support([EngineSupport("a", "1.0.0"), EngineSupport("b", "0.6.0")]) == "0.6.0"
    assert oldest_support([EngineSupport("a", "1.0.0"), EngineSupport("b", "")]) == ""
    assert oldest_support([]) == ""
