"""An embedded lab with nodes of four vendors: each pod lands on its vendor's and sees its devices alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.base.errors import LabError
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.progress import QuietProgress
from tests.lab import vendors_story
from tests.lab.vendors_story import AMD_PROFILE, MixedLab

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedLab]:
    del kubectl
    first = FirstNode(profile=AMD_PROFILE)
    made = EmbeddedLab("amd", tmp_path_factory.mktemp("amd") / "lab", QuietProgress(), first=first)
    with vendors_story.mixed(made) as ready:
        yield ready


def test_each_pod_lands_on_its_vendor_and_sees_its_devices_and_no_other(lab: MixedLab) -> None:
    vendors_story.each_pod_lands_on_its_vendor(lab)


def test_a_gaudi_pod_sees_its_cards_and_is_told_of_them(lab: MixedLab) -> None:
    vendors_story.a_gaudi_pod_is_told_of_its_cards(lab)


def test_a_faulty_gaudi_is_withdrawn_alone_and_comes_back(lab: MixedLab) -> None:
    vendors_story.a_faulty_gaudi_is_withdrawn_alone(lab)


def test_all_are_labelled_in_their_own_words(lab: MixedLab) -> None:
    vendors_story.all_are_labelled_in_their_own_words(lab)


def test_a_faulty_gpu_is_withdrawn_alone_and_comes_back(lab: MixedLab) -> None:
    vendors_story.a_faulty_gpu_is_withdrawn_alone(lab)


def test_without_the_driver_nothing_is_offered_and_other_nodes_go_on(lab: MixedLab) -> None:
    vendors_story.an_unloaded_driver_takes_all_and_gives_all_back(lab)


def test_a_part_is_seen_by_its_pod_alone(lab: MixedLab) -> None:
    vendors_story.a_part_is_seen_by_its_pod_alone(lab)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"mig": ["0:1g.10gb"]}, "a MIG layout"),
        ({"light": True}, "--light"),
        ({"driver": "container"}, "--driver container"),
    ],
)
def test_what_amd_nodes_do_not_have_is_refused(lab: MixedLab, options: dict[str, Any], what: str) -> None:
    with pytest.raises(LabError, match=what):
        manage.add(lab.folder, "mi210", **options)
