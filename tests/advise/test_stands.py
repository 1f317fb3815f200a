"""How each way stands on GPUs of every kind: state and reason."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.advise import stands
from kgpu.advise.model import DraService, ModelOnNode, Possibility, ResourceShares, SharingWay
from kgpu.advise.stands import STANDS

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
SLICE = "nvidia.com/mig-1g.10gb"
V1 = DraService(kubernetes=(1, 35), served="v1")

H100: dict[str, Any] = {"product": "NVIDIA-H100-80GB-HBM3", "compute": (9, 0), "mig_capable": True}
A100: dict[str, Any] = {"product": "NVIDIA-A100-SXM4-40GB", "compute": (8, 0), "mig_capable": True}
L4: dict[str, Any] = {"product": "NVIDIA-L4", "compute": (8, 9), "mig_capable": False}
V100: dict[str, Any] = {"product": "Tesla-V100-SXM2-16GB", "compute": (7, 0), "mig_capable": False}
P100: dict[str, Any] = {"product": "Tesla-P100-SXM2-16GB", "compute": (6, 0)}

IN_USE, YES, MISSING, UNKNOWN, NO = Possibility


def shares(way: SharingWay, resource: str = GPU, replicas: int = 4) -> tuple[ResourceShares, ...]:
    return (ResourceShares(resource=resource, way=way, replicas=replicas),)


SLICED = shares(SharingWay.TIME_SLICING)
MPS = shares(SharingWay.MPS)


@pytest.mark.parametrize(
    ("way", "gpus", "state", "words"),
    [
        ("whole", {**L4, "offered": ((GPU, 4),)}, IN_USE, "offers nvidia.com/gpu"),
        ("whole", L4, YES, "none offers these GPUs now"),
        ("whole", {}, YES, "with the device plugin"),
        ("whole", {**L4, "shares": SLICED, "offered": ((GPU, 16),)}, YES, "sharing is taken out"),
        ("whole", {**L4, "shares": SLICED, "offered": ((SHARED, 4),)}, YES, "sharing is taken out"),
        ("whole", {**L4, "shares": SLICED, "offered": ((GPU, 3), (SHARED, 4))}, IN_USE, "offers"),
        ("whole", {**H100, "slices": "1g.10gb", "offered": ((GPU, 7),)}, YES, "after MIG is turned off"),
        ("whole", {**H100, "offered": ((SLICE, 7),)}, YES, "the node offers slices alone"),
        ("whole", {**H100, "offered": ((GPU, 1), (SLICE, 7))}, IN_USE, "offers"),
        ("whole", {**H100, "shares": shares(SharingWay.TIME_SLICING, SLICE), "offered": ((GPU, 1), (SLICE, 28))},
         IN_USE, "offers"),
        ("time-slicing", V100, YES, "any GPU"),
        ("time-slicing", {}, YES, "any GPU"),
        ("time-slicing", {**V100, "shares": SLICED}, IN_USE, "nvidia.com/gpu by time-slicing, 4 shares each"),
        ("time-slicing", {**V100, "shares": shares(SharingWay.TIME_SLICING, replicas=0)}, IN_USE, "by time-slicing"),
        ("time-slicing", {**V100, "shares": MPS}, YES, "instead of MPS and not beside it"),
        ("time-slicing", {**H100, "offered": ((SLICE, 7),)}, YES, "of MIG slices too"),
        ("mps", V100, YES, "up to 48 clients: by the device plugin's configuration"),
        ("mps", H100, YES, "up to 48 clients"),
        ("mps", {"product": "NVIDIA-H100-80GB-HBM3"}, YES, "up to 48 clients"),  # by the table of models
        ("mps", P100, NO, "6.0 is older than Volta (7.0)"),
        ("mps", {"product": "Mystery"}, UNKNOWN, "no label tells the compute capability"),
        ("mps", {}, UNKNOWN, "no label tells the compute capability"),
        ("mps", {**H100, "slices": "1g.10gb"}, NO, "which MPS can't share"),
        ("mps", {**H100, "offered": ((SLICE, 7),)}, NO, "which MPS can't share"),
        ("mps", {**H100, "mig_strategy": "mixed"}, NO, "the MIG strategy is mixed"),
        ("mps", {**H100, "mig_strategy": "single"}, YES, "up to 48"),
        ("mps", {**V100, "shares": MPS, "offered": ((GPU, 4),)}, IN_USE, "nvidia.com/gpu by MPS"),
        ("mps", {**V100, "shares": MPS}, MISSING, "configured, and the node offers nothing"),
        ("mig", H100, YES, "up to 7 slices on each GPU, 1g.10gb the smallest"),
        ("mig", {**H100, "mig_capable": None}, YES, "up to 7 slices"),
        ("mig", A100, YES, "turning MIG on resets the GPU"),
        ("mig", {"product": "NVIDIA-A30", "compute": (8, 0)}, YES, "up to 4 slices on each GPU, 1g.6gb the smallest"),
        ("mig", {**H100, "offered": ((SLICE, 7),)}, IN_USE, "7 nvidia.com/mig-1g.10gb"),
        ("mig", {**H100, "slices": "1g.10gb", "offered": ((GPU, 7),)}, IN_USE, "slices are there"),
        ("mig", {**H100, "mig_capable": False}, NO, "the driver finds no MIG"),  # passed on to a virtual machine
        ("mig", {**H100, "shares": MPS}, NO, "not while MPS shares these GPUs"),
        ("mig", {**H100, "shares": SLICED}, YES, "up to 7"),
        ("mig", L4, NO, "the driver finds no MIG"),
        ("mig", V100, NO, "7.0 is older than Ampere (8.0)"),
        ("mig", {**V100, "mig_capable": True}, NO, "7.0 is older than Ampere"),  # a label by hand
        ("mig", {**L4, "mig_capable": None}, UNKNOWN, "NVIDIA-L4 is in no table of MIG models"),
        ("mig", {**L4, "mig_capable": True, "beside": True}, UNKNOWN, "in no table"),  # the word is the neighbour's
        ("mig", {"product": "NVIDIA-R100", "compute": (13, 0), "mig_capable": True}, YES, "the driver says so"),
        ("mig", {}, UNKNOWN, "the model is not known"),
    ],
)  # fmt: skip
def test_hardware_decides_and_what_is_set_up(way: str, gpus: dict[str, Any], state: Possibility, words: str) -> None:
    found = STANDS[SharingWay(way)](ModelOnNode(node="n1", **gpus), V1)
    assert (found[0], words in found[1]) == (state, True), found


@pytest.mark.parametrize(
    ("service", "gpus", "state", "words"),
    [
        (V1, {}, MISSING, "no DRA driver publishes these GPUs; DRA driver: not provided by kgpu yet"),
        (DraService(kubernetes=(1, 35)), {}, MISSING, "1.35 does not serve resource.k8s.io: it was switched off"),
        (DraService(kubernetes=(1, 33)), {}, MISSING, "before 1.34 feature gates turn it on"),
        (DraService(kubernetes=(1, 32)), {}, MISSING, "before 1.34 feature gates turn it on"),
        (DraService(kubernetes=(1, 31)), {}, MISSING, "it takes 1.34"),
        (DraService(), {}, MISSING, "the API server has no resource.k8s.io"),
        (DraService(kubernetes=(1, 33), served="v1beta1"), {}, MISSING, "no DRA driver publishes these GPUs"),
        (V1, {"kubelet": (1, 33, 4)}, MISSING, "the kubelet is 1.33.4: from 1.34 on"),
        (V1, {"driver": (550, 127, 8)}, MISSING, "NVIDIA's takes GPU driver 565, and this is 550"),
        (DraService(kubernetes=(1, 35), served="v1", publishers={"n1": frozenset({"gpu.nvidia.com"})}), {}, IN_USE,
         "published by DRA driver gpu.nvidia.com"),
        (DraService(kubernetes=(1, 35), served="v1", publishers={"n2": frozenset({"gpu.nvidia.com"})}), {}, MISSING,
         "no DRA driver publishes"),
        (DraService(kubernetes=(1, 35), served="v1", publishers=None), {}, UNKNOWN, "the right to list them"),
    ],
)  # fmt: skip
def test_dra_needs_the_api_the_kubelet_and_a_driver(
    service: DraService, gpus: dict[str, Any], state: Possibility, words: str
) -> None:
    found = stands.dra(ModelOnNode(node="n1", **gpus), service)
    assert (found[0], words in found[1]) == (state, True), found


def test_what_is_there_is_not_called_missing() -> None:
    _, why = stands.dra(ModelOnNode(node="n1", kubelet=(1, 34, 0), driver=(580, 65, 6)), V1)
    assert "kubelet" not in why
    assert "takes GPU driver" not in why
    assert "resource.k8s.io" not in why


def test_a_mig_manager_of_kgpu_changes_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stands, "provided", lambda _operand: True)
    assert "not provided" not in stands.mig(ModelOnNode(node="n1", **H100), V1)[1]
    assert "not provided" not in stands.dra(ModelOnNode(node="n1", **H100), V1)[1]
    assert "dra.enabled" in stands.dra(ModelOnNode(node="n1", **H100), V1)[1]
