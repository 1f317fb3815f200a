"""Pools of nodes that take the same driver image, and the names that come from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import names
from kgpu.operator.model import ClusterNode
from kgpu.operator.objects.pools import MAX_NAME, hashed, kernel_name, pools, short_name, takes_driver
from tests.operator.objects.scenes import node

UID = "2269c984-db9a-4b0e-9fd5-86df0ad269f7"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(UID, "7c6d7bd86b"), (f"{UID}-5.15.0-1041-azure", "79d6bd954f"),
     (f"{UID}-rhcos4.14-414.92.202309282257", "646cdfdb96"), ("rhcos4.14-414.92.202309282257", "5bbdb464cb")],
)  # fmt: skip
def test_hashes_are_the_replaced_operator_s(text: str, wanted: str) -> None:
    assert hashed(text) == wanted


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [("5.14.0-427.37.1.el9_4.aarch64_64k", "5.14.0-427.37.1.el9.4"), ("5.14.0-427.el9.x86_64", "5.14.0-427.el9"),
     ("5.15.0-1041-azure", "5.15.0-1041-azure"), ("6.8.0-Custom+", "6.8.0-custom")],
)  # fmt: skip
def test_kernels_in_names(kernel: str, wanted: str) -> None:
    assert kernel_name(kernel) == wanted


@given(st.text("abc.-0", min_size=1, max_size=200), st.text("abc.-0", min_size=1, max_size=200))
def test_long_names_stay_apart(one: str, other: str) -> None:
    a, b = short_name(f"x{one}x"), short_name(f"x{other}x")
    assert len(a) <= MAX_NAME
    assert (a == b) == (one == other)
    assert a[-1].isalnum()


@pytest.mark.parametrize(
    ("os_id", "version", "tag"),
    [("rhel", "8.10", "rhel8"), ("rocky", "9.4", "rocky9"), ("ol", "8.9", "ol8"), ("ubuntu", "24.04", "ubuntu24.04"),
     ("sles", "15.5", "sles15.5"), ("talos", "v1.12.6", "talosv1.12.6"), ("arch", "rolling", "archrolling")],
)  # fmt: skip
def test_a_pool_per_system(os_id: str, version: str, tag: str) -> None:
    (pool,) = pools([node("a", os_id, version), node("b", os_id, version)], by_kernel=False).pools
    assert pool.os_tag == tag
    assert all(node("a", os_id, version).labels[key] == value for key, value in pool.selector.items())


def test_minor_releases_of_one_system_share_a_pool_where_the_image_does() -> None:
    found = pools([node("a", "rhel", "9.2"), node("b", "rhel", "9.4"), node("c", "ubuntu", "22.04")], by_kernel=False)
    assert [pool.os_tag for pool in found.pools] == ["rhel9", "ubuntu22.04"]


def test_kernels_count_only_for_precompiled_drivers() -> None:
    nodes = [node("a", kernel="5.15.0-1"), node("b", kernel="5.15.0-2")]
    assert len(pools(nodes, by_kernel=False).pools) == 1
    assert [pool.kernel for pool in pools(nodes, by_kernel=True).pools] == ["5.15.0-1", "5.15.0-2"]


def test_the_same_kernel_on_two_systems_is_two_pools() -> None:
    nodes = [node("a", kernel="5.15.0-1"), node("b", "debian", "12", kernel="5.15.0-1")]
    assert {(pool.os_tag, pool.kernel) for pool in pools(nodes, by_kernel=True).pools} == {
        ("debian12", "5.15.0-1"), ("ubuntu22.04", "5.15.0-1"),
    }  # fmt: skip


def test_a_node_without_its_system_s_labels_waits_and_is_named() -> None:
    bare = ClusterNode(name="bare", labels={names.NFD_PCI_NVIDIA[0]: "true"}, os_id="ubuntu", os_version="22.04")
    found = pools([bare, node("a")], by_kernel=False)
    assert len(found.pools) == 1
    assert found.unlabelled == ("bare",)


@pytest.mark.parametrize(
    ("labels", "takes"),
    [({}, True), ({"nvidia.com/gpu.deploy.driver": "true"}, True), ({"nvidia.com/gpu.deploy.driver": "false"}, False),
     ({"nvidia.com/gpu.deploy.driver": "pre-installed"}, False),
     ({"nvidia.com/gpu.deploy.driver": "paused-for-driver-upgrade"}, True),
     ({"nvidia.com/gpu.deploy.operands": "false"}, False), ({names.NFD_PCI_NVIDIA[0]: "false"}, False)],
)  # fmt: skip
def test_which_nodes_take_a_driver(labels: dict[str, str], takes: bool) -> None:
    assert takes_driver(node("a", labels=labels)) is takes
