"""Which driver a pod installs, and when two are the same: by digests of kgpu's own rules, otherwise by the image."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats import names
from kgpu.formats.driver_revision import DriverRevision, is_of_release, release_of, revision_of

RULES = names.THIS_DRIVER_DIGEST_VERSION
IMAGE = "nvcr.io/nvidia/driver:570.86.15-ubuntu24.04"
OTHER = "nvcr.io/nvidia/driver:580.95.05-ubuntu24.04"


def pod(digest: str = "d1", rules: str = RULES, image: str = IMAGE, container: str = names.DRIVER_CONTAINER) -> Any:
    environment = [{"name": names.ENV_DRIVER_CONFIG_DIGEST, "value": digest}]
    row = {"name": container, "image": image, "env": environment}
    return {"metadata": {"annotations": {names.DRIVER_DIGEST_VERSION: rules}}, "spec": {"containers": [row]}}


@pytest.mark.parametrize(
    ("image", "release"),
    [
        (IMAGE, "570.86.15"),
        ("driver:580.95.05", "580.95.05"),
        ("localhost:5000/driver:570.86.15-rhel9.4", "570.86.15"),
        ("driver:580-6.8.0-57-generic-ubuntu24.04", "580"),
        ("driver:570.86.15@sha256:0123", "570.86.15"),
        ("driver@sha256:0123", ""),
        ("localhost:5000/driver", ""),
        ("driver:latest", ""),
        ("driver:12.4", ""),
        ("driver:570.86.15.1", ""),
        ("driver:\u0665\u0667\u0660", ""),
        ("", ""),
    ],
)
def test_the_release_in_an_images_tag(image: str, release: str) -> None:
    assert release_of(image) == release


@pytest.mark.parametrize(
    ("loaded", "release", "same"),
    [
        ("570.86.15", "570.86.15", True),
        ("570.86.15", "570", True),
        ("570.86.15", "570.86", True),
        ("570.86.15", "57", False),
        ("570.86.15", "570.86.1", False),
        ("570", "570.86.15", False),
        ("", "570", False),
    ],
)
def test_a_loaded_driver_is_of_a_release_or_of_a_branch(loaded: str, release: str, same: bool) -> None:
    assert is_of_release(loaded, release) is same


def test_a_pod_is_read() -> None:
    assert revision_of(pod()) == DriverRevision(digest="d1", rules=RULES, image=IMAGE)


@pytest.mark.parametrize(
    "obj",
    [
        {},
        {"spec": None, "metadata": []},
        {"spec": {"containers": "x"}},
        {"spec": {"containers": [None, 7, {"name": 7, "image": {}}]}},
        pod(container="sidecar"),
    ],
)
def test_what_is_malformed_or_another_pod_has_no_image(obj: Any) -> None:
    assert revision_of(obj).image == ""


def test_digests_of_kgpus_rules_decide_and_an_image_alone_does_not() -> None:
    now = revision_of(pod())
    assert now.is_same(revision_of(pod(image=OTHER)))
    assert not now.is_same(revision_of(pod(digest="d2")))
    assert now.runs("d1", OTHER)
    assert not now.runs("d2", IMAGE)


@pytest.mark.parametrize("rules", ["", "0", "99"])
def test_digests_of_other_rules_are_never_compared(rules: str) -> None:
    before = revision_of(pod(rules=rules))
    assert before.is_same(revision_of(pod(digest="d2")))
    assert not before.is_same(revision_of(pod(image=OTHER)))
    assert before.runs("d2", IMAGE)


def test_both_of_the_same_foreign_rules_are_compared_by_the_image() -> None:
    assert not revision_of(pod(rules="99")).is_same(revision_of(pod(rules="99", image=OTHER)))


def test_nothing_is_the_same_as_nothing() -> None:
    assert not DriverRevision().is_same(DriverRevision())
    assert DriverRevision(rules=RULES, image=IMAGE).is_same(DriverRevision(rules=RULES, image=IMAGE))
