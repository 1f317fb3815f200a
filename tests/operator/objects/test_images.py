"""Image names: the replaced operator's cases for both resources, and what it lets pass and kgpu does not."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.formats.crd.common import Image
from kgpu.operator.objects import images

DIGEST = "sha256:10d1df8034373061366d4fb17b364b3b28d766b54d5a0b700c1a5a75378cf125"
SYSTEM = "ubuntu22.04"
KERNEL = "5.4.0-150-generic"
NGC = "nvcr.io/nvidia"

# (repository, image, version, for the system, precompiled); None is refused
ROWS = {
    "malformed repository": ("malformed?/repo", "driver", "1", None, None),
    "malformed image": ("", "malformed?image", "", None, None),
    "image without tag": ("", f"{NGC}/driver", "", None, None),
    "image with tag": ("", f"{NGC}/driver:525", "", f"{NGC}/driver:525-{SYSTEM}", f"{NGC}/driver:525-{KERNEL}-{SYSTEM}"),
    "image with digest": ("", f"{NGC}/driver@{DIGEST}", "", f"{NGC}/driver@{DIGEST}", None),
    "all three, image with tag": (NGC, f"{NGC}/driver:525.85.03", "535.104.05", None, None),
    "all three, image with digest": (NGC, f"{NGC}/driver@{DIGEST}", "535.104.05", None, None),
    "no version": (NGC, "driver", "", None, None),
    "all three": (NGC, "driver", "535", f"{NGC}/driver:535-{SYSTEM}", f"{NGC}/driver:535-{KERNEL}-{SYSTEM}"),
    "version is a digest": (NGC, "driver", DIGEST, f"{NGC}/driver@{DIGEST}", None),
    "registry with port": ("127.0.0.1:5000/a", "driver", "1", f"127.0.0.1:5000/a/driver:1-{SYSTEM}",
                           f"127.0.0.1:5000/a/driver:1-{KERNEL}-{SYSTEM}"),
    "image and version": ("", f"{NGC}/driver", "1", f"{NGC}/driver:1-{SYSTEM}", f"{NGC}/driver:1-{KERNEL}-{SYSTEM}"),
    "upper case": ("nvcr.io/NVIDIA", "driver", "1", None, None),
    "tag too long": (NGC, "driver", "1" * 120, None, None),
    "short digest": (NGC, "driver", "sha256:10d1", None, None),
}  # fmt: skip


@pytest.mark.parametrize(("repository", "image", "version", "wanted", "_precompiled"), ROWS.values(), ids=ROWS)
def test_of_an_nvidiadriver(
    repository: str, image: str, version: str, wanted: str | None, _precompiled: object
) -> None:
    def made() -> str:
        found = images.pool_image("NVIDIADriver x", repository=repository, image=image, version=version)
        return images.for_system(found, SYSTEM)

    if wanted is None:
        with pytest.raises(ConfigError):
            made()
    else:
        assert made() == wanted


@pytest.mark.parametrize(("repository", "image", "version", "_plain", "wanted"), ROWS.values(), ids=ROWS)
def test_of_a_precompiled_driver(repository: str, image: str, version: str, _plain: object, wanted: str | None) -> None:
    def made() -> str:
        found = images.pool_image("NVIDIADriver x", repository=repository, image=image, version=version)
        return images.precompiled("NVIDIADriver x", found, KERNEL, SYSTEM)

    if wanted is None:
        with pytest.raises(ConfigError):
            made()
    else:
        assert made() == wanted


ENV = {"DRIVER_IMAGE": "example.org/default:1"}
POLICY_ROWS = {
    "all three": (Image(repository=NGC, image="driver", version="1"), f"{NGC}/driver:1"),
    "digest": (Image(repository=NGC, image="driver", version=DIGEST), f"{NGC}/driver@{DIGEST}"),
    "image alone": (Image(image=f"{NGC}/driver:7"), f"{NGC}/driver:7"),
    "nothing": (Image(), ENV["DRIVER_IMAGE"]),
    "not all three": (Image(repository=NGC, image="driver"), ENV["DRIVER_IMAGE"]),
    "version alone": (Image(version="1"), ENV["DRIVER_IMAGE"]),
}


@pytest.mark.parametrize(("block", "wanted"), POLICY_ROWS.values(), ids=POLICY_ROWS)
def test_of_a_section_of_the_policy(block: Image, wanted: str) -> None:
    assert images.policy_image("driver", block, "DRIVER_IMAGE", ENV) == wanted


def test_without_a_default_the_error_says_what_is_missing_and_how_to_set_it() -> None:
    with pytest.raises(ConfigError) as caught:
        images.policy_image("driver", Image(repository=NGC), "DRIVER_IMAGE", {})
    assert caught.value.what == "driver names no image: image, version not given"
    assert "DRIVER_IMAGE" in caught.value.remedy


@pytest.mark.parametrize(
    ("image", "own"),
    [("kgpu", True), ("example.org/a/kgpu:1", True), (f"kgpu.dev/kgpu@{DIGEST}", True), ("k8s-device-plugin", False),
     ("example.org/kgpu/plugin:1", False), (None, False)],
)  # fmt: skip
def test_which_image_is_kgpu_s_own(image: str | None, own: bool) -> None:
    assert images.is_own(Image(image=image)) is own
