"""Rows by namespace and resource, and what passes quotas by."""

from __future__ import annotations

from typing import Any

from kgpu.quota.plan import CLASS_KEY, QuotaBook, gaps, rows
from tests.placement.clusters import GPU, Object, node, pod


def quota(name: str, hard: dict[str, Any], used: dict[str, Any] | None = None, namespace: str = "ml") -> Object:
    status = {"hard": hard, "used": used or {}}
    return {"kind": "ResourceQuota", "metadata": {"name": name, "namespace": namespace}, "spec": {"hard": hard},
            "status": status}  # fmt: skip


def device_class(name: str) -> Object:
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {}}


def claim(name: str, of: str, *devices: str) -> Object:
    results = [{"request": "g", "driver": "d", "pool": "p", "device": device} for device in devices]
    status = {"allocation": {"devices": {"results": results}}} if devices else {}
    requests = [{"name": "g", "exactly": {"deviceClassName": of}}]
    return {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "ml"},
            "spec": {"devices": {"requests": requests}}, "status": status}  # fmt: skip


def test_held_waiting_and_what_the_quota_says() -> None:
    book = QuotaBook([
        node("a"), pod("p", 3, "a"), pod("q", 2), pod("ended", 1, "a") | {"status": {"phase": "Succeeded"}},
        pod("other", 1, "a", namespace="web"), quota("q", {f"requests.{GPU}": "8"}, {f"requests.{GPU}": "5"}),
    ])  # fmt: skip
    mine, others = rows(book)
    assert (mine.namespace, mine.hard, mine.used, mine.held, mine.waiting, mine.quota) == ("ml", 8, 5, 3, 2, "q")
    assert (others.namespace, others.hard, others.used, others.held) == ("web", None, None, 1)
    assert rows(book, "web") == (others,)


def test_of_several_quotas_the_one_that_leaves_least_counts() -> None:
    key = f"requests.{GPU}"
    book = QuotaBook([quota("wide", {key: "9"}, {key: "1"}), quota("tight", {key: "4"}, {key: "4"})])
    (row,) = rows(book)
    assert (row.quota, row.hard, row.full) == ("tight", 4, True)


def test_every_vendors_resources_and_no_other() -> None:
    book = QuotaBook([pod("a", 2, "n", resource="amd.com/gpu"), pod("b", 1, "n", resource="habana.ai/gaudi"),
                      pod("c", 0, "n")])  # fmt: skip
    assert [(row.resource, row.held) for row in rows(book)] == [("amd.com/gpu", 2), ("habana.ai/gaudi", 1)]


def test_claims_are_counted_by_class_with_their_devices() -> None:
    key = "gpu.nvidia.com" + CLASS_KEY
    book = QuotaBook([claim("c", "gpu.nvidia.com", "gpu-0", "gpu-1"), claim("d", "gpu.nvidia.com"),
                      quota("q", {key: "4"}, {key: "3"})])  # fmt: skip
    (row,) = rows(book)
    assert (row.resource, row.hard, row.used, row.held, row.waiting) == ("gpu.nvidia.com (claims)", 4, 3, 2, 1)


def test_slices_shares_and_claims_pass_by_a_quota_of_whole_gpus() -> None:
    slices = node("b", 0)
    slices["status"]["allocatable"] |= {"nvidia.com/mig-1g.10gb": "7", "amd.com/gpu": "1"}
    cluster = [node("a"), slices, device_class("mig.nvidia.com")]
    found = gaps(QuotaBook([*cluster, quota("q", {f"requests.{GPU}": "8", "pods": "9"})]))
    assert [gap.key for gap in found] == ["requests.nvidia.com/mig-1g.10gb", "mig.nvidia.com" + CLASS_KEY]
    keys = {f"requests.{GPU}": "8", "requests.nvidia.com/mig-1g.10gb": "0", "mig.nvidia.com" + CLASS_KEY: "0"}
    assert gaps(QuotaBook([*cluster, quota("q", keys)])) == ()


def test_a_namespace_without_a_quota_of_accelerators_has_no_gap() -> None:
    assert gaps(QuotaBook([node("a"), device_class("x"), quota("q", {"pods": "9"})])) == ()
    assert gaps(QuotaBook([node("a")])) == ()
