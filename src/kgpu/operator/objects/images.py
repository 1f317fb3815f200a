"""Chooses the image of an operand's container, by the rules of ClusterPolicy and of NVIDIADriver.

kgpu's own image (``OperatorSettings.image``) runs everything that kgpu does itself. The image fields of such an
operand's section (``devicePlugin.image`` and so on) name the replaced program, which kgpu's pods must not run: they are
ignored, with advice that says so, unless the image's name is ``kgpu``. Only NVIDIA's driver images and their sidecars
are taken from the policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.formats.crd.common import Image

OWN_NAME: Final = "kgpu"

# The grammar of OCI references, as far as container runtimes agree.
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_WORD: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST: Final = rf"(?:{_WORD}(?:\.{_WORD})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_NAME: Final = rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST: Final = r"sha256:[0-9a-f]{64}"
_REFERENCE: Final = re.compile(rf"(?P<name>{_NAME})(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{_DIGEST}))?", re.ASCII)

EXAMPLE: Final = "nvcr.io/nvidia/driver:580.95.05"


def policy_image(what: str, block: Image, env_name: str, images: Mapping[str, str]) -> str:
    """The image of a section of the ClusterPolicy: from repository, image and version; or image alone, unchanged; or
    the operator's default for ``env_name``. ``what`` is the section's path. Raises ConfigError.
    """
    repository, image, version = block.repository or "", block.image or "", block.version or ""
    if repository and image and version:
        return _checked(what, f"{_named(what, repository, image)}{_ending(version)}")
    if image and not repository and not version:
        return _checked(what, image)
    default = images.get(env_name, "")
    if default:
        return _checked(env_name, default)
    missing = [key for key, value in (("repository", repository), ("image", image), ("version", version)) if not value]
    raise ConfigError(
        f"{what} names no image: {', '.join(missing)} not given",
        f"{what}.repository, .image and .version together, or .image alone with a full name such as {EXAMPLE}",
        f"add what is missing, or set {env_name} for the operator",
    )


def pool_image(what: str, *, repository: str, image: str, version: str) -> str:
    """The image of an NVIDIADriver, which has no default from the operator. Raises ConfigError."""
    if not version:
        if repository:
            raise ConfigError(
                f"{what} has a repository and no version",
                "repository, image and version together, or image alone with its full name",
                f"set {what}.version",
            )
        reference = _checked(what, image)
        if not _tagged(reference):
            raise ConfigError(
                f'{what}: image "{image}" has no version',
                f"a tag or a digest, for example {EXAMPLE}",
                f"set {what}.version, or add the tag to the image",
            )
        return reference
    name = _named(what, repository, image) if repository else image
    return _checked(what, f"{_untagged(what, name)}{_ending(version)}")


def for_system(image: str, os_tag: str) -> str:
    """The image for one operating system; a digest stays as it is."""
    return image if "@sha256:" in image else _checked("image", f"{image}-{os_tag}")


def precompiled(what: str, image: str, kernel: str, os_tag: str) -> str:
    """The image with a driver built for one kernel. Raises ConfigError for a digest."""
    if "@sha256:" in image:
        raise ConfigError(
            f'{what}: "{image}" is a digest, and drivers are precompiled',
            "a version such as 580: each kernel has an image of its own",
            f"give {what}.version as a tag, or set usePrecompiled: false",
        )
    return _checked(what, f"{image}-{kernel}-{os_tag}")


def is_own(block: Image) -> bool:
    """True if the section asks for an image of kgpu's own."""
    match = _REFERENCE.fullmatch(block.image or "")
    return match is not None and match["name"].rpartition("/")[2] == OWN_NAME


def names_image(block: Image) -> bool:
    """True if the section sets any image field."""
    return bool(block.repository or block.image or block.version)


def _named(what: str, repository: str, image: str) -> str:
    return f"{repository.rstrip('/')}/{_untagged(what, image)}"


def _untagged(what: str, image: str) -> str:
    match = _REFERENCE.fullmatch(image)
    if match is not None and (match["tag"] or match["digest"]):
        raise ConfigError(
            f'{what}: image "{image}" has a version, and version is given too',
            "the version in one place",
            f"remove it from {what}.image",
        )
    return image


def _ending(version: str) -> str:
    return f"@{version}" if version.startswith("sha256:") else f":{version}"


def _tagged(image: str) -> bool:
    match = _REFERENCE.fullmatch(image)
    return match is not None and bool(match["tag"] or match["digest"])


def _checked(what: str, image: str) -> str:
    if _REFERENCE.fullmatch(image) is None:
        raise ConfigError(
            f'{what}: "{image}" is not an image reference',
            f"a name in lower case with a tag or digest, for example {EXAMPLE}",
            f"correct repository, image and version of {what}",
        )
    return image
