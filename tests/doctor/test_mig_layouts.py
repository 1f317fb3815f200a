"""MIG layouts: what fits on a card together is what the tables of MIG say, and not a sum alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgpu.doctor.model import Finding
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.example import base, merged

A100, GH200, PRO = "NVIDIA-A100-SXM4-80GB", "NVIDIA-GH200-480GB", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"


def findings(product: str, profiles: dict[str, int]) -> dict[str, Finding]:
    """What is found of a node whose layout has failed, by rule."""
    layout = [{"devices": "all", "mig-enabled": True, "mig-devices": profiles}]
    labels = {
        "nvidia.com/mig.config": "own", "nvidia.com/mig.config.state": "failed", "nvidia.com/gpu.product": product,
    }  # fmt: skip
    objects: list[dict[str, Any]] = [
        *(one for name in ("gpu-node", "operator", "mig") for one in base(name)),
        {"kind": "Node", "metadata": {"name": "gpu-1", "labels": labels}},
        {"kind": "ConfigMap", "metadata": {"name": "default-mig-parted-config", "namespace": "gpu-operator"},
         "data": {"config.yaml": json.dumps({"version": "v1", "mig-configs": {"own": layout}})}},
    ]  # fmt: skip
    report = diagnose(Snapshot.of(merged(objects)), strict=True)
    return {each.id: each for one in report.findings for each in one.all()}


@pytest.mark.parametrize(
    ("product", "profiles"),
    [
        (A100, {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}),
        (A100, {"1g.10gb": 6, "1g.10gb+me": 1}),
        (A100, {"3g.39gb": 2}),  # as some drivers call 3g.40gb
        (A100, {"1c.3g.40gb": 6}),  # three of them in one GPU instance
        (A100, {"1g.10gb": -3, "7g.80gb": 1}),
        (GH200, {"1g.12gb": 7}),  # 480 GB are the CPU's
        (PRO, {"1g.24gb+me.all": 1, "1g.24gb-me": 3}),
        ("NVIDIA-unknown", {"1g.10gb": 99}),
    ],
)
def test_what_fits_is_no_finding(product: str, profiles: dict[str, int]) -> None:
    assert not {"MIG-15", "MIG-21"} & set(findings(product, profiles))


@pytest.mark.parametrize(
    ("product", "profiles", "why"),
    [
        (A100, {"3g.40gb": 2, "1g.10gb": 1}, "it takes 7 of 7 compute slices and 9 of 8 blocks of memory"),
        (A100, {"1g.10gb": 10**9}, "it takes 1000000000 of 7 compute slices and 1000000000 of 8 blocks of memory"),
        (A100, {"1c.3g.40gb": 7}, "it takes 9 of 7 compute slices and 12 of 8 blocks of memory"),
        (A100, {"1g.10gb": -3, "3g.40gb": 3}, "it takes 9 of 7 compute slices and 12 of 8 blocks of memory"),
        (A100, {"1g.10gb+me": 2}, "a card can have 1 of 1g.10gb+me"),
        (PRO, {"1g.24gb+me": 1, "1g.24gb+me.all": 1}, "a card has no places, or not the engines, for all of them"),
    ],
)
def test_why_a_layout_does_not_fit(product: str, profiles: dict[str, int], why: str) -> None:
    assert why in findings(product, profiles)["MIG-15"].cause


@pytest.mark.parametrize(
    ("product", "profile", "smallest"), [(GH200, "1g.18gb", "1g.12gb"), (PRO, "1g.10gb", "1g.24gb")]
)
def test_profiles_of_another_card(product: str, profile: str, smallest: str) -> None:
    cause = findings(product, {profile: 1})["MIG-21"].cause
    assert f"asks for {profile}, which {product} does not have: its smallest slice is {smallest}" in cause


CONFIG, DEFAULT = "config.yaml", "config-default.yaml"
KGPUS, NVIDIAS = "registry.example/kgpu:1", "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.12.0"
LAYOUTS = json.dumps({"version": "v1", "mig-configs": {"mine": [{"devices": "all", "mig-enabled": False}]}})


def own_layouts(data: dict[str, str], *, image: str = KGPUS, named: bool = True, label: str = "") -> dict[str, Finding]:
    """What is found where a ConfigMap of one's own has these keys, by rule."""
    spec: dict[str, Any] = {"migManager": {"config": {"name": "mine"}}} if named else {}
    container = {"name": "nvidia-mig-manager", "image": image}
    state = {"nvidia.com/mig.config": label, "nvidia.com/mig.config.state": "failed"} if label else {}
    objects: list[dict[str, Any]] = [
        *(one for name in ("gpu-node", "operator", "mig") for one in base(name)),
        {"kind": "Node", "metadata": {"name": "gpu-1", "labels": state}},
        {"kind": "Pod", "metadata": {"name": "mig-manager-a", "namespace": "gpu-operator"},
         "spec": {"containers": [container]}},
        {"kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": spec},
        {"kind": "ConfigMap", "metadata": {"name": "mine", "namespace": "gpu-operator"}, "data": data},
    ]  # fmt: skip
    report = diagnose(Snapshot.of(merged(objects)), strict=True)
    return {each.id: each for one in report.findings for each in one.all()}


@pytest.mark.parametrize(
    ("data", "image"),
    [
        ({CONFIG: LAYOUTS}, KGPUS),
        ({DEFAULT: LAYOUTS}, KGPUS),
        ({CONFIG: LAYOUTS, DEFAULT: "mig-configs: ["}, KGPUS),
        ({CONFIG: LAYOUTS}, NVIDIAS),
    ],
)
def test_layouts_under_either_key_are_read(data: dict[str, str], image: str) -> None:
    assert "MIG-12" not in own_layouts(data, image=image)


@pytest.mark.parametrize(
    ("data", "image", "wrong", "key"),
    [
        ({"mig.yaml": LAYOUTS}, KGPUS, f"no readable {CONFIG} or {DEFAULT} (its keys: mig.yaml)", CONFIG),
        ({DEFAULT: "mig-configs: ["}, KGPUS, f"no readable {CONFIG} or {DEFAULT} (its keys: {DEFAULT})", DEFAULT),
        # The first that is there counts, whatever is in it.
        ({CONFIG: "x", DEFAULT: LAYOUTS}, KGPUS, f"(its keys: {CONFIG}, {DEFAULT})", CONFIG),
        ({DEFAULT: LAYOUTS}, NVIDIAS, f"no readable {CONFIG} (its keys: {DEFAULT})", CONFIG),
    ],
)
def test_layouts_that_the_manager_does_not_find(data: dict[str, str], image: str, wrong: str, key: str) -> None:
    found = own_layouts(data, image=image)["MIG-12"]
    assert wrong in found.cause
    assert f"--from-file={key}=FILE" in str(found.remedy[1])


def test_a_layout_under_the_other_key_is_known_by_its_name() -> None:
    found = own_layouts({DEFAULT: LAYOUTS}, label="mime")["MIG-01"]
    assert 'did you mean "mine"' in found.cause
    assert any(evidence.field == f"data[{DEFAULT}]" for evidence in found.evidence)


def test_own_layouts_under_the_other_key_that_nobody_names() -> None:
    found = own_layouts({DEFAULT: LAYOUTS}, named=False, label="mine")["MIG-13"]
    assert any(evidence.field == f"data[{DEFAULT}]" for evidence in found.evidence)
