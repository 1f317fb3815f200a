"""Real Kubernetes with nodes of four vendors: the first, with MI300X, has the real kubelet and containerd."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kgpu.lab.progress import PlainProgress
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import LabSpec
from tests.lab import vendors_story
from tests.lab.vendors_story import AMD_PROFILE, MixedLab


@pytest.fixture(scope="module")
def lab(real_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedLab]:
    del real_machine
    spec = LabSpec(name=f"amd-{os.getpid()}", profile=AMD_PROFILE)
    made = RealLab(spec, folder=tmp_path_factory.mktemp("amd") / "lab", progress=PlainProgress())
    with vendors_story.mixed(made) as ready:
        yield ready


def test_each_pod_lands_on_its_vendor_and_sees_its_devices_and_no_other(lab: MixedLab) -> None:
    vendors_story.each_pod_lands_on_its_vendor(lab)
    vendors_story.a_gaudi_pod_is_told_of_its_cards(lab)
    vendors_story.all_are_labelled_in_their_own_words(lab)


def test_faults_take_one_device_or_one_node_and_all_come_back(lab: MixedLab) -> None:
    vendors_story.a_faulty_gpu_is_withdrawn_alone(lab)
    vendors_story.a_faulty_gaudi_is_withdrawn_alone(lab)
    vendors_story.an_unloaded_driver_takes_all_and_gives_all_back(lab)


def test_a_part_is_seen_by_its_pod_alone(lab: MixedLab) -> None:
    vendors_story.a_part_is_seen_by_its_pod_alone(lab)
